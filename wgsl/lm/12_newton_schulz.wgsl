// newton_schulz: the polynomial of a Newton-Schulz iteration.
//
//   square = A I + B gram + C square,  square = gram gram before
//
// Muon's coefficients (K. Jordan et al., https://kellerjordan.github.io/posts/muon) bring singular
// values between 1e-3 and 1 close to 1 in five iterations.
//
// binding 0  gram    read        (matrices, n, n)
// binding 1  square  read_write  as gram
// binding 2  dims    uniform     elements, n
// dispatch: one thread per element
//!include lm/elements.wgsl

const A: f32 = 3.4445;
const B: f32 = -4.775;
const C: f32 = 2.0315;

@group(0) @binding(0) var<storage, read> gram: array<f32>;
@group(0) @binding(1) var<storage, read_write> square: array<f32>;
@group(0) @binding(2) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn newton_schulz(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < dims.x) {
        let diagonal = select(0.0, A, i / dims.y % dims.y == i % dims.y);
        square[i] = diagonal + B * gram[i] + C * square[i];
    }
}
