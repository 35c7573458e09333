// Causal attention with grouped heads, and the same against a cache of keys and values.
//
//   out[t] = sum over u <= t of p[t, u] v[u],  p[t, u] = exp(scale q[t] . k[u] - log_sum_exp[t])
//
// Head h of H uses head h / (H / K) of the K heads of keys and values; scale = 1 / sqrt(D). Scores
// are never stored: with m the largest score so far, sums of exp(score - m) are kept and rescaled when
// m grows (M. Milakov, N. Gimelshein, arXiv 1805.02867; T. Dao et al., FlashAttention, 2205.14135).
//!include common/reduce.wgsl
//!include lm/attention_tiles.wgsl

const LOWEST: f32 = -3.0e38; // the score of what is not to be seen

// A number of each of the thread's own rows.
struct RowNumbers {
    upper: vec4<f32>,
    lower: vec4<f32>,
}

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
    var largest = RowNumbers(vec4<f32>(LOWEST), vec4<f32>(LOWEST));
    var sum = RowNumbers();
    let end = min(query.row + BLOCK_ROWS, params.seq);
    for (var first = 0u; first < end; first += BLOCK_ROWS) {
        let key = moved(keys, first, 0u);
        var p = query_key_scores(query, key, local_index);
        if (first + BLOCK_ROWS > query.row) {
            p = hide_later(p, query, key, local_index);
        }
        let before = largest;
        largest = max_of_lanes(before, p, local_index);
        p = Block(exponentials(p.upper, largest.upper), exponentials(p.lower, largest.lower));
        let factor = RowNumbers(
            exp2(params.log2_scale * (before.upper - largest.upper)),
            exp2(params.log2_scale * (before.lower - largest.lower)),
        );
        sum.upper = fma(sum.upper, factor.upper, row_sum(p.upper));
        sum.lower = fma(sum.lower, factor.lower, row_sum(p.lower));
        result = add_values(scaled(result, factor), p, key, local_index);
        if (HEAD_QUADS > LANES) {
            wide = add_values(scaled(wide, factor), p, moved(key, 0u, LANES), local_index);
        }
    }
    sum = sum_of_lanes(sum, local_index);
    store_log_sums(query, largest, sum, local_index);
    let factor = RowNumbers(1.0 / sum.upper, 1.0 / sum.lower);
    store_out(query, scaled(result, factor), local_index);
    if (HEAD_QUADS > LANES) {
        store_out(moved(query, 0u, LANES), scaled(wide, factor), local_index);
    }
}

fn hide_later(scores: Block, query: Corner, key: Corner, local_index: u32) -> Block {
    let keys = lane_rows(key.row, local_index);
    let rows = upper_rows(query.row, local_index);
    return Block(hide_half(scores.upper, keys, rows), hide_half(scores.lower, keys, rows + 4u));
}

fn hide_half(scores: mat4x4<f32>, keys: vec4<u32>, rows: vec4<u32>) -> mat4x4<f32> {
    let hidden = vec4<f32>(LOWEST);
    return mat4x4<f32>(
        select(hidden, scores[0], keys <= rows.xxxx),
        select(hidden, scores[1], keys <= rows.yyyy),
        select(hidden, scores[2], keys <= rows.zzzz),
        select(hidden, scores[3], keys <= rows.wwww),
    );
}

// The largest score of each row: what was before, and those of all lanes of the group.
fn max_of_lanes(before: RowNumbers, scores: Block, local_index: u32) -> RowNumbers {
    exchange(RowNumbers(row_max(scores.upper), row_max(scores.lower)), local_index);
    var largest = before;
    for (var lane = 0u; lane < LANES; lane++) {
        let other = exchanged(lane, local_index);
        largest = RowNumbers(max(largest.upper, other.upper), max(largest.lower, other.lower));
    }
    return largest;
}

fn sum_of_lanes(value: RowNumbers, local_index: u32) -> RowNumbers {
    exchange(value, local_index);
    var sum = RowNumbers();
    for (var lane = 0u; lane < LANES; lane++) {
        let other = exchanged(lane, local_index);
        sum = RowNumbers(sum.upper + other.upper, sum.lower + other.lower);
    }
    return sum;
}

// Store the thread's numbers for the threads of its group.
fn exchange(value: RowNumbers, local_index: u32) {
    workgroupBarrier();
    sh_tiles[local_index / 2u][local_index % 2u * 2u] = value.upper;
    sh_tiles[local_index / 2u][local_index % 2u * 2u + 1u] = value.lower;
    workgroupBarrier();
}

// What a lane of the group stored.
fn exchanged(lane: u32, local_index: u32) -> RowNumbers {
    let other = local_index / LANES * LANES + lane;
    let first = other % 2u * 2u;
    return RowNumbers(sh_tiles[other / 2u][first], sh_tiles[other / 2u][first + 1u]);
}

fn row_max(rows: mat4x4<f32>) -> vec4<f32> {
    let columns = transpose(rows);
    return max(max(columns[0], columns[1]), max(columns[2], columns[3]));
}

fn row_sum(rows: mat4x4<f32>) -> vec4<f32> {
    let columns = transpose(rows);
    return (columns[0] + columns[1]) + (columns[2] + columns[3]);
}

fn scaled(block: Block, factor: RowNumbers) -> Block {
    return Block(scale_rows(block.upper, factor.upper), scale_rows(block.lower, factor.lower));
}

fn scale_rows(rows: mat4x4<f32>, factors: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(
        rows[0] * factors.x, rows[1] * factors.y, rows[2] * factors.z, rows[3] * factors.w
    );
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

// The same for all lanes of a group: the first one stores them.
fn store_log_sums(query: Corner, largest: RowNumbers, sum: RowNumbers, local_index: u32) {
    if (local_index % LANES == 0u) {
        let rows = upper_rows(query.row, local_index);
        store_four_log_sums(query, rows, params.scale * largest.upper + log(sum.upper));
        store_four_log_sums(query, rows + 4u, params.scale * largest.lower + log(sum.lower));
    }
}

fn store_four_log_sums(query: Corner, rows: vec4<u32>, values: vec4<f32>) {
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

fn store_out(corner: Corner, block: Block, local_index: u32) {
    let row = local_index / LANES * 8u;
    let lane = local_index % LANES;
    store_out_row(corner, row, block.upper[0], lane);
    store_out_row(corner, row + 1u, block.upper[1], lane);
    store_out_row(corner, row + 2u, block.upper[2], lane);
    store_out_row(corner, row + 3u, block.upper[3], lane);
    store_out_row(corner, row + 4u, block.lower[0], lane);
    store_out_row(corner, row + 5u, block.lower[1], lane);
    store_out_row(corner, row + 6u, block.lower[2], lane);
    store_out_row(corner, row + 7u, block.lower[3], lane);
}

fn store_out_row(corner: Corner, row: u32, value: vec4<f32>, lane: u32) {
    if (is_inside(corner, row, lane)) {
        out[source_index(corner, row, lane)] = value;
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
