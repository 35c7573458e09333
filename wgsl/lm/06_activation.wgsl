// activation: computes the activation of a feed-forward network without a gate.
//
//   out = activated(x)
//
// binding 0  x     read        (N, F)
// binding 1  out   read_write  (N, F)
// binding 2  dims  uniform     elements
// dispatch: one thread per element
//!include lm/elements.wgsl
//!include lm/activations.wgsl

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn activation(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < dims.x) {
        out[i] = activated(x[i]);
    }
}
