// swiglu_backward_half: the gradients of swiglu in half precision.
//
//   with s = sigmoid(gate):
//   grad_gate = grad_out * up * s * (1 + gate * (1 - s)),  grad_up = grad_out * gate * s
//
// binding 0  gate       read        (N, F), half precision, four an element
// binding 1  up         read        (N, F), half precision, four an element
// binding 2  grad_out   read        (N, F), half precision, four an element
// binding 3  grad_gate  read_write  (N, F), half precision, four an element
// binding 4  grad_up    read_write  (N, F), half precision, four an element
// binding 5  dims       uniform     elements / 4
// dispatch: one thread four elements
//!include lm/elements.wgsl
//!include lm/activations.wgsl
//!include lm/half_bits.wgsl

@group(0) @binding(0) var<storage, read> gate: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> up: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> grad_out: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> grad_gate: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read_write> grad_up: array<vec2<u32>>;
@group(0) @binding(5) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn swiglu_backward_half(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < dims.x) {
        let x = four_singles(gate[i]);
        let gradient = four_singles(grad_out[i]);
        let s = four_sigmoids(x);
        grad_gate[i] = four_halves(gradient * four_singles(up[i]) * s * (1.0 + x * (1.0 - s)));
        grad_up[i] = four_halves(gradient * x * s);
    }
}
