// Rounds two numbers to half precision, and packs them into a u32.

// If a number is NaN or beyond the range of half precision, both become infinite, so that the
// result shows the overflow.
fn two_halves(pair: vec2<f32>) -> u32 {
    return select(0x7c007c00u, pack2x16float(pair), all(abs(pair) < vec2<f32>(65520.0)));
}
