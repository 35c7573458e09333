// The activations of feed-forward networks and their slopes. ACTIVATION chooses one.
//
// A new activation has a number here, which llmgpu/lm/ops/activations.py reads, and a branch in
// `activated` and in `slope`.

const SILU: u32 = 0u; // x * sigmoid(x)
const GELU: u32 = 1u; // x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))

override ACTIVATION: u32 = SILU;

const SQRT_2_OVER_PI: f32 = 0.7978845608;
const GELU_CUBIC: f32 = 0.044715;

fn activated(x: f32) -> f32 {
    if (ACTIVATION == GELU) {
        return 0.5 * x * (1.0 + gelu_tanh(x));
    }
    return x * sigmoid(x);
}

fn slope(x: f32) -> f32 {
    if (ACTIVATION == GELU) {
        let t = gelu_tanh(x);
        let of_tanh = SQRT_2_OVER_PI * (1.0 + 3.0 * GELU_CUBIC * x * x);
        return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * of_tanh;
    }
    let s = sigmoid(x);
    return s * (1.0 + x * (1.0 - s));
}

// Returns factor * activated(x). For SiLU the factors are multiplied from left to right, which
// fixes the rounding.
fn times_activated(factor: f32, x: f32) -> f32 {
    if (ACTIVATION == SILU) {
        return factor * x * sigmoid(x);
    }
    return factor * activated(x);
}

// Returns factor * slope(x). For SiLU the factors are multiplied from left to right, which fixes
// the rounding.
fn times_slope(factor: f32, x: f32) -> f32 {
    if (ACTIVATION == SILU) {
        let s = sigmoid(x);
        return factor * s * (1.0 + x * (1.0 - s));
    }
    return factor * slope(x);
}

fn sigmoid(value: f32) -> f32 {
    return 1.0 / (1.0 + exp(-value));
}

// Returns the tanh of GELU. The argument of tanh is clamped, because devices that compute tanh by
// exponentials overflow for large arguments. tanh(20) rounds to 1 in f32.
fn gelu_tanh(value: f32) -> f32 {
    let inner = SQRT_2_OVER_PI * (value + GELU_CUBIC * value * value * value);
    return tanh(clamp(inner, -20.0, 20.0));
}
