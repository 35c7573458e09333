// newton_schulz: replaces a Gram matrix by the polynomial of a Newton-Schulz iteration.
//
//   gram = A I + B gram + C square,  where square = gram gram was computed before
//
// Muon's coefficients (K. Jordan et al., https://kellerjordan.github.io/posts/muon) bring singular
// values between 1e-3 and 1 close to 1 in five iterations.
//
// binding 0  gram    read_write  (matrices, n, n), f32, or half precision if `half` is set, two per
//   word
// binding 1  square  read        (matrices, n, n), f32
// binding 2  dims    uniform     elements, n
// dispatch: one thread per two elements
//!override half = 0
//!include lm/elements.wgsl

const A: f32 = 3.4445;
const B: f32 = -4.775;
const C: f32 = 2.0315;

//!let element = f32
//!if half
  //!let element = u32
  //!include lm/two_halves.wgsl
//!end
@group(0) @binding(0) var<storage, read_write> gram: array<{element}>;
@group(0) @binding(1) var<storage, read> square: array<f32>;
@group(0) @binding(2) var<uniform> dims: vec4<u32>;

fn polynomial(i: u32, of_gram: f32) -> f32 {
    let diagonal = select(0.0, A, i / dims.y % dims.y == i % dims.y);
    return diagonal + B * of_gram + C * square[i];
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn newton_schulz(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let word = flat_element(workgroup, workgroups, local_index);
    let first = 2u * word;
    let second = first + 1u;
    if (first >= dims.x) { return; }
//!if half
    let before = unpack2x16float(gram[word]);
    let low = polynomial(first, before.x);
    let halves = two_halves(vec2<f32>(low, polynomial(min(second, dims.x - 1u), before.y)));
    // If the number of elements is odd, the upper half of the last word is not an element.
    let kept = (halves & 0xffffu) | (gram[word] & 0xffff0000u);
    gram[word] = select(kept, halves, second < dims.x);
//!else
    gram[first] = polynomial(first, gram[first]);
    if (second < dims.x) {
        gram[second] = polynomial(second, gram[second]);
    }
//!end
}
