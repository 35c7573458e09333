// scale_to_norm: scales each of several matrices to a Frobenius norm of 1.
//
// The matrices lie one after the other, and each has a multiple of 4 elements.
//
// binding 0  matrices  read_write  (matrices, rows, columns), taken as lists of elements
// binding 1  partials  read        (matrices, NORM_PARTIALS) sums of squares, by reduce_norm_sq
// binding 2  dims      uniform     elements of a matrix, NORM_PARTIALS, workgroups, matrices
// dispatch: one thread per four elements of a matrix, rounded up to whole workgroups per matrix
//!include common/reduce.wgsl
//!include lm/live_elements.wgsl

const NORM_EPSILON: f32 = 1e-12; // keeps a matrix of zeros from being divided by 0

@group(0) @binding(0) var<storage, read_write> matrices: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> partials: array<f32>;
@group(0) @binding(2) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn scale_to_norm(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let group = flat_group(workgroup, workgroups);
    let matrix = min(group / dims.z, dims.w - 1u);
    var squares = 0.0;
    for (var k = local_index; k < dims.y; k += WORKGROUP_SIZE) {
        squares += partials[matrix * dims.y + k];
    }
    let norm = sqrt(workgroup_sum(squares, local_index));
    let i = (group - matrix * dims.z) * WORKGROUP_SIZE + local_index;
    if (4u * i < dims.x) {
        let place = matrix * ((dims.x + 3u) / 4u) + i;
        let scaled = matrices[place] / max(norm, NORM_EPSILON);
        matrices[place] = select(matrices[place], scaled, live_elements(i, dims.x));
    }
}
