// Gradients of causal attention (05_attention.wgsl), of queries.
//
//   p[t, u]    = exp(scale q[t] . k[u] - log_sum_exp[t])           for u <= t
//   ds[t, u]   = scale p[t, u] (grad_out[t] . v[u] - delta[t]),    delta[t] = grad_out[t] . out[t]
//   grad_q[t]  = sum over u of ds[t, u] k[u]
//
// Probabilities are computed anew from what the forward pass left; every sum has a fixed order.
//!include lm/attention_gradients.wgsl

// attention_delta
// binding 0  attended       read        (N, H * D): out
// binding 1  grad_attended  read        (N, H * D): grad_out
// binding 2  row_sums       read_write  (N, H): delta
// binding 3  delta_dims     uniform     elements of row_sums
// dispatch: one thread a head of a row
@group(0) @binding(0) var<storage, read> attended: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> grad_attended: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> row_sums: array<f32>;
@group(0) @binding(3) var<uniform> delta_dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn attention_delta(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    if (i < delta_dims.x) {
        var sum = 0.0;
        for (var quad = 0u; quad < HEAD_QUADS; quad++) {
            sum += dot(attended[i * HEAD_QUADS + quad], grad_attended[i * HEAD_QUADS + quad]);
        }
        row_sums[i] = sum;
    }
}

// attention_backward_q
// binding 0  params       uniform     sizes
// binding 1  q            read        (N, H * D)
// binding 2  k            read        (N, K * D)
// binding 3  v            read        (N, K * D)
// binding 4  grad_out     read        (N, H * D)
// binding 5  log_sum_exp  read        (N, H)
// binding 6  delta        read        (N, H)
// binding 7  grad_q       read_write  (N, H * D)
// dispatch: one workgroup a block of BLOCK_ROWS queries of a head, the longest ones first
@group(0) @binding(7) var<storage, read_write> grad_q: array<vec4<f32>>;

@compute @workgroup_size(THREADS)
fn attention_backward_q(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let group = flat_group(workgroup, workgroups);
    let blocks = (params.seq + BLOCK_ROWS - 1u) / BLOCK_ROWS;
    let columns = params.workgroups / blocks; // B * H
    if (group < params.workgroups) {
        let head = group % params.heads;
        let sequence = group % columns / params.heads * params.seq;
        let first = (blocks - 1u - group / columns) * BLOCK_ROWS;
        let query = Corner(sequence, params.heads, head, first, 0u);
        let kv_head = head / (params.heads / params.kv_heads);
        gather_query(query, Corner(sequence, params.kv_heads, kv_head, 0u, 0u), local_index);
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
    let end = min(query.row + BLOCK_ROWS, params.seq);
    for (var first = 0u; first < end; first += BLOCK_ROWS) {
        let key = moved(keys, first, 0u);
        var ds = query_key_scores(query, key, local_index);
        let slopes = grad_value_scores(query, key, local_index);
        let rows = lane_rows(first, local_index);
        ds.upper = score_gradients(ds.upper, slopes.upper, rows, upper, upper_log, upper_delta);
        ds.lower = score_gradients(ds.lower, slopes.lower, rows, lower, lower_log, lower_delta);
        result = add_keys(result, ds, key, local_index);
        if (HEAD_QUADS > LANES) {
            wide = add_keys(wide, ds, moved(key, 0u, LANES), local_index);
        }
    }
    store_grad_q(query, result, local_index);
    if (HEAD_QUADS > LANES) {
        store_grad_q(moved(query, 0u, LANES), wide, local_index);
    }
}

// grad_out V^T of queries that are own rows and keys that are other rows.
fn grad_value_scores(query: Corner, key: Corner, local_index: u32) -> Block {
    var scores = Block();
    var own = load_grad_out(query, DEPTH_QUADS, local_index);
    var other = load_v(key, DEPTH_QUADS, local_index);
    for (var quad = DEPTH_QUADS; quad < HEAD_QUADS + DEPTH_QUADS; quad += DEPTH_QUADS) {
        stage_scores(own, other, local_index);
        if (quad < HEAD_QUADS) {
            own = load_grad_out(moved(query, 0u, quad), DEPTH_QUADS, local_index);
            other = load_v(moved(key, 0u, quad), DEPTH_QUADS, local_index);
        }
        scores = add_scores(scores, local_index);
    }
    return scores;
}

// ds of own queries; keys are those of the lane.
fn score_gradients(
    scores: mat4x4<f32>,
    slopes: mat4x4<f32>,
    keys: vec4<u32>,
    rows: vec4<u32>,
    logs: vec4<f32>,
    deltas: vec4<f32>,
) -> mat4x4<f32> {
    return mat4x4<f32>(
        probabilities(scores[0], logs.xxxx, keys, rows.xxxx) * (slopes[0] - deltas.x),
        probabilities(scores[1], logs.yyyy, keys, rows.yyyy) * (slopes[1] - deltas.y),
        probabilities(scores[2], logs.zzzz, keys, rows.zzzz) * (slopes[2] - deltas.z),
        probabilities(scores[3], logs.wwww, keys, rows.wwww) * (slopes[3] - deltas.w),
    );
}

// result + (weights) (columns of K from the corner on); `weights` are the thread's own.
fn add_keys(result: Block, weights: Block, corner: Corner, local_index: u32) -> Block {
    var sum = result;
    var piece = load_k(corner, LANES, local_index);
    for (var row = piece_rows(); row <= BLOCK_ROWS; row += piece_rows()) {
        stage_piece(piece, weights, row - piece_rows(), local_index);
        if (row < BLOCK_ROWS) {
            piece = load_k(moved(corner, row, 0u), LANES, local_index);
        }
        sum = add_piece(sum, local_index);
    }
    return sum;
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
