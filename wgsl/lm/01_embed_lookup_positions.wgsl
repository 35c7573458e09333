// embed_lookup_positions: adds the embedding of each token's position to the token's embedding.
//
//   out[s, d] = table[tokens[s], d] + position_table[positions[s], d]
//
// A token or a position beyond its table adds 0.
//
// binding 0  tokens          read        (N,)
// binding 1  table           read        (V, C)
// binding 2  out             read_write  (N, C)
// binding 3  positions       read        (N,)
// binding 4  position_table  read        (P, C)
// binding 5  dims            uniform     N, C, V, P
// dispatch: one thread per element
//!include lm/elements.wgsl

@group(0) @binding(0) var<storage, read> tokens: array<u32>;
@group(0) @binding(1) var<storage, read> table: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<storage, read> positions: array<u32>;
@group(0) @binding(4) var<storage, read> position_table: array<f32>;
@group(0) @binding(5) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_lookup_positions(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    let columns = dims.y;
    if (i >= dims.x * columns) {
        return;
    }
    let s = i / columns;
    let column = i % columns;
    var sum = 0.0;
    if (tokens[s] < dims.z) {
        sum = table[tokens[s] * columns + column];
    }
    if (positions[s] < dims.w) {
        sum += position_table[positions[s] * columns + column];
    }
    out[i] = sum;
}
