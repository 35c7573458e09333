// Computes the softmax of a row of logits, the losses of the row, and the numbers from which the
// gradients of its logits are computed.
//
// The kernel declares logit(i), logit i of all rows, and four_logits(base, places), the logits of
// four columns of the row that starts at `base`. It sets `first`, the first column of a thread,
// `spread`, the number of columns from one of a thread's four logits to the next, and `loads`, the
// number of vectors of four logits that a thread loads at once.
//!include common/reduce.wgsl

@group(0) @binding(1) var<storage, read> tgts: array<u32>;
@group(0) @binding(2) var<storage, read_write> losses: array<f32>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;
@group(0) @binding(4) var<uniform> params: vec4<f32>;
@group(0) @binding(5) var<storage, read_write> smoothing: array<f32>;
@group(0) @binding(6) var<storage, read_write> z_losses: array<f32>;

const NOT_FINITE: u32 = 0x7f800000u; // the exponent of infinities and NaN

// Sums over all logits of a row, or over the logits that one thread has read.
struct Sums {
    largest: f32, // m
    rest: f32, // sum of exp(l - m) without the target
    gap: f32, // sum of (m - l) / W
    share: f32, // number of logits / W
    bad: f32, // 1 if a logit is not finite
}

// Numbers from which the gradients of a row's logits are computed. Before the multiplication by
// inv_norm, the gradient is at_target for the target, and factor * exp(l - m) - spread elsewhere.
struct Slope {
    largest: f32, // m
    factor: f32, // (1 + 2 * beta * lse) / sum of exp(l - m)
    spread: f32, // alpha / W
    at_target: f32,
    index: u32, // column of the target
    nothing: f32, // gradient of a row that is not valid: 0 if the row is ignored, else NaN
    valid: bool, // whether the target is a token and all logits are finite
}

// Stores the losses of a row, and returns the row's `Slope`.
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
    let pull = 2.0 * params.z * lse; // derivative of the z-loss with respect to lse
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

// Returns the sums over a thread's logits. The thread has `loads` vectors of four logits in flight.
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

// Returns the sums with four more logits. `gap` and `share` are only computed for label smoothing.
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

// Returns the sums over the row. `part` has the sums over the thread's logits.
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

// Returns log(1 + x) for x >= 0. WGSL allows log an absolute error near 1, which is large compared
// to a result near 0. So for x below 1/2, the function computes the series of
// 2 * artanh(x / (2 + x)).
fn log_one_plus(x: f32) -> f32 {
    let s = x / (2.0 + x);
    let t = s * s;
    let series = 2.0 * s * (1.0 + t * (1.0 / 3.0 + t * (0.2 + t * (1.0 / 7.0 + t / 9.0))));
    return select(log(1.0 + x), series, x < 0.5);
}
