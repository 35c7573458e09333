// attention_backward_q: computes the gradient of attention for queries.
//
//   grad_q[t]  = sum over u of ds[t, u] k[u]
//
// attention_gradients.wgsl defines ds.
//
// binding 0  params       uniform     sizes
// binding 1  q            read        (N, H * D)
// binding 2  k            read        (N, K * D)
// binding 3  v            read        (N, K * D)
// binding 4  grad_out     read        (N, H * D)
// binding 5  log_sum_exp  read        (N, H)
// binding 6  delta        read        (N, H), then (N,): the first key that each row sees
// binding 7  grad_q       read_write  (N, H * D)
// dispatch: one workgroup per block of BLOCK_ROWS queries of a head; blocks that see most keys
//   first
//!include lm/attention_gradients.wgsl

@group(0) @binding(7) var<storage, read_write> grad_q: array<vec4<f32>>;

@compute @workgroup_size(THREADS)
fn attention_backward_q(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let group = flat_group(workgroup, workgroups);
    if (group < params.workgroups) {
        let query = query_block(group);
        gather_query(query, keys_of(query), local_index);
    }
}

fn gather_query(query: Corner, keys: Corner, local_index: u32) {
    var result = Block();
    var wide = Block();
    let upper = upper_rows(query.row, local_index);
    let lower = upper + 4u;
    let upper_log = query_logs(query, upper);
    let lower_log = query_logs(query, lower);
    let upper_delta = query_deltas(query, upper);
    let lower_delta = query_deltas(query, lower);
    let upper_start = query_starts(query, upper);
    let lower_start = query_starts(query, lower);
    let end = min(query.row + BLOCK_ROWS, params.seq);
    let begin = start_of(query, query.row) / BLOCK_ROWS * BLOCK_ROWS;
    for (var first = begin; first < end; first += BLOCK_ROWS) {
        let key = moved(keys, first, 0u);
        var ds = scores_of(Q, query, K, key, local_index);
        let slopes = scores_of(GRAD_OUT, query, V, key, local_index);
        let rows = lane_rows(first, local_index);
        ds.upper = score_gradients(
            ds.upper, slopes.upper, rows, upper, upper_start, upper_log, upper_delta
        );
        ds.lower = score_gradients(
            ds.lower, slopes.lower, rows, lower, lower_start, lower_log, lower_delta
        );
        result = add_weighted_rows(result, ds, K, key, local_index);
        if (HEAD_QUADS > LANES) {
            wide = add_weighted_rows(wide, ds, K, moved(key, 0u, LANES), local_index);
        }
    }
    store_grad_q(query, result, local_index);
    if (HEAD_QUADS > LANES) {
        store_grad_q(moved(query, 0u, LANES), wide, local_index);
    }
}

// Returns ds of four own queries and the lane's four keys. Column i of a mat4x4 value belongs to
// query i.
fn score_gradients(
    scores: mat4x4<f32>,
    slopes: mat4x4<f32>,
    keys: vec4<u32>,
    rows: vec4<u32>,
    firsts: vec4<u32>,
    logs: vec4<f32>,
    deltas: vec4<f32>,
) -> mat4x4<f32> {
    return mat4x4<f32>(
        probabilities(scores[0], logs.xxxx, keys, rows.xxxx, firsts.xxxx)
            * (slopes[0] - deltas.x),
        probabilities(scores[1], logs.yyyy, keys, rows.yyyy, firsts.yyyy)
            * (slopes[1] - deltas.y),
        probabilities(scores[2], logs.zzzz, keys, rows.zzzz, firsts.zzzz)
            * (slopes[2] - deltas.z),
        probabilities(scores[3], logs.wwww, keys, rows.wwww, firsts.wwww)
            * (slopes[3] - deltas.w),
    );
}

fn store_grad_q(corner: Corner, block: Block, local_index: u32) {
    let row = local_index / LANES * 8u;
    let lane = local_index % LANES;
    store_grad_q_row(corner, row, block.upper[0], lane);
    store_grad_q_row(corner, row + 1u, block.upper[1], lane);
    store_grad_q_row(corner, row + 2u, block.upper[2], lane);
    store_grad_q_row(corner, row + 3u, block.upper[3], lane);
    store_grad_q_row(corner, row + 4u, block.lower[0], lane);
    store_grad_q_row(corner, row + 5u, block.lower[1], lane);
    store_grad_q_row(corner, row + 6u, block.lower[2], lane);
    store_grad_q_row(corner, row + 7u, block.lower[3], lane);
}

fn store_grad_q_row(corner: Corner, row: u32, value: vec4<f32>, lane: u32) {
    if (is_inside(corner, row, lane)) {
        grad_q[source_index(corner, row, lane)] = params.scale * value;
    }
}
