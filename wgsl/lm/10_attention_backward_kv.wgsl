// attention_backward_kv: computes the gradients of attention for keys and values.
//
//   grad_k[u]  = sum over t, and over the query heads that share u, of ds[t, u] q[t]
//   grad_v[u]  = sum over t, and over the query heads that share u, of p[t, u] grad_out[t]
//
// attention_gradients.wgsl defines p and ds.
//
// binding 0  params       uniform     sizes
// binding 1  q            read        (N, H * D)
// binding 2  k            read        (N, K * D)
// binding 3  v            read        (N, K * D)
// binding 4  grad_out     read        (N, H * D)
// binding 5  log_sum_exp  read        (N, H)
// binding 6  delta        read        (N, H), then (N,): the first key that each row sees
// binding 7  grad_k       read_write  (N, K * D)
// binding 8  grad_v       read_write  (N, K * D)
// dispatch: one workgroup per 64 columns of a block of BLOCK_ROWS keys of a key/value head; blocks
//   that most queries see come first; scores of wider heads are computed twice, which keeps
//   accumulators in registers
//!include lm/attention_gradients.wgsl

@group(0) @binding(7) var<storage, read_write> grad_k: array<vec4<f32>>;
@group(0) @binding(8) var<storage, read_write> grad_v: array<vec4<f32>>;

@compute @workgroup_size(THREADS)
fn attention_backward_kv(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let group = flat_group(workgroup, workgroups);
    let blocks = (params.seq + BLOCK_ROWS - 1u) / BLOCK_ROWS;
    let columns = params.workgroups / blocks; // B * K * number of sets of 64 columns
    if (group < params.workgroups) {
        let sets = (HEAD_QUADS + LANES - 1u) / LANES;
        let kv_head = group % columns / sets % params.kv_heads;
        let sequence = group % columns / sets / params.kv_heads * params.seq;
        let first = group / columns * BLOCK_ROWS;
        let key = Corner(sequence, params.kv_heads, kv_head, first, 0u);
        gather_key(key, group % sets * LANES, local_index);
    }
}

// Computes a block of grad_k and grad_v: the rows of the workgroup's keys, in the 64 columns from
// 4 * quad on.
fn gather_key(key: Corner, quad: u32, local_index: u32) {
    var from_k = Block();
    var from_v = Block();
    let upper = upper_rows(key.row, local_index);
    let lower = upper + 4u;
    let group_size = params.heads / params.kv_heads;
    for (var member = 0u; member < group_size; member++) {
        let head = key.head * group_size + member;
        for (var first = key.row; first < params.seq; first += BLOCK_ROWS) {
            let query = Corner(key.sequence, params.heads, head, first, 0u);
            if (start_of(query, first) >= key.row + BLOCK_ROWS) {
                break; // no query of this block or of a later one sees the keys
            }
            let columns = moved(query, 0u, quad);
            let queries = lane_rows(first, local_index);
            let logs = query_logs(query, queries);
            var p = scores_of(K, key, Q, query, local_index);
            let firsts = query_starts(query, queries);
            p.upper = key_probabilities(p.upper, logs, upper, queries, firsts);
            p.lower = key_probabilities(p.lower, logs, lower, queries, firsts);
            from_v = add_weighted_rows(from_v, p, GRAD_OUT, columns, local_index);
            var ds = scores_of(V, key, GRAD_OUT, query, local_index);
            let deltas = query_deltas(query, queries);
            ds.upper = key_score_gradients(p.upper, ds.upper, deltas);
            ds.lower = key_score_gradients(p.lower, ds.lower, deltas);
            from_k = add_weighted_rows(from_k, ds, Q, columns, local_index);
        }
    }
    store_grad_kv(moved(key, 0u, quad), from_k, from_v, local_index);
}

// Returns the probabilities of four own keys and the lane's four queries. Column i of a mat4x4
// value holds the probabilities of key i.
fn key_probabilities(
    scores: mat4x4<f32>,
    logs: vec4<f32>,
    keys: vec4<u32>,
    queries: vec4<u32>,
    firsts: vec4<u32>,
) -> mat4x4<f32> {
    return mat4x4<f32>(
        probabilities(scores[0], logs, keys.xxxx, queries, firsts),
        probabilities(scores[1], logs, keys.yyyy, queries, firsts),
        probabilities(scores[2], logs, keys.zzzz, queries, firsts),
        probabilities(scores[3], logs, keys.wwww, queries, firsts),
    );
}

fn key_score_gradients(
    p: mat4x4<f32>, slopes: mat4x4<f32>, deltas: vec4<f32>
) -> mat4x4<f32> {
    return mat4x4<f32>(
        p[0] * (slopes[0] - deltas),
        p[1] * (slopes[1] - deltas),
        p[2] * (slopes[2] - deltas),
        p[3] * (slopes[3] - deltas),
    );
}

fn store_grad_kv(corner: Corner, ds_q: Block, p_g: Block, local_index: u32) {
    let row = local_index / LANES * 8u;
    let lane = local_index % LANES;
    store_grad_kv_row(corner, row, ds_q.upper[0], p_g.upper[0], lane);
    store_grad_kv_row(corner, row + 1u, ds_q.upper[1], p_g.upper[1], lane);
    store_grad_kv_row(corner, row + 2u, ds_q.upper[2], p_g.upper[2], lane);
    store_grad_kv_row(corner, row + 3u, ds_q.upper[3], p_g.upper[3], lane);
    store_grad_kv_row(corner, row + 4u, ds_q.lower[0], p_g.lower[0], lane);
    store_grad_kv_row(corner, row + 5u, ds_q.lower[1], p_g.lower[1], lane);
    store_grad_kv_row(corner, row + 6u, ds_q.lower[2], p_g.lower[2], lane);
    store_grad_kv_row(corner, row + 7u, ds_q.lower[3], p_g.lower[3], lane);
}

fn store_grad_kv_row(corner: Corner, row: u32, ds_q: vec4<f32>, p_g: vec4<f32>, lane: u32) {
    if (is_inside(corner, row, lane)) {
        let i = source_index(corner, row, lane);
        grad_k[i] = params.scale * ds_q;
        grad_v[i] = p_g;
    }
}
