// Rounds four numbers to half precision, two per word. `Device.choose_halves` replaces this file by
// packed_halves.wgsl on devices where both give the same bits.
//!include lm/half_bits.wgsl

fn four_halves(values: vec4<f32>) -> vec2<u32> {
    return four_half_bits(values);
}
