// round_to_half: rounds numbers to the nearest half-precision numbers (ties to even); numbers
// beyond their range become infinite.
//
// Unlike with cast_f32_to_f16, an overflow shows in the result: numbers of 65520 or more become
// infinite, and NaN stays NaN. If the number of elements is odd, the upper half of the last word is
// not written.
//
// binding 0  src  read        elements of any shape, f32, four at a time
// binding 1  dst  read_write  elements, f16, two per word
// binding 2  n    uniform     elements
// dispatch: one thread per four elements
//!include lm/elements.wgsl
//!include lm/half_bits.wgsl

@group(0) @binding(0) var<storage, read> src: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> dst: array<u32>;
@group(0) @binding(2) var<uniform> n: u32;

// The word; its upper half stays if only one element is left.
fn kept(word: u32, halves: u32, left: u32) -> u32 {
    if (left > 1u) { return halves; }
    return (halves & 0xffffu) | (dst[word] & 0xffff0000u);
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
    let four = src[i];
    let halves = four_halves(four);
    dst[2u * i] = kept(2u * i, halves.x, left);
    if (left > 2u) {
        dst[2u * i + 1u] = kept(2u * i + 1u, halves.y, left - 2u);
    }
}
