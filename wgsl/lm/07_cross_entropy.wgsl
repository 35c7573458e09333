// cross_entropy: computes the loss of each row with label smoothing and z-loss, and the gradient of
// its logits.
//
//   p = softmax(l[:W]),  lse = log sum exp(l[:W]),  q = (1 - alpha) * one_hot(target) + alpha / W
//   loss      = lse - l[target]
//   smoothing = alpha * (l[target] - mean(l[:W]))
//   z_loss    = beta * lse^2
//   dLogits   = (p - q + 2 * beta * lse * p) * inv_norm
//
// The first W columns are tokens. The other columns are padding of the output layer: they are not
// read, and their gradient is 0. If a row's target is not a token, the loss and the gradient of the
// row are 0. In any other row, a token's logit that is NaN or infinite makes loss and gradient NaN,
// so that training can stop.
//
// With m the largest logit, the loss is log sum exp(l - m) + m - l[target], and smoothing adds
// alpha * (mean(m - l) - (m - l[target])). Large logits do not cancel in these terms. `rest` is the
// sum of exp(l - m) over all tokens but the target. 1 - p[target] is `rest` divided by the sum over
// all tokens, and the loss is log(1 + rest) if the target has the largest logit. So both are
// accurate even if p[target] is nearly 1.
//
// The kernel is memory-bound. It reads the logits twice and writes them once. One pass finds m and
// the sums, which are rescaled when m grows. All threads read the target's logit before a barrier
// and write gradients after it. Without the barrier, a thread might read the gradient that another
// thread has written in place of the target's logit.
//
// binding 0  logits     read_write  (N, V); dLogits afterwards
// binding 1  tgts       read        (N,)
// binding 2  losses     read_write  (N,)
// binding 3  dims       uniform     N, V, W
// binding 4  params     uniform     inv_norm (0 if all rows are ignored), alpha, beta, 1 / W
// binding 5  smoothing  read_write  (N,)
// binding 6  z_losses   read_write  (N,)
// dispatch: one workgroup per row; its threads stride over the logits
// source: cross_entropy, which reads the logits three times, and four times with label smoothing.
//   Here one pass finds the maximum and all sums. The three terms of the loss are stored
//   separately, columns beyond the tokens are not read, and a logit that is not finite makes the
//   loss NaN.
//!let first = local_index
//!let spread = WORKGROUP_SIZE
//!let loads = 1
//!include lm/cross_entropy.wgsl

@group(0) @binding(0) var<storage, read_write> logits: array<f32>;

fn logit(i: u32) -> f32 {
    return logits[i];
}

fn four_logits(base: u32, places: vec4<u32>) -> vec4<f32> {
    return vec4(
        logits[base + places.x],
        logits[base + places.y],
        logits[base + places.z],
        logits[base + places.w],
    );
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn cross_entropy(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let group = flat_group(workgroup, workgroups);
    let row = min(group, dims.x - 1u);
    let has_row = group < dims.x; // workgroups without a row write nothing
    let width = select(0u, dims.z, has_row);
    let slope = store_losses(row, width, has_row, local_index);
    let base = row * dims.y;
    for (var v = local_index; v < width; v += WORKGROUP_SIZE) {
        logits[base + v] = gradient_of(logits[base + v], v, slope);
    }
    let end = select(0u, dims.y, has_row);
    for (var v = dims.z + local_index; v < end; v += WORKGROUP_SIZE) {
        logits[base + v] = 0.0;
    }
}
