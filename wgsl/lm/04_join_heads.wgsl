// join_heads: the gradient of split_heads.
//
//   x[i], x[i + D/2] = q[i] cos + q[i + D/2] sin, q[i + D/2] cos - q[i] sin; the same for k; x = v
//
// binding 0  grad_q     read        (N, H * D), four per element
// binding 1  grad_k     read        (N, K * D), four per element
// binding 2  grad_v     read        (N, K * D), four per element
// binding 3  cosines    read        (positions, D/2), four per element
// binding 4  sines      read        (positions, D/2), four per element
// binding 5  positions  read        (N,)
// binding 6  grad_x     read_write  (N, R), half precision, four per element
// binding 7  params     uniform     sizes
// dispatch: one thread per four pairs of columns; D is a multiple of 8
//!include lm/packed_heads.wgsl
//!include lm/four_halves.wgsl

@group(0) @binding(0) var<storage, read> grad_q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> grad_k: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> grad_v: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> cosines: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> sines: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> positions: array<u32>;
@group(0) @binding(6) var<storage, read_write> grad_x: array<vec2<u32>>;
@group(0) @binding(7) var<uniform> params: HeadParams;

fn gradient(kind: u32, i: u32) -> vec4<f32> {
    if (kind == 0u) { return grad_q[i]; }
    if (kind == 1u) { return grad_k[i]; }
    return grad_v[i];
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn join_heads(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i >= params.fours) { return; }
    let at = place_of(i);
    let left = gradient(at.kind, at.alone);
    let right = gradient(at.kind, at.alone + params.half_width);
    let angle = positions[at.row] * params.half_width + at.column;
    let is_turned = at.kind != 2u;
    let cosine = select(vec4<f32>(1.0), cosines[angle], is_turned);
    let sine = select(vec4<f32>(), sines[angle], is_turned);
    grad_x[at.packed] = four_halves(left * cosine + right * sine);
    grad_x[at.packed + params.half_width] = four_halves(right * cosine - left * sine);
}
