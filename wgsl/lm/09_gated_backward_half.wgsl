// gated_backward_half: the gradients of gated_half, of gate and up side by side, and its output again.
//
//   grad_gate = grad_out * up * slope(gate),  grad_up = grad_out * activated(gate)
//   out = activated(gate) * up
//
// binding 0  x         read        (N, R), half precision, four per element; gate comes first, up last
// binding 1  grad_out  read        (N, F), half precision, four per element
// binding 2  grad_x    read_write  (N, R), half precision, four per element
// binding 3  dims      uniform     N * F/4, F/4, R/4
// binding 4  out       read_write  (N, F), half precision, four per element
// dispatch: one thread per four elements of grad_out; F is a multiple of 4, and so is R
//!include lm/elements.wgsl
//!include lm/activations.wgsl
//!include lm/four_halves.wgsl

@group(0) @binding(0) var<storage, read> x: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> grad_out: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> grad_x: array<vec2<u32>>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<vec2<u32>>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn gated_backward_half(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < dims.x) {
        let gate_ix = i / dims.y * dims.z + i % dims.y;
        let up_ix = gate_ix + dims.z - dims.y;
        let gate = four_singles(x[gate_ix]);
        let up = four_singles(x[up_ix]);
        let gradient = four_singles(grad_out[i]);
        let slopes = vec4<f32>(slope(gate.x), slope(gate.y), slope(gate.z), slope(gate.w));
        grad_x[gate_ix] = four_halves(gradient * up * slopes);
        grad_x[up_ix] = four_halves(vec4<f32>(
            times_activated(gradient.x, gate.x),
            times_activated(gradient.y, gate.y),
            times_activated(gradient.z, gate.z),
            times_activated(gradient.w, gate.w),
        ));
        let values = vec4<f32>(activated(gate.x), activated(gate.y), activated(gate.z), activated(gate.w));
        out[i] = four_halves(values * up);
    }
}
