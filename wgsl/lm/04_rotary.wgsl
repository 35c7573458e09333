// rotary: computes the rotary position embedding (J. Su et al., RoFormer, arXiv 2104.09864). It
// rotates columns i and i + D/2 of each head by an angle that grows with the position.
//
//   x[i], x[i + D/2] = x[i] cos - x[i + D/2] sin, x[i + D/2] cos + x[i] sin
//
// The gradient is rotated by the opposite angle, with `inverse`.
//
// binding 0  x          read_write  (N, heads * D)
// binding 1  cosines    read        (positions, D/2)
// binding 2  sines      read        (positions, D/2)
// binding 3  positions  read        (N,)
// binding 4  params     uniform     sizes
// dispatch: one thread per pair of columns
//!include lm/elements.wgsl

struct RotaryParams {
    pairs: u32, // N * heads * D/2
    heads: u32,
    half_width: u32, // D/2
    inverse: u32, // 1 to rotate by the opposite angle
}

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> cosines: array<f32>;
@group(0) @binding(2) var<storage, read> sines: array<f32>;
@group(0) @binding(3) var<storage, read> positions: array<u32>;
@group(0) @binding(4) var<uniform> params: RotaryParams;

@compute @workgroup_size(WORKGROUP_SIZE)
fn rotary(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let pair = flat_element(workgroup, workgroups, local_index);
    if (pair < params.pairs) {
        let column = pair % params.half_width;
        let head = pair / params.half_width; // index among the heads of all rows
        let angle = positions[head / params.heads] * params.half_width + column;
        let sine = select(sines[angle], -sines[angle], params.inverse == 1u);
        let left_ix = head * 2u * params.half_width + column;
        let right_ix = left_ix + params.half_width;
        let left = x[left_ix];
        let right = x[right_ix];
        x[left_ix] = left * cosines[angle] - right * sine;
        x[right_ix] = right * cosines[angle] + left * sine;
    }
}
