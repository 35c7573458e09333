// likeliest_of_parts: finds the most probable id in each part of a row of logits.
//
// Of P parts, part p consists of every P-th run of WORKGROUP_SIZE ids, beginning with run p.
//
// binding 0  dims     uniform     N, columns, tokens, parts
// binding 1  logits   read        (N, columns), of which the first `tokens` stand for tokens
// binding 2  partial  read_write  (N, parts) pairs: order of the logit (order.wgsl), id
// dispatch: one workgroup per part
//!include lm/likeliest.wgsl

@group(0) @binding(0) var<uniform> dims: vec4<u32>;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read_write> partial: array<vec2<u32>>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn likeliest_of_parts(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let group = flat_group(workgroup, workgroups);
    let row = group / dims.w;
    let part = group % dims.w;
    let end = select(0u, dims.z, row < dims.x); // threads without a row must reach the barriers
    var own = vec2<u32>(0u, 0xffffffffu);
    for (var id = part * WORKGROUP_SIZE + local_index; id < end; id += dims.w * WORKGROUP_SIZE) {
        own = likelier(own, vec2<u32>(order_of(logits[row * dims.y + id]), id));
    }
    let found = likeliest_of_workgroup(own, local_index);
    if (row < dims.x && local_index == 0u) {
        partial[group] = found;
    }
}
