// cross_entropy: the loss of each row with label smoothing and z-loss, and the gradient of its logits.
//
//   p = softmax(l[:W]),  lse = log sum exp(l[:W]),  q = (1 - alpha) * one_hot(target) + alpha / W
//   loss      = lse - l[target]
//   smoothing = alpha * (l[target] - mean(l[:W]))
//   z_loss    = beta * lse^2
//   dLogits   = (p - q + 2 * beta * lse * p) * inv_norm
//
// The first W columns are tokens. The others fill the table of the output layer up: they are not read,
// and their gradient is 0. A target that is not a token is ignored: loss and gradient of its row are 0.
// In any other row a logit of a token that is NaN or infinite makes loss and gradient NaN, so that
// training can stop. With JOINT = 1 the loss is the sum of its three parts.
//
// With m the largest logit the loss is log sum exp(l - m) + m - l[target], and smoothing adds
// alpha * (mean(m - l) - (m - l[target])): terms that do not cancel where logits are large. The sum of
// exponentials is kept apart from the target's: 1 - p[target] is that rest divided by all of it, which
// stays exact where p[target] is nearly 1, and so does the loss, log(1 + rest).
//
// Memory-bound: logits are read twice and written once. One pass finds m and the sums, which are
// rescaled as m grows. All threads read the target's logit before a barrier and write gradients after
// it: the thread that writes the loss could otherwise find the logit overwritten by another's gradient.
//
// binding 0  logits     read_write  (N, V); dLogits afterwards
// binding 1  tgts       read        (N,)
// binding 2  losses     read_write  (N,)
// binding 3  dims       uniform     N, V, W
// binding 4  params     uniform     inv_norm (0 where all rows are ignored), alpha, beta, 1 / W
// binding 5  smoothing  read_write  (N,)
// binding 6  z_losses   read_write  (N,)
// dispatch: one workgroup a row; its threads stride over the logits
//!include common/reduce.wgsl

@group(0) @binding(0) var<storage, read_write> logits: array<f32>;
@group(0) @binding(1) var<storage, read> tgts: array<u32>;
@group(0) @binding(2) var<storage, read_write> losses: array<f32>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;
@group(0) @binding(4) var<uniform> params: vec4<f32>;
@group(0) @binding(5) var<storage, read_write> smoothing: array<f32>;
@group(0) @binding(6) var<storage, read_write> z_losses: array<f32>;

override JOINT: u32 = 0u;

const NOT_FINITE: u32 = 0x7f800000u; // the exponent of infinities and NaN

// Of a row, or of a thread's part of it.
struct Sums {
    largest: f32, // m
    rest: f32, // sum of exp(l - m) without the target
    gap: f32, // sum of (m - l) / W
    share: f32, // number of logits / W
    bad: f32, // 1 where a logit is not finite
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
    let base = row * dims.y;
    let index = tgts[row];
    let counted = index < dims.z;
    let target_logit = logits[base + min(index, dims.z - 1u)];
    let sums = row_sums(thread_sums(base, width, index, local_index), local_index);
    storageBarrier();

    let target_part = exp(target_logit - sums.largest);
    let total = sums.rest + target_part;
    let lse = sums.largest + log(total);
    let pull = 2.0 * params.z * lse; // of the z-loss
    let log_total = select(log(total), log_one_plus(sums.rest), target_part == 1.0);
    let distance = sums.largest - target_logit;
    let nothing = select(0.0, bitcast<f32>(0x7fc00000u | index), counted);
    let valid = counted && sums.bad == 0.0;
    if (local_index == 0u && has_row) {
        let smoothed = log_total + (1.0 - params.y) * distance + params.y * sums.gap;
        let joint = smoothed + params.z * lse * lse;
        let loss = select(log_total + distance, joint, JOINT == 1u);
        let added = select(0.0, params.y * (sums.gap - distance), params.y > 0.0);
        losses[row] = select(nothing, loss, valid);
        smoothing[row] = select(nothing, added, valid);
        z_losses[row] = select(nothing, params.z * lse * lse, valid);
    }

    let spread = params.y * params.w;
    let at_target = (pull * target_part - sums.rest) / total + params.y - spread;
    let factor = (1.0 + pull) / total;
    for (var v = local_index; v < width; v += WORKGROUP_SIZE) {
        let elsewhere = exp(logits[base + v] - sums.largest) * factor - spread;
        let gradient = select(elsewhere, at_target, v == index) * params.x;
        logits[base + v] = select(nothing, gradient, valid);
    }
    let end = select(0u, dims.y, has_row);
    for (var v = dims.z + local_index; v < end; v += WORKGROUP_SIZE) {
        logits[base + v] = 0.0;
    }
}

// The sums of one thread's logits, four at a time so that more of them are on their way at once.
fn thread_sums(base: u32, width: u32, index: u32, local_index: u32) -> Sums {
    var sums = Sums(logits[base + min(local_index, dims.z - 1u)], 0.0, 0.0, 0.0, 0.0);
    for (var v = local_index; v < width; v += 4u * WORKGROUP_SIZE) {
        let places = v + WORKGROUP_SIZE * vec4(0u, 1u, 2u, 3u);
        let l = four_logits(base, min(places, vec4(width - 1u)));
        let inside = places < vec4(width);
        let largest = max(max(sums.largest, max(l.x, l.y)), max(l.z, l.w));
        let growth = largest - sums.largest;
        let summed = select(vec4(0.0), exp(l - largest), inside & (places != vec4(index)));
        let weights = select(vec4(0.0), vec4(params.w), inside);
        sums.largest = largest;
        sums.rest = sums.rest * exp(-growth) + dot(summed, vec4(1.0));
        sums.gap += sums.share * growth + dot(largest - l, weights);
        sums.share += dot(weights, vec4(1.0));
        let exponents = bitcast<vec4<u32>>(l) & vec4(NOT_FINITE);
        sums.bad = select(sums.bad, 1.0, any(exponents == vec4(NOT_FINITE)));
    }
    return sums;
}

fn four_logits(base: u32, places: vec4<u32>) -> vec4<f32> {
    return vec4(
        logits[base + places.x],
        logits[base + places.y],
        logits[base + places.z],
        logits[base + places.w],
    );
}

// The sums of the row, from those of all threads; the gap only where label smoothing asks for it.
fn row_sums(part: Sums, local_index: u32) -> Sums {
    var sums = Sums(workgroup_max(part.largest, local_index), 0.0, 0.0, 1.0, 0.0);
    let growth = sums.largest - part.largest;
    sums.rest = workgroup_sum(part.rest * exp(-growth), local_index);
    sums.bad = workgroup_max(part.bad, local_index);
    if (params.y > 0.0) {
        sums.gap = workgroup_sum(part.gap + part.share * growth, local_index);
    }
    return sums;
}

// log(1 + x) of x >= 0, without the absolute error that log may have near 1: below 1/2 by the series of
// 2 * artanh(x / (2 + x)).
fn log_one_plus(x: f32) -> f32 {
    let s = x / (2.0 + x);
    let t = s * s;
    let series = 2.0 * s * (1.0 + t * (1.0 / 3.0 + t * (0.2 + t * (1.0 / 7.0 + t / 9.0))));
    return select(log(1.0 + x), series, x < 0.5);
}
