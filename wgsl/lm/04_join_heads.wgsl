// join_heads: computes the gradient of split_heads. It rotates the gradients of queries and keys
// back, and joins the gradients of queries, keys and values in one tensor.
//
//   x[i], x[i + D/2] = q[i] cos + q[i + D/2] sin, q[i + D/2] cos - q[i] sin; the same for k; x = v
//
// binding 0  grad_q     read        (N, H * D), four per element
// binding 1  grad_k     read        (N, K * D), four per element
// binding 2  grad_v     read        (N, K * D), four per element
// binding 3  cosines    read        (positions, D/2), four per element
// binding 4  sines      read        (positions, D/2), four per element
// binding 5  positions  read        (N,)
// binding 6  grad_x     read_write  (N, R), half precision, a vector per element
// binding 7  params     uniform     sizes
// dispatch: one thread per 4 * `fours` pairs of columns; D/2 is a multiple of 4 * `fours`
//!include lm/packed_heads.wgsl
//!include lm/four_halves.wgsl

alias Vector = vec{2 * fours}<u32>;

@group(0) @binding(0) var<storage, read> grad_q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> grad_k: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> grad_v: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> cosines: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> sines: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> positions: array<u32>;
@group(0) @binding(6) var<storage, read_write> grad_x: array<Vector>;
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
    if (i >= params.vectors) { return; }
    let at = place_of(i);
    let angle = {fours}u * (positions[at.row] * params.half_width + at.column);
    let is_turned = at.kind != 2u;
    //!for k in 0..fours
    let left_{k} = gradient(at.kind, {fours}u * at.alone + {k}u);
    let right_{k} = gradient(at.kind, {fours}u * (at.alone + params.half_width) + {k}u);
    let cosine_{k} = select(vec4<f32>(1.0), cosines[angle + {k}u], is_turned);
    let sine_{k} = select(vec4<f32>(), sines[angle + {k}u], is_turned);
    //!end
    grad_x[at.packed] = Vector(
        //!for k in 0..fours
        four_halves(left_{k} * cosine_{k} + right_{k} * sine_{k}),
        //!end
    );
    grad_x[at.packed + params.half_width] = Vector(
        //!for k in 0..fours
        four_halves(right_{k} * cosine_{k} - left_{k} * sine_{k}),
        //!end
    );
}
