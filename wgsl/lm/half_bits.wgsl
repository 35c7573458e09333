// Rounds numbers to the nearest half-precision number (ties to even), and to infinity from 65520
// on. NaN stays NaN. In WGSL, the result of converting a number beyond the range of half precision
// depends on the device, so the bits are computed here.

// 1 less than 1/2 unit in the last place of an f16, in the bits of an f32.
const ALMOST_HALF_ULP: u32 = 0xfffu;
const SMALLEST_NORMAL: u32 = 0x38800000u; // 2^-14
const OVERFLOWS: u32 = 0x477ff000u; // 65520
const INFINITE: u32 = 0x7f800000u;

fn half_bits(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if (size >= OVERFLOWS) {
        return sign | select(0x7c00u, 0x7e00u, size > INFINITE);
    }
    if (size < SMALLEST_NORMAL) {
        // The last bits of 0.5 and of a small f16 both stand for 2^-24, so the addition rounds.
        return sign | (bitcast<u32>(bitcast<f32>(size) + 0.5) - 0x3f000000u);
    }
    let rounded = size + ALMOST_HALF_ULP + ((size >> 13u) & 1u);
    return sign | ((rounded - 0x38000000u) >> 13u);
}

// Returns four numbers rounded to half precision, two per word.
fn four_half_bits(values: vec4<f32>) -> vec2<u32> {
    return vec2<u32>(
        half_bits(values.x) | (half_bits(values.y) << 16u),
        half_bits(values.z) | (half_bits(values.w) << 16u),
    );
}

// Returns four half-precision numbers in single precision.
fn four_singles(halves: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(halves.x), unpack2x16float(halves.y));
}
