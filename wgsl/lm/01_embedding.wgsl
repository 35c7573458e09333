// Rows of a table for token ids, and the gradient of the table.
//
//   lookup:    out[s, d] = table[tokens[s], d], 0 where tokens[s] >= V
//   backward:  grad_table[v, d] += sum over s with tokens[s] == v of grad_out[s, d]
//
// The element kernels are the plain form. In the row kernels a token id is read once by a few
// threads, each of which has four loads under way. A table of more bytes than a binding may have
// comes in parts, one dispatch each: tokens of other parts are 0 after the first dispatch (KEEP = 0)
// and left alone by those that follow (KEEP = 1).
//
// Backward adds atomically, in whatever order threads come, so the last bits of a result differ from
// run to run, and threads of one token wait for each other; 01_embedding_grouped.wgsl does neither.
// Gradients that are not finite are left out, and so are tokens beyond the table.
enable f16;
//!include lm/elements.wgsl
//!include lm/finite.wgsl

override KEEP: u32 = 0u;
override LANES: u32 = 64u; // threads that share a row; a power of two, at most WORKGROUP_SIZE

// embed_lookup
// binding 0  tokens  read        (N,)
// binding 1  table   read        (V, C)
// binding 2  out     read_write  (N, C)
// binding 3  dims    uniform     N, C, V, first token of this part of the table
// dispatch: one thread an element
@group(0) @binding(0) var<storage, read> tokens: array<u32>;
@group(0) @binding(1) var<storage, read> table: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_lookup(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i >= dims.x * dims.y) {
        return;
    }
    let row = tokens[i / dims.y] - dims.w; // wraps to far beyond the part for tokens before it
    if (row < dims.z) {
        out[i] = table[row * dims.y + i % dims.y];
    } else if (KEEP == 0u) {
        out[i] = 0.0;
    }
}

// embed_lookup_w16
// binding 0  tokens_w16  read        (N,)
// binding 1  table_w16   read        (V, C), half precision
// binding 2  out_w16     read_write  (N, C)
// binding 3  dims_w16    uniform     N, C, V, first token of this part of the table
// dispatch: one thread an element
@group(0) @binding(0) var<storage, read> tokens_w16: array<u32>;
@group(0) @binding(1) var<storage, read> table_w16: array<f16>;
@group(0) @binding(2) var<storage, read_write> out_w16: array<f32>;
@group(0) @binding(3) var<uniform> dims_w16: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_lookup_w16(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i >= dims_w16.x * dims_w16.y) {
        return;
    }
    let row = tokens_w16[i / dims_w16.y] - dims_w16.w;
    if (row < dims_w16.z) {
        out_w16[i] = f32(table_w16[row * dims_w16.y + i % dims_w16.y]);
    } else if (KEEP == 0u) {
        out_w16[i] = 0.0;
    }
}

// embed_lookup_rows
// binding 0  tokens         read        (N,)
// binding 1  table_vectors  read        (V, C / 4) vectors
// binding 2  out_vectors    read_write  (N, C / 4) vectors
// binding 3  dims           uniform     N, C, V, first token of this part of the table
// dispatch: LANES threads a token, WORKGROUP_SIZE / LANES tokens a workgroup; C is a multiple of 4
@group(0) @binding(1) var<storage, read> table_vectors: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out_vectors: array<vec4<f32>>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_lookup_rows(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let s = flat_element(workgroup, workgroups, local_index) / LANES;
    if (s >= dims.x) {
        return;
    }
    let row = tokens[s] - dims.w;
    if (row >= dims.z && KEEP == 1u) {
        return;
    }
    for (var column = local_index % LANES; column < dims.y / 4u; column += 4u * LANES) {
        let first = table_vector(row, column);
        let second = table_vector(row, column + LANES);
        let third = table_vector(row, column + 2u * LANES);
        let fourth = table_vector(row, column + 3u * LANES);
        write_vector(s, column, first);
        write_vector(s, column + LANES, second);
        write_vector(s, column + 2u * LANES, third);
        write_vector(s, column + 3u * LANES, fourth);
    }
}

fn table_vector(row: u32, column: u32) -> vec4<f32> {
    if (row >= dims.z || column >= dims.y / 4u) {
        return vec4<f32>();
    }
    return table_vectors[row * (dims.y / 4u) + column];
}

fn write_vector(s: u32, column: u32, values: vec4<f32>) {
    if (column < dims.y / 4u) {
        out_vectors[s * (dims.y / 4u) + column] = values;
    }
}

