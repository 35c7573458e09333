// Numbers that the host writes before each step of the optimizer.

struct Hyper {
    learning_rate: f32,
    one_minus_beta1: f32,  // not beta1, because 1 - 0.999 has few correct digits in f32
    one_minus_beta2: f32,
    epsilon: f32,
    weight_decay: f32,
    bias_correction1: f32, // 1 - beta1^t, t = 1 in the first step
    bias_correction2: f32,
    max_norm: f32,         // 0 or less: gradients are not clipped
    inverse_count: f32,    // one over the number of targets
    inverse_scale: f32,    // one over the loss scale
    slot: u32,             // row of the history that this step writes
    momentum: f32,         // momentum of Muon
}
