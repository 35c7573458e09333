// gated_half: the activation of a feed-forward network with a gate, in half precision. A row of the
// input has the values of gate, then those of up.
//
//   out = activated(gate) * up
//
// binding 0  x     read        (N, R), half precision, four per element; gate comes first, up last
// binding 1  out   read_write  (N, F), half precision, four per element
// binding 2  dims  uniform     N * F/4, F/4, R/4
// dispatch: one thread per four elements of out; F is a multiple of 4, and so is R
//!include lm/elements.wgsl
//!include lm/activations.wgsl
//!include lm/four_halves.wgsl

@group(0) @binding(0) var<storage, read> x: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> out: array<vec2<u32>>;
@group(0) @binding(2) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn gated_half(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < dims.x) {
        let place = i / dims.y * dims.z + i % dims.y;
        let gate = four_singles(x[place]);
        let values = vec4<f32>(activated(gate.x), activated(gate.y), activated(gate.z), activated(gate.w));
        out[i] = four_halves(values * four_singles(x[place + dims.z - dims.y]));
    }
}
