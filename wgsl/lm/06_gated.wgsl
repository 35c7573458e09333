// gated: computes the activation of a feed-forward network with a gate.
//
//   out = activated(gate) * up
//
// binding 0  gate  read        (N, F)
// binding 1  up    read        (N, F)
// binding 2  out   read_write  (N, F)
// binding 3  dims  uniform     elements
// dispatch: one thread per element
//!include lm/elements.wgsl
//!include lm/activations.wgsl

@group(0) @binding(0) var<storage, read> gate: array<f32>;
@group(0) @binding(1) var<storage, read> up: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn gated(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < dims.x) {
        out[i] = activated(gate[i]) * up[i];
    }
}
