// attention_cached: computes attention of new rows to a cache of keys and values, for generation.
//
//   out[n] = sum over u <= position[n] of p[n, u] v[s + u],  p[n, u] ~ exp(scale q[n] . k[s + u])
//
// where s is the row of the cache at which the sequence of n starts. Heads are grouped, and sums
// are rescaled, as in 05_attention.wgsl. A workgroup processes WORKGROUP_SIZE keys at a time.
//
// binding 0  params  uniform     sizes; seq is L
// binding 1  q       read        (N, H * D)
// binding 2  cache   read        (L, 2 * K * D), keys and values
// binding 3  places  read        (2, N), positions and the rows of the cache where sequences start
// binding 4  out     read_write  (N, H * D)
// dispatch: one workgroup per head of a row
//!include common/reduce.wgsl
//!include lm/attention_sizes.wgsl

override HEAD_QUADS: u32 = 16u; // head width / 4

const LOWEST: f32 = -3.0e38; // the score of a thread without a key

@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> cache: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> places: array<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;

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
        let row = group / params.heads;
        let start = places[params.workgroups / params.heads + row];
        let keys = min(places[row], params.seq - 1u - start) + 1u;
        attend_to_cache(group, start * 2u * params.kv_heads + kv_head, keys, local_index);
    }
}

// Computes attention of one head of a row. A thread computes the score of one key. For the result,
// it adds up four columns, 4 * `column` and on, of every `slices`-th value. A row of the cache has
// 2 * kv_heads heads, and first_key and `step` count heads. first_key is the sequence's first key.
fn attend_to_cache(query: u32, first_key: u32, keys: u32, local_index: u32) {
    let step = 2u * params.kv_heads; // heads from a key to the next
    let first_value = first_key + params.kv_heads;
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
            score = cached_score(query, first_key + (first + local_index) * step);
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
            let value = cache[(first_value + (first + key) * step) * HEAD_QUADS + column];
            result = fma(vec4<f32>(sh_exponentials[key]), value, result);
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
        score += dot(q[query * HEAD_QUADS + quad], cache[key * HEAD_QUADS + quad]);
    }
    return score * params.log2_scale;
}
