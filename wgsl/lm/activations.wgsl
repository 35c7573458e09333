// What the feed-forward network's functions and their derivatives share.

const SQRT_2_OVER_PI: f32 = 0.7978845608;
const GELU_CUBIC: f32 = 0.044715;

fn sigmoid(value: f32) -> f32 {
    return 1.0 / (1.0 + exp(-value));
}

fn four_sigmoids(values: vec4<f32>) -> vec4<f32> {
    return 1.0 / (1.0 + exp(-values));
}

// tanh is 1 in f32 well before 20; devices may compute it by exponentials, which overflow later.
fn gelu_tanh(value: f32) -> f32 {
    let inner = SQRT_2_OVER_PI * (value + GELU_CUBIC * value * value * value);
    return tanh(clamp(inner, -20.0, 20.0));
}
