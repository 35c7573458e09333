// scale_to_norm: scale a matrix to a Frobenius norm of 1.
//
// binding 0  matrix    read_write  any shape, taken as one list of elements
// binding 1  partials  read        (1, NORM_PARTIALS) sums of its squares, by reduce_norm_sq
// binding 2  dims      uniform     elements, NORM_PARTIALS
// dispatch: one thread four elements
//!include common/reduce.wgsl
//!include lm/live_elements.wgsl

const NORM_EPSILON: f32 = 1e-12; // a matrix of zeros stays one

@group(0) @binding(0) var<storage, read_write> matrix: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> partials: array<f32>;
@group(0) @binding(2) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn scale_to_norm(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    var squares = 0.0;
    for (var k = local_index; k < dims.y; k += WORKGROUP_SIZE) {
        squares += partials[k];
    }
    let norm = sqrt(workgroup_sum(squares, local_index));
    let i = flat_element(workgroup, workgroups, local_index);
    if (4u * i < dims.x) {
        let scaled = matrix[i] / max(norm, NORM_EPSILON);
        matrix[i] = select(matrix[i], scaled, live_elements(i, dims.x));
    }
}