// embed_lookup_rows_w16
// binding 0  tokens_w16         read        (N,)
// binding 1  table_vectors_w16  read        (V, C / 4) vectors, half precision
// binding 2  out_vectors_w16    read_write  (N, C / 4) vectors
// binding 3  dims_w16           uniform     N, C, V, first token of this part of the table
// dispatch: LANES threads a token, WORKGROUP_SIZE / LANES tokens a workgroup; C is a multiple of 4
@group(0) @binding(1) var<storage, read> table_vectors_w16: array<vec4<f16>>;
@group(0) @binding(2) var<storage, read_write> out_vectors_w16: array<vec4<f32>>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_lookup_rows_w16(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let s = flat_element(workgroup, workgroups, local_index) / LANES;
    if (s >= dims_w16.x) {
        return;
    }
    let row = tokens_w16[s] - dims_w16.w;
    if (row >= dims_w16.z && KEEP == 1u) {
        return;
    }
    for (var column = local_index % LANES; column < dims_w16.y / 4u; column += 4u * LANES) {
        let first = table_vector_w16(row, column);
        let second = table_vector_w16(row, column + LANES);
        let third = table_vector_w16(row, column + 2u * LANES);
        let fourth = table_vector_w16(row, column + 3u * LANES);
        write_vector_w16(s, column, first);
        write_vector_w16(s, column + LANES, second);
        write_vector_w16(s, column + 2u * LANES, third);
        write_vector_w16(s, column + 3u * LANES, fourth);
    }
}

fn table_vector_w16(row: u32, column: u32) -> vec4<f16> {
    if (row >= dims_w16.z || column >= dims_w16.y / 4u) {
        return vec4<f16>();
    }
    return table_vectors_w16[row * (dims_w16.y / 4u) + column];
}

fn write_vector_w16(s: u32, column: u32, values: vec4<f16>) {
    if (column < dims_w16.y / 4u) {
        out_vectors_w16[s * (dims_w16.y / 4u) + column] = vec4<f32>(values);
    }
}

// embed_lookup_positions
// binding 0  tokens          read        (N,)
// binding 1  table           read        (V, C)
// binding 2  out             read_write  (N, C)
// binding 3  positions       read        (N,)
// binding 4  position_table  read        (P, C)
// binding 5  sum_dims        uniform     N, C, V, P
// out = table[tokens] + position_table[positions]; a token or a position beyond its table adds 0
// dispatch: one thread an element
@group(0) @binding(3) var<storage, read> positions: array<u32>;
@group(0) @binding(4) var<storage, read> position_table: array<f32>;
@group(0) @binding(5) var<uniform> sum_dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_lookup_positions(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    let columns = sum_dims.y;
    if (i >= sum_dims.x * columns) {
        return;
    }
    let s = i / columns;
    let column = i % columns;
    var sum = 0.0;
    if (tokens[s] < sum_dims.z) {
        sum = table[tokens[s] * columns + column];
    }
    if (positions[s] < sum_dims.w) {
        sum += position_table[positions[s] * columns + column];
    }
    out[i] = sum;
}

// embed_backward
// binding 0  tokens      read        (N,)
// binding 1  grad_out    read        (N, C)
// binding 2  grad_table  read_write  (V, C), f32 as its bits
// binding 3  dims        uniform     N, C, V
// dispatch: one thread an element
@group(0) @binding(1) var<storage, read> grad_out: array<f32>;
@group(0) @binding(2) var<storage, read_write> grad_table: array<atomic<u32>>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_backward(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i >= dims.x * dims.y) {
        return;
    }
    let token = tokens[i / dims.y];
    if (token < dims.z) {
        add_atomically(token * dims.y + i % dims.y, grad_out[i]);
    }
}

// embed_backward_rows
// binding 0  tokens      read        (N,)
// binding 1  grad_out    read        (N, C)
// binding 2  grad_table  read_write  (V, C), f32 as its bits
// binding 3  dims        uniform     N, C, V
// dispatch: one workgroup a token
@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_backward_rows(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let s = flat_group(workgroup, workgroups);
    if (s >= dims.x) {
        return;
    }
    let token = tokens[s];
    if (token >= dims.z) {
        return;
    }
    for (var column = local_index; column < dims.y; column += WORKGROUP_SIZE) {
        add_atomically(token * dims.y + column, grad_out[s * dims.y + column]);
    }
}

// WGSL has no atomic f32: the sum replaces the bits that it was made from, again until no other
// thread came between. 0 is skipped because it costs as much as others, not finite because one such
// number would spoil the row for good.
fn add_atomically(element: u32, value: f32) {
    if (value == 0.0 || !is_finite(value)) {
        return;
    }
    var seen = atomicLoad(&grad_table[element]);
    loop {
        let sum = bitcast<u32>(bitcast<f32>(seen) + value);
        let result = atomicCompareExchangeWeak(&grad_table[element], seen, sum);
        if (result.exchanged) {
            break;
        }
        seen = result.old_value;
    }
}

// fill_zero
// binding 0  words       read_write  memory of any type, as 4-byte words
// binding 1  words_dims  uniform     words of the tensor, bits to keep in the last of them
// dispatch: one thread a word
// A tensor of 1-byte or 2-byte elements can end inside a word, whose rest is not its own.
@group(0) @binding(0) var<storage, read_write> words: array<u32>;
@group(0) @binding(1) var<uniform> words_dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn fill_zero(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i + 1u < words_dims.x) {
        words[i] = 0u;
    } else if (i + 1u == words_dims.x) {
        words[i] &= words_dims.y;
    }
}
