// Four numbers rounded to half precision, two per word. `Device.choose_halves` puts
// packed_halves.wgsl in the place of this file where both give the same bits.
//!include lm/half_bits.wgsl

fn four_halves(values: vec4<f32>) -> vec2<u32> {
    return four_half_bits(values);
}
