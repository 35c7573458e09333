// Rounds numbers to half precision without overflow.
enable f16;

const HALF_MAX: f32 = 65504.0;

// Returns a neighbouring half-precision number, or +-HALF_MAX for numbers beyond it. NaN stays NaN.
fn saturate_to_half(value: f32) -> f16 {
    // clamp() may turn NaN into a bound.
    let is_nan = (bitcast<u32>(value) & 0x7fffffffu) > 0x7f800000u;
    return f16(select(clamp(value, -HALF_MAX, HALF_MAX), value, is_nan));
}

fn saturate_to_halves(values: vec4<f32>) -> vec4<f16> {
    return vec4<f16>(
        saturate_to_half(values.x),
        saturate_to_half(values.y),
        saturate_to_half(values.z),
        saturate_to_half(values.w),
    );
}
