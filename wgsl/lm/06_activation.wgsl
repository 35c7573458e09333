// The nonlinear functions inside the feed-forward network.
//
//   swiglu:  out = gate * sigmoid(gate) * up
//   gelu:    out = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
//
// Shapes: all (N, F), taken as one list of elements.
//!include lm/elements.wgsl
//!include lm/activations.wgsl

// swiglu
// binding 0  gate  read        (N, F)
// binding 1  up    read        (N, F)
// binding 2  out   read_write  (N, F)
// binding 3  dims  uniform     elements
// dispatch: one thread an element
@group(0) @binding(0) var<storage, read> gate: array<f32>;
@group(0) @binding(1) var<storage, read> up: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn swiglu(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < dims.x) {
        out[i] = gate[i] * sigmoid(gate[i]) * up[i];
    }
}

// gelu
// binding 0  x         read        (N, F)
// binding 1  gelu_out  read_write  (N, F)
// binding 2  gelu_dims uniform     elements
// dispatch: one thread an element
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> gelu_out: array<f32>;
@group(0) @binding(2) var<uniform> gelu_dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn gelu(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < gelu_dims.x) {
        gelu_out[i] = 0.5 * x[i] * (1.0 + gelu_tanh(x[i]));
    }
}
