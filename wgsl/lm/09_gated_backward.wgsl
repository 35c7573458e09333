// gated_backward: computes the gradients of gated.
//
//   grad_gate = grad_out * up * slope(gate),  grad_up = grad_out * activated(gate)
//
// binding 0  gate       read        (N, F)
// binding 1  up         read        (N, F)
// binding 2  grad_out   read        (N, F)
// binding 3  grad_gate  read_write  (N, F)
// binding 4  grad_up    read_write  (N, F)
// binding 5  dims       uniform     elements
// dispatch: one thread per element
//!include lm/elements.wgsl
//!include lm/activations.wgsl

@group(0) @binding(0) var<storage, read> gate: array<f32>;
@group(0) @binding(1) var<storage, read> up: array<f32>;
@group(0) @binding(2) var<storage, read> grad_out: array<f32>;
@group(0) @binding(3) var<storage, read_write> grad_gate: array<f32>;
@group(0) @binding(4) var<storage, read_write> grad_up: array<f32>;
@group(0) @binding(5) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn gated_backward(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < dims.x) {
        grad_gate[i] = times_slope(grad_out[i] * up[i], gate[i]);
        grad_up[i] = times_activated(grad_out[i], gate[i]);
    }
}
