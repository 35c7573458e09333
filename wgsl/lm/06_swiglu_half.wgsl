// swiglu_half: the gate of the feed-forward network in half precision.
//
//   out = gate * sigmoid(gate) * up
//
// binding 0  gate  read        (N, F), half precision, four an element
// binding 1  up    read        (N, F), half precision, four an element
// binding 2  out   read_write  (N, F), half precision, four an element
// binding 3  dims  uniform     elements / 4
// dispatch: one thread four elements
//!include lm/elements.wgsl
//!include lm/activations.wgsl
//!include lm/half_bits.wgsl

@group(0) @binding(0) var<storage, read> gate: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> up: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec2<u32>>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn swiglu_half(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < dims.x) {
        let x = four_singles(gate[i]);
        out[i] = four_halves(x * four_sigmoids(x) * four_singles(up[i]));
    }
}
