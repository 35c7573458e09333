// Sizes for the kernels of a gated feed-forward network whose weights of gate and up are packed
// into one matrix.

struct InnerParams {
    rows: u32, // N
    width: u32, // F
    up_start: u32, // row of the weights where up starts
    row_width: u32, // columns of a row of products: gate, padding and up
    quads: u32, // C / 4
    epsilon: f32,
}

@group(0) @binding(0) var<uniform> params: InnerParams;
