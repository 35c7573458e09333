// Computes one step of AdamW on four elements.
//
//   first  += (1 - beta1) (g - first),  second += (1 - beta2) (g^2 - second),  g = clip_scale gradient
//   parameter *= 1 - learning_rate weight_decay                (if the tensor has weight decay)
//   parameter -= learning_rate / bias_correction1 * first / (sqrt(second / bias_correction2) + epsilon)
//
// I. Loshchilov, F. Hutter, Decoupled Weight Decay Regularization, arXiv 1711.05101.
//!include lm/hyper.wgsl

struct Adamw {
    parameter: vec4<f32>,
    first: vec4<f32>,
    second: vec4<f32>,
}

// Returns the parameter and its moments after a step. `g` is the clipped gradient.
fn adamw(before: Adamw, g: vec4<f32>, options: Hyper, decays: bool) -> Adamw {
    let first = before.first + options.one_minus_beta1 * (g - before.first);
    let second = before.second + options.one_minus_beta2 * (g * g - before.second);
    let denominator = sqrt(second) / sqrt(options.bias_correction2) + options.epsilon;
    let step_size = options.learning_rate / options.bias_correction1;
    let kept = select(1.0, 1.0 - options.learning_rate * options.weight_decay, decays);
    return Adamw(kept * before.parameter - step_size * first / denominator, first, second);
}
