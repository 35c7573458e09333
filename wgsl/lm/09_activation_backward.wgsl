// activation_backward: computes the gradient of activation.
//
//   grad_x = grad_out * slope(x)
//
// binding 0  x         read        (N, F)
// binding 1  grad_out  read        (N, F)
// binding 2  grad_x    read_write  (N, F)
// binding 3  dims      uniform     elements
// dispatch: one thread per element
//!include lm/elements.wgsl
//!include lm/activations.wgsl

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> grad_out: array<f32>;
@group(0) @binding(2) var<storage, read_write> grad_x: array<f32>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn activation_backward(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < dims.x) {
        grad_x[i] = times_slope(grad_out[i], x[i]);
    }
}
