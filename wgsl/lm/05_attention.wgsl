// Causal attention with grouped heads, and the same against a cache of keys and values.
//
//   out[t] = sum over u <= t of p[t, u] v[u],  p[t, u] = exp(scale q[t] . k[u] - log_sum_exp[t])
//
// Head h of H uses head h / (H / K) of the K heads of keys and values; scale = 1 / sqrt(D). Scores are
// never stored: with m the largest score so far, sums of exp(score - m) are kept and rescaled when m
// grows (M. Milakov, N. Gimelshein, arXiv 1805.02867; T. Dao et al., FlashAttention, 2205.14135).
//!include common/reduce.wgsl
//!include lm/attention_tiles.wgsl

const LOWEST: f32 = -3.0e38; // the score of what is not to be seen

// attention
// binding 0  params       uniform     sizes
// binding 1  q            read        (N, H * D)
// binding 2  k            read        (N, K * D)
// binding 3  v            read        (N, K * D)
// binding 4  out          read_write  (N, H * D)
// binding 5  log_sum_exp  read_write  (N, H)
// dispatch: one workgroup a block of BLOCK_ROWS queries of a head, the longest ones first
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> log_sum_exp: array<f32>;

@compute @workgroup_size(THREADS)
fn attention(
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
        attend(query, Corner(sequence, params.kv_heads, kv_head, 0u, 0u), local_index);
    }
}

fn attend(query: Corner, keys: Corner, local_index: u32) {
    var result = Block();
    var wide = Block();
    var upper_max = vec4<f32>(LOWEST);
    var lower_max = vec4<f32>(LOWEST);
    var upper_sum = vec4<f32>();
    var lower_sum = vec4<f32>();
    let upper = upper_rows(query.row, local_index);
    let lower = upper + 4u;
    let end = min(query.row + BLOCK_ROWS, params.seq);
    for (var first = 0u; first < end; first += BLOCK_ROWS) {
        let key = moved(keys, first, 0u);
        var p = query_key_scores(query, key, local_index);
        if (first + BLOCK_ROWS > query.row) {
            let rows = lane_rows(first, local_index);
            p.upper = hide_later(p.upper, rows, upper);
            p.lower = hide_later(p.lower, rows, lower);
        }
        exchange(row_max(p.upper), row_max(p.lower), local_index);
        let upper_before = upper_max;
        let lower_before = lower_max;
        for (var lane = 0u; lane < LANES; lane++) {
            upper_max = max(upper_max, exchanged(lane, 0u, local_index));
            lower_max = max(lower_max, exchanged(lane, 1u, local_index));
        }
        p.upper = exponentials(p.upper, upper_max);
        p.lower = exponentials(p.lower, lower_max);
        let upper_factor = exp2(params.log2_scale * (upper_before - upper_max));
        let lower_factor = exp2(params.log2_scale * (lower_before - lower_max));
        upper_sum = fma(upper_sum, upper_factor, row_sum(p.upper));
        lower_sum = fma(lower_sum, lower_factor, row_sum(p.lower));
        result.upper = scale_rows(result.upper, upper_factor);
        result.lower = scale_rows(result.lower, lower_factor);
        result = add_values(result, p, key, local_index);
        if (HEAD_QUADS > LANES) {
            wide.upper = scale_rows(wide.upper, upper_factor);
            wide.lower = scale_rows(wide.lower, lower_factor);
            wide = add_values(wide, p, moved(key, 0u, LANES), local_index);
        }
    }
    exchange(upper_sum, lower_sum, local_index);
    upper_sum = vec4<f32>();
    lower_sum = vec4<f32>();
    for (var lane = 0u; lane < LANES; lane++) {
        upper_sum += exchanged(lane, 0u, local_index);
        lower_sum += exchanged(lane, 1u, local_index);
    }
    if (local_index % LANES == 0u) {
        store_log_sums(query, upper, params.scale * upper_max + log(upper_sum));
        store_log_sums(query, lower, params.scale * lower_max + log(lower_sum));
    }
    let upper_factor = 1.0 / upper_sum;
    let lower_factor = 1.0 / lower_sum;
    store_out(query, upper, scale_rows(result.upper, upper_factor), local_index);
    store_out(query, lower, scale_rows(result.lower, lower_factor), local_index);
    if (HEAD_QUADS > LANES) {
        let corner = moved(query, 0u, LANES);
        store_out(corner, upper, scale_rows(wide.upper, upper_factor), local_index);
        store_out(corner, lower, scale_rows(wide.lower, lower_factor), local_index);
    }
}

fn hide_later(scores: mat4x4<f32>, keys: vec4<u32>, rows: vec4<u32>) -> mat4x4<f32> {
    let hidden = vec4<f32>(LOWEST);
    return mat4x4<f32>(
        select(hidden, scores[0], keys <= rows.xxxx),
        select(hidden, scores[1], keys <= rows.yyyy),
        select(hidden, scores[2], keys <= rows.zzzz),
        select(hidden, scores[3], keys <= rows.wwww),
    );
}

