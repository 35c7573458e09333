// Shared by the kernels of the loss: the softmax of a row, its losses, and the numbers that its
// gradients are made of.
// The kernel declares its logits and `logit`, one of them, and sets `first`, a thread's first column,
// `spread`, the columns from one of its four logits to the next, and `loads`.
//!include common/reduce.wgsl

@group(0) @binding(1) var<storage, read> tgts: array<u32>;
@group(0) @binding(2) var<storage, read_write> losses: array<f32>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;
@group(0) @binding(4) var<uniform> params: vec4<f32>;
@group(0) @binding(5) var<storage, read_write> smoothing: array<f32>;
@group(0) @binding(6) var<storage, read_write> z_losses: array<f32>;

const NOT_FINITE: u32 = 0x7f800000u; // the exponent of infinities and NaN

// Sums over the logits of a row, or over a thread's part of the row.
struct Sums {
    largest: f32, // m
    rest: f32, // sum of exp(l - m) without the target
    gap: f32, // sum of (m - l) / W
    share: f32, // number of logits / W
    bad: f32, // 1 where a logit is not finite
}

// The numbers that the gradients of a row's logits are made of.
struct Slope {
    largest: f32,
    factor: f32, // of exp(l - m), where the logit is not the target's
    spread: f32,
    at_target: f32,
    index: u32, // of the target
    nothing: f32, // the gradient of a row that has none: 0, or NaN
    valid: bool,
}

// Store the losses of a row, and return its `Slope`.
fn store_losses(row: u32, width: u32, has_row: bool, local_index: u32) -> Slope {
    let base = row * dims.y;
    let index = tgts[row];
    let counted = index < dims.z;
    let target_logit = logit(base + min(index, dims.z - 1u));
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
        let added = select(0.0, params.y * (sums.gap - distance), params.y > 0.0);
        losses[row] = select(nothing, log_total + distance, valid);
        smoothing[row] = select(nothing, added, valid);
        z_losses[row] = select(nothing, params.z * lse * lse, valid);
    }
    let spread = params.y * params.w;
    let at_target = (pull * target_part - sums.rest) / total + params.y - spread;
    let factor = (1.0 + pull) / total;
    return Slope(sums.largest, factor, spread, at_target, index, nothing, valid);
}

fn gradient_of(logit: f32, v: u32, slope: Slope) -> f32 {
    let elsewhere = exp(logit - slope.largest) * slope.factor - slope.spread;
    let gradient = select(elsewhere, slope.at_target, v == slope.index) * params.x;
    return select(slope.nothing, gradient, slope.valid);
}

// The sums of one thread's logits: `loads` times four of them are on their way at once.
fn thread_sums(base: u32, width: u32, index: u32, local_index: u32) -> Sums {
    var sums = Sums(logit(base + min(local_index, dims.z - 1u)), 0.0, 0.0, 0.0, 0.0);
    for (var v = {first}; v < width; v += {4 * loads}u * WORKGROUP_SIZE) {
        //!for n in 0..loads
        let places_{n} = v + {4 * n}u * WORKGROUP_SIZE + {spread} * vec4(0u, 1u, 2u, 3u);
        let l_{n} = four_logits(base, min(places_{n}, vec4(width - 1u)));
        //!end
        //!for n in 0..loads
        if (places_{n}.x < width) {
            sums = with_four(sums, l_{n}, places_{n}, width, index);
        }
        //!end
    }
    return sums;
}

// The sums with four more logits. The gap is summed up only for label smoothing.
fn with_four(before: Sums, l: vec4<f32>, places: vec4<u32>, width: u32, index: u32) -> Sums {
    var sums = before;
    let inside = places < vec4(width);
    let largest = max(max(sums.largest, max(l.x, l.y)), max(l.z, l.w));
    let growth = largest - sums.largest;
    let summed = select(vec4(0.0), exp(l - largest), inside & (places != vec4(index)));
    sums.largest = largest;
    sums.rest = sums.rest * exp(-growth) + dot(summed, vec4(1.0));
    if (params.y > 0.0) {
        let weights = select(vec4(0.0), vec4(params.w), inside);
        sums.gap += sums.share * growth + dot(largest - l, weights);
        sums.share += dot(weights, vec4(1.0));
    }
    let exponents = bitcast<vec4<u32>>(l) & vec4(NOT_FINITE);
    sums.bad = select(sums.bad, 1.0, any(exponents == vec4(NOT_FINITE)));
    return sums;
}

// The row's sums out of the sums of all threads.
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
