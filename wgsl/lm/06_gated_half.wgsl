// gated_half: computes the activation of a feed-forward network with a gate, in half precision. A
// row of the input holds a row of gate, then a row of up.
//
//   out = activated(gate) * up
//
// binding 0  x     read        (N, R), half precision, a vector per element; gate fills the first F
//   columns, and up the last F
// binding 1  out   read_write  (N, F), half precision, a vector per element
// binding 2  dims  uniform     number of vectors in out, in a row of out, in a row of x
// dispatch: one thread per 4 * `fours` elements of out; F and R are multiples of 4 * `fours`
//!include lm/elements.wgsl
//!include lm/activations.wgsl
//!include lm/four_halves.wgsl
//!override fours = 1

alias Vector = vec{2 * fours}<u32>;

@group(0) @binding(0) var<storage, read> x: array<Vector>;
@group(0) @binding(1) var<storage, read_write> out: array<Vector>;
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
        let gates = x[place];
        let ups = x[place + dims.z - dims.y];
        out[i] = Vector(
            //!for k in 0..fours
            four_gated(
                vec2<u32>(gates[{2 * k}], gates[{2 * k + 1}]),
                vec2<u32>(ups[{2 * k}], ups[{2 * k + 1}]),
            ),
            //!end
        );
    }
}

fn four_gated(gates: vec2<u32>, ups: vec2<u32>) -> vec2<u32> {
    let gate = four_singles(gates);
    let values = vec4<f32>(activated(gate.x), activated(gate.y), activated(gate.z), activated(gate.w));
    return four_halves(values * four_singles(ups));
}
