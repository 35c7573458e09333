// gelu_backward: the gradient of gelu.
//
//   with t = tanh(u), u = sqrt(2 / pi) * (x + 0.044715 x^3):
//   grad_x = grad_out * ((1 + t) / 2 + x / 2 * (1 - t^2) * sqrt(2 / pi) * (1 + 0.134145 x^2))
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
fn gelu_backward(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < dims.x) {
        let t = gelu_tanh(x[i]);
        let slope = SQRT_2_OVER_PI * (1.0 + 3.0 * GELU_CUBIC * x[i] * x[i]);
        grad_x[i] = grad_out[i] * (0.5 * (1.0 + t) + 0.5 * x[i] * (1.0 - t * t) * slope);
    }
}
