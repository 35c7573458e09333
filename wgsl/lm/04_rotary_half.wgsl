// rotary_half: computes the rotary position embedding like 04_rotary.wgsl, and rounds the result to
// half precision.
//
//   out[i], out[i + D/2] = x[i] cos - x[i + D/2] sin, x[i + D/2] cos + x[i] sin
//
// binding 0  x          read        (N, heads * D), four per element
// binding 1  cosines    read        (positions, D/2), four per element
// binding 2  sines      read        (positions, D/2), four per element
// binding 3  positions  read        (N,)
// binding 4  out        read_write  (N, heads * D), half precision, four per element
// binding 5  params     uniform     sizes, in vectors of four pairs
// dispatch: one thread per four pairs of columns; D is a multiple of 8
//!include lm/elements.wgsl
//!include lm/four_halves.wgsl

struct RotaryParams {
    fours: u32, // N * heads * D/8
    heads: u32,
    half_width: u32, // D/8
    inverse: u32, // 1 to rotate by the opposite angle
}

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> cosines: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> sines: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> positions: array<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<vec2<u32>>;
@group(0) @binding(5) var<uniform> params: RotaryParams;

@compute @workgroup_size(WORKGROUP_SIZE)
fn rotary_half(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let four = flat_element(workgroup, workgroups, local_index);
    if (four < params.fours) {
        let column = four % params.half_width;
        let head = four / params.half_width; // index among the heads of all rows
        let angle = positions[head / params.heads] * params.half_width + column;
        let cosine = cosines[angle];
        let sine = select(sines[angle], -sines[angle], params.inverse == 1u);
        let left_ix = head * 2u * params.half_width + column;
        let right_ix = left_ix + params.half_width;
        let left = x[left_ix];
        let right = x[right_ix];
        out[left_ix] = four_halves(left * cosine - right * sine);
        out[right_ix] = four_halves(right * cosine + left * sine);
    }
}
