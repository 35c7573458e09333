// attention_cached: attention of new rows to a cache of keys and values, for generation.
//
//   out[n] = sum over u <= positions[n] of p[n, u] v[u],  p[n, u] ~ exp(scale q[n] . k[u])
//
// Heads are grouped and sums kept as in 05_attention.wgsl, a workgroup's size of keys at a time.
//
// binding 0  params     uniform     sizes; seq is L
// binding 1  q          read        (N, H * D)
// binding 2  k          read        (L, K * D)
// binding 3  v          read        (L, K * D)
// binding 4  positions  read        (N,)
// binding 5  out        read_write  (N, H * D)
// dispatch: one workgroup a head of a row
//!include common/reduce.wgsl
//!include lm/attention_params.wgsl

const LOWEST: f32 = -3.0e38; // the score of a thread without a key

@group(0) @binding(4) var<storage, read> positions: array<u32>;
@group(0) @binding(5) var<storage, read_write> out: array<vec4<f32>>;

var<workgroup> sh_exponentials: array<f32, WORKGROUP_SIZE>;
var<workgroup> sh_parts: array<vec4<f32>, WORKGROUP_SIZE>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn attention_cached(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let group = flat_group(workgroup, workgroups);
    if (group < params.workgroups) {
        let kv_head = group % params.heads / (params.heads / params.kv_heads);
        let keys = min(positions[group / params.heads], params.seq - 1u) + 1u;
        attend_to_cache(group, kv_head, keys, local_index);
    }
}

// One key a thread for scores; for the result one column / 4 and every `slices`-th key a thread.
fn attend_to_cache(query: u32, kv_head: u32, keys: u32, local_index: u32) {
    let slices = WORKGROUP_SIZE / HEAD_QUADS;
    let slice = local_index / HEAD_QUADS;
    let column = local_index % HEAD_QUADS;
    var largest = LOWEST;
    var sum = 0.0;
    var result = vec4<f32>();
    for (var first = 0u; first < keys; first += WORKGROUP_SIZE) {
        let here = min(keys - first, WORKGROUP_SIZE);
        var score = LOWEST;
        if (local_index < here) {
            score = cached_score(query, (first + local_index) * params.kv_heads + kv_head);
        }
        let before = largest;
        largest = max(largest, workgroup_max(score, local_index));
        let weight = select(0.0, exp2(score - largest), local_index < here);
        sh_exponentials[local_index] = weight;
        workgroupBarrier();
        let factor = exp2(before - largest);
        sum = fma(sum, factor, weight);
        result *= factor;
        for (var key = slice; key < here && slice < slices; key += slices) {
            let row = (first + key) * params.kv_heads + kv_head;
            result = fma(vec4<f32>(sh_exponentials[key]), v[row * HEAD_QUADS + column], result);
        }
        workgroupBarrier();
    }
    sh_parts[local_index] = result;
    let total = workgroup_sum(sum, local_index);
    if (local_index < HEAD_QUADS) {
        for (var part = 1u; part < slices; part++) {
            result += sh_parts[part * HEAD_QUADS + local_index];
        }
        out[query * HEAD_QUADS + local_index] = result / total;
    }
}

fn cached_score(query: u32, key: u32) -> f32 {
    var score = 0.0;
    for (var quad = 0u; quad < HEAD_QUADS; quad++) {
        score += dot(q[query * HEAD_QUADS + quad], k[key * HEAD_QUADS + quad]);
    }
    return score * params.log2_scale;
}
