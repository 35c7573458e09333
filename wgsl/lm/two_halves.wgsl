// Round two numbers to half precision, and pack them into a u32.

// Numbers beyond the range of half precision and NaN become infinite, so that overflow is seen.
fn two_halves(pair: vec2<f32>) -> u32 {
    return select(0x7c007c00u, pack2x16float(pair), all(abs(pair) < vec2<f32>(65520.0)));
}
