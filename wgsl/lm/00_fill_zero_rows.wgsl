// fill_zero_rows: write zeros into the listed rows of a table, and into no others.
//
// binding 0  table  read_write  (V, C)
// binding 1  rows   read        (U,) row numbers; entries of V or more are skipped
// binding 2  dims   uniform     U C, C, V
// dispatch: one thread an element of a listed row
//!include lm/elements.wgsl

@group(0) @binding(0) var<storage, read_write> table: array<f32>;
@group(0) @binding(1) var<storage, read> rows: array<u32>;
@group(0) @binding(2) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn fill_zero_rows(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < dims.x) {
        let row = rows[i / dims.y];
        if (row < dims.z) {
            table[row * dims.y + i % dims.y] = 0.0;
        }
    }
}
