// embed_lookup_positions: adds the embedding of each token's position to the token's embedding.
//
//   out[s, d] = table[tokens[s], d] + position_table[positions[s], d]
//
// A token or a position beyond its table adds 0.
//
// binding 0  tokens          read        (N,)
// binding 1  table           read        (V, C), vectors of four elements if `four` is set
// binding 2  out             read_write  (N, C), as the table
// binding 3  positions       read        (N,)
// binding 4  position_table  read        (P, C), as the table
// binding 5  dims            uniform     N, C in elements or vectors, V, P
// dispatch: LANES threads per token, WORKGROUP_SIZE / LANES tokens per workgroup
//!include lm/elements.wgsl
//!override four = 0

override LANES: u32 = 64u; // threads that share a row; a power of two, at most WORKGROUP_SIZE

//!if four
alias Numbers = vec4<f32>;
//!else
alias Numbers = f32;
//!end

@group(0) @binding(0) var<storage, read> tokens: array<u32>;
@group(0) @binding(1) var<storage, read> table: array<Numbers>;
@group(0) @binding(2) var<storage, read_write> out: array<Numbers>;
@group(0) @binding(3) var<storage, read> positions: array<u32>;
@group(0) @binding(4) var<storage, read> position_table: array<Numbers>;
@group(0) @binding(5) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_lookup_positions(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let s = flat_element(workgroup, workgroups, local_index) / LANES;
    if (s >= dims.x) {
        return;
    }
    let token = tokens[s];
    let position = positions[s];
    for (var column = local_index % LANES; column < dims.y; column += 4u * LANES) {
        // The thread starts all eight loads before its first store.
        //!for k in 0..4
        let sum_{k} = sum_at(token, position, column + {k}u * LANES);
        //!end
        //!for k in 0..4
        write_at(s, column + {k}u * LANES, sum_{k});
        //!end
    }
}

fn sum_at(token: u32, position: u32, column: u32) -> Numbers {
    var sum = Numbers();
    if (token < dims.z && column < dims.y) {
        sum = table[token * dims.y + column];
    }
    if (position < dims.w && column < dims.y) {
        sum += position_table[position * dims.y + column];
    }
    return sum;
}

fn write_at(s: u32, column: u32, sum: Numbers) {
    if (column < dims.y) {
        out[s * dims.y + column] = sum;
    }
}
