// scale: multiplies all elements by the same number.
//
//   out[i] = factor * x[i]
//
// binding 0  x       read        elements of any shape
// binding 1  out     read_write  elements
// binding 2  n       uniform     elements
// binding 3  params  uniform     factor
// dispatch: one thread per element
//!include lm/elements.wgsl

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<uniform> n: u32;
@group(0) @binding(3) var<uniform> params: vec4<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn scale(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < n) {
        out[i] = params.x * x[i];
    }
}
