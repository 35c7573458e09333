// cast_f16_to_f32: converts half-precision numbers to single precision, without any rounding.
//
// binding 0  src  read        elements of any shape, f16
// binding 1  dst  read_write  elements, f32
// binding 2  n    uniform     elements
// dispatch: one thread per element
// source: cast_f16_to_f32.
enable f16;
//!include lm/elements.wgsl

@group(0) @binding(0) var<storage, read> src: array<f16>;
@group(0) @binding(1) var<storage, read_write> dst: array<f32>;
@group(0) @binding(2) var<uniform> n: u32;

@compute @workgroup_size(WORKGROUP_SIZE)
fn cast_f16_to_f32(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < n) {
        dst[i] = f32(src[i]);
    }
}