fn row_max(rows: mat4x4<f32>) -> vec4<f32> {
    let columns = transpose(rows);
    return max(max(columns[0], columns[1]), max(columns[2], columns[3]));
}

fn row_sum(rows: mat4x4<f32>) -> vec4<f32> {
    let columns = transpose(rows);
    return (columns[0] + columns[1]) + (columns[2] + columns[3]);
}

// Store a number of each own row for the threads of the group.
fn exchange(upper: vec4<f32>, lower: vec4<f32>, local_index: u32) {
    workgroupBarrier();
    sh_tiles[local_index / 2u][local_index % 2u * 2u] = upper;
    sh_tiles[local_index / 2u][local_index % 2u * 2u + 1u] = lower;
    workgroupBarrier();
}

// What a lane of the group stored, half 0 or 1.
fn exchanged(lane: u32, half: u32, local_index: u32) -> vec4<f32> {
    let other = local_index / LANES * LANES + lane;
    return sh_tiles[other / 2u][other % 2u * 2u + half];
}

// exp(scale * (score - largest)); the difference first, since large scores have few digits after it.
fn exponentials(scores: mat4x4<f32>, largest: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(
        exp2(params.log2_scale * (scores[0] - largest.x)),
        exp2(params.log2_scale * (scores[1] - largest.y)),
        exp2(params.log2_scale * (scores[2] - largest.z)),
        exp2(params.log2_scale * (scores[3] - largest.w)),
    );
}

// result + (weights) (columns of V from the corner on); `weights` are the thread's own.
fn add_values(result: Block, weights: Block, corner: Corner, local_index: u32) -> Block {
    var sum = result;
    var piece = load_v(corner, LANES, local_index);
    for (var row = piece_rows(); row <= BLOCK_ROWS; row += piece_rows()) {
        stage_piece(piece, weights, row - piece_rows(), local_index);
        if (row < BLOCK_ROWS) {
            piece = load_v(moved(corner, row, 0u), LANES, local_index);
        }
        sum = add_piece(sum, local_index);
    }
    return sum;
}

fn store_log_sums(query: Corner, rows: vec4<u32>, values: vec4<f32>) {
    store_log_sum(query, rows.x, values.x);
    store_log_sum(query, rows.y, values.y);
    store_log_sum(query, rows.z, values.z);
    store_log_sum(query, rows.w, values.w);
}

fn store_log_sum(query: Corner, row: u32, value: f32) {
    if (row < params.seq) {
        log_sum_exp[(query.sequence + row) * query.heads + query.head] = value;
    }
}

fn store_out(corner: Corner, rows: vec4<u32>, values: mat4x4<f32>, local_index: u32) {
    store_out_row(corner, rows.x, values[0], local_index % LANES);
    store_out_row(corner, rows.y, values[1], local_index % LANES);
    store_out_row(corner, rows.z, values[2], local_index % LANES);
    store_out_row(corner, rows.w, values[3], local_index % LANES);
}

fn store_out_row(corner: Corner, row: u32, value: vec4<f32>, lane: u32) {
    let from_corner = row - corner.row;
    if (is_inside(corner, from_corner, lane)) {
        out[source_index(corner, from_corner, lane)] = value;
    }
}

// attention_cached
// binding 0  params      uniform     sizes; seq is L
// binding 1  q           read        (N, H * D)
// binding 2  k           read        (L, K * D)
// binding 3  v           read        (L, K * D)
// binding 4  positions   read        (N,)
// binding 5  cached_out  read_write  (N, H * D)
// dispatch: one workgroup a head of a row
@group(0) @binding(4) var<storage, read> positions: array<u32>;
@group(0) @binding(5) var<storage, read_write> cached_out: array<vec4<f32>>;

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
        cached_out[query * HEAD_QUADS + local_index] = result / total;
    }
}

fn cached_score(query: u32, key: u32) -> f32 {
    var score = 0.0;
    for (var quad = 0u; quad < HEAD_QUADS; quad++) {
        score += dot(q[query * HEAD_QUADS + quad], k[key * HEAD_QUADS + quad]);
    }
    return score * params.log2_scale;
}

// cache_append
// binding 0  appended          read        (N, K * D)
// binding 1  cache             read_write  (L, K * D)
// binding 2  append_positions  read        (N,)
// binding 3  append_dims       uniform     elements, width
// dispatch: one thread an element
@group(0) @binding(0) var<storage, read> appended: array<f32>;
@group(0) @binding(1) var<storage, read_write> cache: array<f32>;
@group(0) @binding(2) var<storage, read> append_positions: array<u32>;
@group(0) @binding(3) var<uniform> append_dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn cache_append(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    if (i < append_dims.x) {
        cache[append_positions[i / append_dims.y] * append_dims.y + i % append_dims.y] = appended[i];
    }
}
