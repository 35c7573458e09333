// round_to_half: the nearest half-precision numbers (ties to even), infinite beyond their range.
//
// Unlike cast_f32_to_f16 it lets an overflow be seen: from 65520 on, infinities too, the result is
// infinite, and NaN stays NaN. WGSL leaves conversions of such numbers to the device, so their bits
// are put together here. The last word keeps its upper half where the number of elements is odd.
//
// binding 0  singles  read        elements of any shape, f32, four at a time
// binding 1  words    read_write  elements, f16, two a word
// binding 2  n        uniform     elements
// dispatch: one thread four elements
//!include lm/elements.wgsl

@group(0) @binding(0) var<storage, read> singles: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> words: array<u32>;
@group(0) @binding(2) var<uniform> n: u32;

const ALMOST_HALF_ULP: u32 = 0xfffu; // of a half, in the bits of a single
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
        // Adding 0.5 leaves the half's last bit in that of the sum, rounded.
        return sign | (bitcast<u32>(bitcast<f32>(size) + 0.5) - 0x3f000000u);
    }
    let rounded = size + ALMOST_HALF_ULP + ((size >> 13u) & 1u);
    return sign | ((rounded - 0x38000000u) >> 13u);
}

// The word with its upper half as it is where only one element is left.
fn kept(word: u32, halves: u32, left: u32) -> u32 {
    if (left > 1u) { return halves; }
    return (halves & 0xffffu) | (words[word] & 0xffff0000u);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn round_to_half(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (4u * i >= n) { return; }
    let left = n - 4u * i;
    let four = singles[i];
    let first = half_bits(four.x) | (half_bits(four.y) << 16u);
    words[2u * i] = kept(2u * i, first, left);
    if (left > 2u) {
        let second = half_bits(four.z) | (half_bits(four.w) << 16u);
        words[2u * i + 1u] = kept(2u * i + 1u, second, left - 2u);
    }
}
