// reduce_norm_sq: computes sums of the squares of a gradient.
//
// The gradient may consist of several matrices, one after the other, each with a multiple of 4
// elements. NORM_PARTIALS workgroups per matrix write one sum each to the matrix's row of partials.
//
// binding 0  grad      read        any shape, taken as one list of elements
// binding 1  partials  read_write  (tensors, NORM_PARTIALS)
// binding 2  dims      uniform     elements of a matrix, first row of partials, matrices
// dispatch: NORM_PARTIALS workgroups per matrix
//!include common/reduce.wgsl
//!include lm/squares.wgsl

@group(0) @binding(0) var<storage, read> grad: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> partials: array<f32>;
@group(0) @binding(2) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn reduce_norm_sq(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let group = flat_group(workgroup, workgroups);
    let matrix = group / NORM_PARTIALS;
    let place = group % NORM_PARTIALS;
    let squares = squares_of_grad(matrix * ((dims.x + 3u) / 4u), dims.x, place, local_index);
    let total = workgroup_sum(squares, local_index);
    if (local_index == 0u && matrix < dims.z) {
        partials[(dims.y + matrix) * NORM_PARTIALS + place] = total;
    }
}

//!let binding = grad
//!include squares
