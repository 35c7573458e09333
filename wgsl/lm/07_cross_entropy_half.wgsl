// cross_entropy_half: the losses of 07_cross_entropy.wgsl, and the gradient of the logits in half
// precision apart from them.
//
// binding 0  logits     read        (N, V); V is a multiple of 4
// binding 1  tgts       read        (N,)
// binding 2  losses     read_write  (N,)
// binding 3  dims       uniform     N, V, W
// binding 4  params     uniform     inv_norm (0 where all rows are ignored), alpha, beta, 1 / W
// binding 5  smoothing  read_write  (N,)
// binding 6  z_losses   read_write  (N,)
// binding 7  gradient   read_write  (N, V), half precision, four per element
// dispatch: one workgroup per row; its threads stride over the logits
//!include lm/cross_entropy.wgsl
//!include lm/half_bits.wgsl

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(7) var<storage, read_write> gradient: array<vec2<u32>>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn cross_entropy_half(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let group = flat_group(workgroup, workgroups);
    let row = min(group, dims.x - 1u);
    let has_row = group < dims.x; // workgroups without a row write nothing
    let slope = store_losses(row, select(0u, dims.z, has_row), has_row, local_index);
    let end = select(0u, dims.y, has_row);
    for (var v = 4u * local_index; v < end; v += 4u * WORKGROUP_SIZE) {
        gradient[(row * dims.y + v) / 4u] = four_halves(four_gradients(row * dims.y, v, slope));
    }
}

// Gradients of logits that stand for no token are 0.
fn four_gradients(base: u32, first: u32, slope: Slope) -> vec4<f32> {
    var gradients = vec4<f32>();
    for (var i = 0u; i < 4u; i++) {
        if (first + i < dims.z) {
            gradients[i] = gradient_of(logits[base + first + i], first + i, slope);
        }
    }
    return gradients;
}
