// add_columns: add the sum of the rows of a matrix to a row.
//
//   sums[c] += sum over r of rows[r, c]
//
// It makes the gradient of a bias, and adds up the parts of a norm's that rms_norm_backward leaves.
// Each column has WORKGROUP_SIZE / COLUMNS threads, which stride over its rows; the threads' sums are
// then added in order.
//
// binding 0  rows  read        (R, C)
// binding 1  sums  read_write  (C,), added to
// binding 2  dims  uniform     R, C
// dispatch: one workgroup for COLUMNS columns
//!include common/reduce.wgsl

@group(0) @binding(0) var<storage, read> rows: array<f32>;
@group(0) @binding(1) var<storage, read_write> sums: array<f32>;
@group(0) @binding(2) var<uniform> dims: vec4<u32>;

override COLUMNS: u32 = 16u;

@compute @workgroup_size(WORKGROUP_SIZE)
fn add_columns(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let column = flat_group(workgroup, workgroups) * COLUMNS + local_index % COLUMNS;
    var sum = 0.0;
    if (column < dims.y) {
        for (var r = local_index / COLUMNS; r < dims.x; r += WORKGROUP_SIZE / COLUMNS) {
            sum += rows[r * dims.y + column];
        }
    }
    sh_reduce[local_index] = sum;
    workgroupBarrier();
    if (local_index < COLUMNS && column < dims.y) {
        var total = 0.0;
        for (var k = local_index; k < WORKGROUP_SIZE; k += COLUMNS) {
            total += sh_reduce[k];
        }
        sums[column] += total;
    }
}
