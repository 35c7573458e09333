// split_heads: copies queries, keys and values from one tensor to three, and rotates queries and
// keys by position.
//
//   q[i], q[i + D/2] = x[i] cos - x[i + D/2] sin, x[i + D/2] cos + x[i] sin; the same for k; v = x
//
// binding 0  x          read        (N, R), half precision, a vector per element
// binding 1  cosines    read        (positions, D/2), four per element
// binding 2  sines      read        (positions, D/2), four per element
// binding 3  positions  read        (N,)
// binding 4  q          read_write  (N, H * D), half precision, a vector per element
// binding 5  k          read_write  (N, K * D), half precision, a vector per element
// binding 6  v          read_write  (N, K * D), half precision, a vector per element
// binding 7  params     uniform     sizes
// dispatch: one thread per 4 * `fours` pairs of columns; D/2 is a multiple of 4 * `fours`
//!include lm/packed_heads.wgsl
//!include lm/four_halves.wgsl

alias Vector = vec{2 * fours}<u32>;

@group(0) @binding(0) var<storage, read> x: array<Vector>;
@group(0) @binding(1) var<storage, read> cosines: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> sines: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> positions: array<u32>;
@group(0) @binding(4) var<storage, read_write> q: array<Vector>;
@group(0) @binding(5) var<storage, read_write> k: array<Vector>;
@group(0) @binding(6) var<storage, read_write> v: array<Vector>;
@group(0) @binding(7) var<uniform> params: HeadParams;

@compute @workgroup_size(WORKGROUP_SIZE)
fn split_heads(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i >= params.vectors) { return; }
    let at = place_of(i);
    let next = at.alone + params.half_width;
    let lefts = x[at.packed];
    let rights = x[at.packed + params.half_width];
    if (at.kind == 2u) {
        v[at.alone] = lefts;
        v[next] = rights;
        return;
    }
    let angle = {fours}u * (positions[at.row] * params.half_width + at.column);
    //!for n in 0..fours
    let cosine_{n} = cosines[angle + {n}u];
    let sine_{n} = sines[angle + {n}u];
    let left_{n} = four_singles(vec2<u32>(lefts[{2 * n}], lefts[{2 * n + 1}]));
    let right_{n} = four_singles(vec2<u32>(rights[{2 * n}], rights[{2 * n + 1}]));
    //!end
    let turned_left = Vector(
        //!for n in 0..fours
        four_halves(left_{n} * cosine_{n} - right_{n} * sine_{n}),
        //!end
    );
    let turned_right = Vector(
        //!for n in 0..fours
        four_halves(right_{n} * cosine_{n} + left_{n} * sine_{n}),
        //!end
    );
    if (at.kind == 0u) {
        q[at.alone] = turned_left;
        q[next] = turned_right;
    } else {
        k[at.alone] = turned_left;
        k[next] = turned_right;
    }
}
