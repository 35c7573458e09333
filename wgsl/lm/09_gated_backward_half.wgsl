// gated_backward_half: computes the gradients of gated_half, and its output once more. A row of
// grad_x holds a row of grad_gate, then a row of grad_up.
//
//   grad_gate = grad_out * up * slope(gate),  grad_up = grad_out * activated(gate)
//   out = activated(gate) * up
//
// binding 0  x         read        (N, R), half precision, a vector per element; gate fills the
//   first F columns, and up the last F
// binding 1  grad_out  read        (N, F), half precision, a vector per element
// binding 2  grad_x    read_write  (N, R), half precision, a vector per element, arranged as x
// binding 3  dims      uniform     number of vectors in out, in a row of out, in a row of x
// binding 4  out       read_write  (N, F), half precision, a vector per element
// dispatch: one thread per 4 * `fours` numbers of out; F and R are multiples of 4 * `fours`
//!include lm/elements.wgsl
//!include lm/activations.wgsl
//!include lm/four_halves.wgsl
//!override fours = 1

alias Vector = vec{2 * fours}<u32>;

@group(0) @binding(0) var<storage, read> x: array<Vector>;
@group(0) @binding(1) var<storage, read> grad_out: array<Vector>;
@group(0) @binding(2) var<storage, read_write> grad_x: array<Vector>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<Vector>;

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
        let gates = x[gate_ix];
        let ups = x[up_ix];
        let gradients = grad_out[i];
        //!for k in 0..fours
        let results_{k} = four_gradients(
            four_singles(vec2<u32>(gates[{2 * k}], gates[{2 * k + 1}])),
            four_singles(vec2<u32>(ups[{2 * k}], ups[{2 * k + 1}])),
            four_singles(vec2<u32>(gradients[{2 * k}], gradients[{2 * k + 1}])),
        );
        //!end
        //!for target part in grad_x[gate_ix] gate, grad_x[up_ix] up, out[i] out
        {target} = Vector(
            //!for k in 0..fours
            results_{k}.{part},
            //!end
        );
        //!end
    }
}

// Four elements of each result, in half precision.
struct Results {
    gate: vec2<u32>,
    up: vec2<u32>,
    out: vec2<u32>,
}

fn four_gradients(gate: vec4<f32>, up: vec4<f32>, gradient: vec4<f32>) -> Results {
    let slopes = vec4<f32>(slope(gate.x), slope(gate.y), slope(gate.z), slope(gate.w));
    let of_up = vec4<f32>(
        times_activated(gradient.x, gate.x),
        times_activated(gradient.y, gate.y),
        times_activated(gradient.z, gate.z),
        times_activated(gradient.w, gate.w),
    );
    let values = vec4<f32>(activated(gate.x), activated(gate.y), activated(gate.z), activated(gate.w));
    return Results(
        four_halves(gradient * up * slopes),
        four_halves(of_up),
        four_halves(values * up),
    );
}
