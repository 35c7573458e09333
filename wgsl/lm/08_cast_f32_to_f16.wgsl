// cast_f32_to_f16: rounds numbers to the nearest half-precision numbers (ties to even).
//
// Numbers beyond +-65504, even infinities, become +-65504; NaN stays NaN. WGSL leaves to the device
// which neighbour a conversion rounds to, whether halves below 2^-14 become 0, and what clamp makes
// of NaN. NaN is recognized by its bits, because compilers may replace x != x by false. If the
// number of elements is odd, the upper half of the last word is not written.
//
// binding 0  src  read        elements of any shape, f32
// binding 1  dst  read_write  elements, f16
// binding 2  n    uniform     elements
// dispatch: one thread per element
// source: cast_f32_to_f16, f16(clamp(x)). Here the bits are computed, because WGSL leaves rounding
//   to the device.
//!include lm/half.wgsl
//!include lm/elements.wgsl

@group(0) @binding(0) var<storage, read> src: array<f32>;
@group(0) @binding(1) var<storage, read_write> dst: array<f16>;
@group(0) @binding(2) var<uniform> n: u32;

@compute @workgroup_size(WORKGROUP_SIZE)
fn cast_f32_to_f16(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < n) {
        dst[i] = saturate_to_half(src[i]);
    }
}
