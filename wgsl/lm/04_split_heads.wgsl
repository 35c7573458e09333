// split_heads: copies queries, keys and values from one tensor to three, and rotates queries and
// keys by position.
//
//   q[i], q[i + D/2] = x[i] cos - x[i + D/2] sin, x[i + D/2] cos + x[i] sin; the same for k; v = x
//
// binding 0  x          read        (N, R), half precision, four per element
// binding 1  cosines    read        (positions, D/2), four per element
// binding 2  sines      read        (positions, D/2), four per element
// binding 3  positions  read        (N,)
// binding 4  q          read_write  (N, H * D), half precision, four per element
// binding 5  k          read_write  (N, K * D), half precision, four per element
// binding 6  v          read_write  (N, K * D), half precision, four per element
// binding 7  params     uniform     sizes
// dispatch: one thread per four pairs of columns; D is a multiple of 8
//!include lm/packed_heads.wgsl
//!include lm/four_halves.wgsl

@group(0) @binding(0) var<storage, read> x: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> cosines: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> sines: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> positions: array<u32>;
@group(0) @binding(4) var<storage, read_write> q: array<vec2<u32>>;
@group(0) @binding(5) var<storage, read_write> k: array<vec2<u32>>;
@group(0) @binding(6) var<storage, read_write> v: array<vec2<u32>>;
@group(0) @binding(7) var<uniform> params: HeadParams;

@compute @workgroup_size(WORKGROUP_SIZE)
fn split_heads(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i >= params.fours) { return; }
    let at = place_of(i);
    let next = at.alone + params.half_width;
    let halves = array(x[at.packed], x[at.packed + params.half_width]);
    if (at.kind == 2u) {
        v[at.alone] = halves[0];
        v[next] = halves[1];
        return;
    }
    let angle = positions[at.row] * params.half_width + at.column;
    let left = four_singles(halves[0]);
    let right = four_singles(halves[1]);
    let turned_left = four_halves(left * cosines[angle] - right * sines[angle]);
    let turned_right = four_halves(right * cosines[angle] + left * sines[angle]);
    if (at.kind == 0u) {
        q[at.alone] = turned_left;
        q[next] = turned_right;
    } else {
        k[at.alone] = turned_left;
        k[next] = turned_right;
    }
}
