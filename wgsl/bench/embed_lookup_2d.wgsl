// embed_lookup_2d: copies rows of a table by token id; a workgroup copies a tile of tokens and
// columns.
//
//   out[s, d] = table[tokens[s], d], 0 where tokens[s] >= V
//
// binding 0  tokens  read        (N,)
// binding 1  table   read        (V, C)
// binding 2  out     read_write  (N, C)
// binding 3  dims    uniform     N, C, V
// dispatch: one workgroup per tile of TILE_TOKENS tokens by TILE_COLUMNS columns. Tiles are
//           numbered row by row in one sequence, so neither dimension of `out` is limited to 65 535
//           tiles
// source: embedding_lookup_kernel of the lab "Custom Embedding Lookup", with the same 32 columns by
//   8 tokens per workgroup.
//!include common/workgroup.wgsl

const TILE_COLUMNS: u32 = 32u;
const TILE_TOKENS: u32 = 8u;

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
