// Other ways to look up rows of a table, to compare 01_embedding.wgsl with.
//
//   out[s, d] = table[tokens[s], d], 0 where tokens[s] >= V
//!include lm/elements.wgsl

const TILE_COLUMNS: u32 = 32u;
const TILE_TOKENS: u32 = 8u;

// embed_lookup_2d
// binding 0  tokens  read        (N,)
// binding 1  table   read        (V, C)
// binding 2  out     read_write  (N, C)
// binding 3  dims    uniform     N, C, V
// dispatch: one workgroup TILE_TOKENS tokens by TILE_COLUMNS columns, tiles of a token next to each
//           other; tiles are numbered, so that neither direction ends at 65 535
@group(0) @binding(0) var<storage, read> tokens: array<u32>;
@group(0) @binding(1) var<storage, read> table: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(TILE_COLUMNS, TILE_TOKENS)
fn embed_lookup_2d(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
) {
    let tile = flat_group(workgroup, workgroups);
    let tiles_a_token = (dims.y + TILE_COLUMNS - 1u) / TILE_COLUMNS;
    let column = tile % tiles_a_token * TILE_COLUMNS + local.x;
    let s = tile / tiles_a_token * TILE_TOKENS + local.y;
    if (column >= dims.y || s >= dims.x) {
        return;
    }
    let token = tokens[s];
    if (token < dims.z) {
        out[s * dims.y + column] = table[token * dims.y + column];
    } else {
        out[s * dims.y + column] = 0.0;
    }
}

// embed_lookup_token
// binding 0  tokens  read        (N,)
// binding 1  table   read        (V, C)
// binding 2  out     read_write  (N, C)
// binding 3  dims    uniform     N, C, V
// dispatch: one thread a token; neighbouring threads are C elements apart in memory, which is slow,
//           and here to be compared with
@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_lookup_token(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let s = flat_element(workgroup, workgroups, local_index);
    if (s < dims.x) {
        copy_row(s, 0u, 1u);
    }
}

// embed_lookup_rows_scalar
// binding 0  tokens  read        (N,)
// binding 1  table   read        (V, C)
// binding 2  out     read_write  (N, C)
// binding 3  dims    uniform     N, C, V
// dispatch: one workgroup a token
@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_lookup_rows_scalar(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let s = flat_group(workgroup, workgroups);
    if (s < dims.x) {
        copy_row(s, local_index, WORKGROUP_SIZE);
    }
}

// Columns first, first + step, ... of row s of `out`.
fn copy_row(s: u32, first: u32, step: u32) {
    let token = tokens[s];
    for (var column = first; column < dims.y; column += step) {
        if (token < dims.z) {
            out[s * dims.y + column] = table[token * dims.y + column];
        } else {
            out[s * dims.y + column] = 0.0;
        }
    }
}
