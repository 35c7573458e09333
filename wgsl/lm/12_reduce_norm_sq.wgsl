// reduce_norm_sq: sums of the squares of a gradient, the first step to the norm of all gradients.
//
// NORM_PARTIALS workgroups stride over runs of 4 WORKGROUP_SIZE elements, and each writes one sum. A
// thread loads several vectors at a time: few workgroups have to keep enough loads under way.
// Several matrices, one after the other, have a multiple of 4 elements and a row of partials each.
//
// binding 0  grad      read        any shape, taken as one list of elements
// binding 1  partials  read_write  (tensors, NORM_PARTIALS)
// binding 2  dims      uniform     elements of a matrix, first row of partials, matrices
// dispatch: NORM_PARTIALS workgroups per matrix
//!include common/reduce.wgsl
//!include lm/live_elements.wgsl

const LOADS: u32 = 8u; // vectors of a thread at a time

override NORM_PARTIALS: u32 = 128u;

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
    var sums = vec4<f32>();
    let stride = NORM_PARTIALS * WORKGROUP_SIZE;
    let vectors = (dims.x + 3u) / 4u;
    for (var i = place * WORKGROUP_SIZE + local_index; i < vectors; i += LOADS * stride) {
        var g: array<vec4<f32>, LOADS>;
        for (var k = 0u; k < LOADS; k++) {
            let at = i + k * stride;
            let live = live_elements(at, dims.x);
            g[k] = select(vec4<f32>(), grad[matrix * vectors + min(at, vectors - 1u)], live);
        }
        for (var k = 0u; k < LOADS; k++) {
            sums += g[k] * g[k];
        }
    }
    let total = workgroup_sum(sums.x + sums.y + sums.z + sums.w, local_index);
    if (local_index == 0u && matrix < dims.z) {
        partials[(dims.y + matrix) * NORM_PARTIALS + place] = total;
    }
}
