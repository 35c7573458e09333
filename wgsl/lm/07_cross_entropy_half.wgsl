// cross_entropy_half: computes the losses and the gradient of 07_cross_entropy.wgsl from logits in
// half precision.
//
// The kernel moves half as many bytes as with single precision. A thread loads `loads` vectors of
// four adjacent logits at once. The second pass goes from the end of the row to its start, because
// the end is still in the caches.
//
// binding 0  logits     read_write  (N, V), half precision, four per element; dLogits afterwards
// binding 1  tgts       read        (N,)
// binding 2  losses     read_write  (N,)
// binding 3  dims       uniform     N, V, W
// binding 4  params     uniform     inv_norm (0 if all rows are ignored), alpha, beta, 1 / W
// binding 5  smoothing  read_write  (N,)
// binding 6  z_losses   read_write  (N,)
// dispatch: one workgroup per row; its threads stride over the logits
// limits: V is a multiple of 4
//!let first = 4u * local_index
//!let spread = 1u
//!let loads = 4
//!include lm/cross_entropy.wgsl
//!include lm/four_halves.wgsl

@group(0) @binding(0) var<storage, read_write> logits: array<vec2<u32>>;

fn logit(i: u32) -> f32 {
    return four_singles(logits[i / 4u])[i % 4u];
}

// Returns the logits of four adjacent columns. The caller replaces a column beyond the last token
// by the last token's column. For a replaced column, the result is the first of the four logits.
fn four_logits(base: u32, places: vec4<u32>) -> vec4<f32> {
    let four = four_singles(logits[(base + places.x) / 4u]);
    return select(vec4(four.x), four, places == places.x + vec4(0u, 1u, 2u, 3u));
}

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
    let fours = select(0u, dims.y / 4u, has_row);
    let base = row * (dims.y / 4u);
    let stride = {loads}u * WORKGROUP_SIZE;
    for (var rest = (fours + stride - 1u) / stride; rest > 0u; rest--) {
        let first = (rest - 1u) * stride + local_index;
        //!for n in 0..loads
        let place_{n} = first + {n}u * WORKGROUP_SIZE;
        var four_{n} = vec2<u32>();
        if (place_{n} < fours) { four_{n} = logits[base + place_{n}]; }
        //!end
        //!for n in 0..loads
        if (place_{n} < fours) {
            let gradients = four_gradients(four_singles(four_{n}), 4u * place_{n}, slope);
            logits[base + place_{n}] = four_halves(gradients);
        }
        //!end
    }
}

// Returns the gradients of the logits of four adjacent columns, and 0 for columns beyond the
// tokens.
fn four_gradients(four: vec4<f32>, first: u32, slope: Slope) -> vec4<f32> {
    var gradients = vec4<f32>();
    for (var i = 0u; i < 4u; i++) {
        if (first + i < dims.z) {
            gradients[i] = gradient_of(four[i], first + i, slope);
        }
    }
    return gradients;
}
