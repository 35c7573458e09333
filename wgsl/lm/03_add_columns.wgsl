// add_columns: adds up the rows of each of several matrices.
//
//   sums[firsts[m] + c] += sum over r of rows[m, r, c]
//
// The result is the gradient of a bias, or the gradients of the weights of many norms, from the
// partial sums that rms_norm_backward stores. WORKGROUP_SIZE / COLUMNS threads share a column, and
// stride over its rows. One thread then adds their sums in order. An element is a number, or a
// vector of four numbers.
//
// binding 0  rows    read        (M, R, C) elements
// binding 1  sums    read_write  rows of C elements, to which the kernel adds
// binding 2  dims    uniform     R, C, workgroups per matrix, M
// binding 3  firsts  uniform     (MATRICES,) x: index in sums of the first element for matrix m
// dispatch: one workgroup for COLUMNS columns of a matrix
//!include common/workgroup.wgsl
//!override numbers = 4
//!let number = f32
//!let number = vec4<f32> if numbers == 4

const MATRICES: u32 = 64u;

override COLUMNS: u32 = 16u;

@group(0) @binding(0) var<storage, read> rows: array<{number}>;
@group(0) @binding(1) var<storage, read_write> sums: array<{number}>;
@group(0) @binding(2) var<uniform> dims: vec4<u32>;
@group(0) @binding(3) var<uniform> firsts: array<vec4<u32>, MATRICES>;

var<workgroup> sh_sums: array<{number}, WORKGROUP_SIZE>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn add_columns(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let group = flat_group(workgroup, workgroups);
    let matrix = group / dims.z;
    let column = group % dims.z * COLUMNS + local_index % COLUMNS;
    let live = matrix < dims.w && column < dims.y;
    var sum = {number}();
    if (live) {
        for (var r = local_index / COLUMNS; r < dims.x; r += WORKGROUP_SIZE / COLUMNS) {
            sum += rows[(matrix * dims.x + r) * dims.y + column];
        }
    }
    sh_sums[local_index] = sum;
    workgroupBarrier();
    if (local_index < COLUMNS && live) {
        var total = {number}();
        for (var k = local_index; k < WORKGROUP_SIZE; k += COLUMNS) {
            total += sh_sums[k];
        }
        sums[firsts[matrix].x + column] += total;
    }
}
