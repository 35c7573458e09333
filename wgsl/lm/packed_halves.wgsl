// Rounds four numbers to half precision, two per word, by the device's conversion, which takes one
// or two instructions; `half_bits` takes about 15. WGSL leaves the rounding to the device, so this
// file replaces four_halves.wgsl only on devices where both give the same bits. If one of the
// numbers is beyond the range of half precision, `half_bits` rounds them.
//!include lm/half_bits.wgsl

const HALF_RANGE: f32 = 65520.0;

fn four_halves(values: vec4<f32>) -> vec2<u32> {
    if (all(abs(values) < vec4<f32>(HALF_RANGE))) {
        return vec2<u32>(pack2x16float(values.xy), pack2x16float(values.zw));
    }
    return four_half_bits(values);
}
