// attention: computes causal attention with grouped heads.
//
//   out[t] = sum over starts[t] <= u <= t of p[t, u] v[u],
//   p[t, u] = exp(scale q[t] . k[u] - log_sum_exp[t])
//
// Head h of H uses head h / (H / K) of the K heads of keys and values; scale = 1 / sqrt(D). Scores
// are never stored. With m the largest score of a row so far, the kernel keeps sums of
// exp(score - m), and rescales them when m grows (M. Milakov, N. Gimelshein, arXiv 1805.02867;
// T. Dao et al., FlashAttention, arXiv 2205.14135).
//
// binding 0  params       uniform     sizes
// binding 1  q            read        (N, H * D)
// binding 2  k            read        (N, K * D)
// binding 3  v            read        (N, K * D)
// binding 4  out          read_write  (N, H * D)
// binding 5  log_sum_exp  read_write  (N, H)
// binding 6  starts       read        (N,) first key that a row sees; never decreases in a sequence
// dispatch: one workgroup per block of BLOCK_ROWS queries of a head; blocks that see most keys
//   first
//!include lm/attention_tiles.wgsl

const LOWEST: f32 = -3.0e38; // the score of a key that the query does not attend to

// A number for each of the thread's eight rows: rows 0 to 3 in `upper`, rows 4 to 7 in `lower`.
struct RowNumbers {
    upper: vec4<f32>,
    lower: vec4<f32>,
}

@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> log_sum_exp: array<f32>;
@group(0) @binding(6) var<storage, read> starts: array<u32>;

@compute @workgroup_size(THREADS)
fn attention(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let group = flat_group(workgroup, workgroups);
    if (group < params.workgroups) {
        let query = query_block(group);
        attend(query, keys_of(query), local_index);
    }
}

fn quad_of(source: u32, i: u32) -> vec4<f32> {
    if (source == Q) {
        return q[i];
    }
    if (source == K) {
        return k[i];
    }
    return v[i];
}

fn attend(query: Corner, keys: Corner, local_index: u32) {
    var result = Block();
    var wide = Block();
    var largest = RowNumbers(vec4<f32>(LOWEST), vec4<f32>(LOWEST));
    var sum = RowNumbers();
    let end = min(query.row + BLOCK_ROWS, params.seq);
    let least_start = starts[query.sequence + query.row];
    let largest_start = starts[query.sequence + end - 1u];
    // A row may see no key of the first blocks. Its sums over these blocks are finite, and they are
    // multiplied by 0 at the first block with a key that the row sees.
    let begin = least_start / BLOCK_ROWS * BLOCK_ROWS;
    for (var first = begin; first < end; first += BLOCK_ROWS) {
        let key = moved(keys, first, 0u);
        var p = scores_of(Q, query, K, key, local_index);
        if (first + BLOCK_ROWS > query.row || first < largest_start) {
            p = hide_others(p, query, key, local_index);
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
        result = add_weighted_rows(scaled(result, factor), p, V, key, local_index);
        if (HEAD_QUADS > LANES) {
            let right = moved(key, 0u, LANES);
            wide = add_weighted_rows(scaled(wide, factor), p, V, right, local_index);
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

// Returns the scores with LOWEST for keys that a query does not see.
fn hide_others(scores: Block, query: Corner, key: Corner, local_index: u32) -> Block {
    let keys = lane_rows(key.row, local_index);
    let rows = upper_rows(query.row, local_index);
    return Block(
        hide_half(scores.upper, query, keys, rows), hide_half(scores.lower, query, keys, rows + 4u)
    );
}

fn hide_half(
    scores: mat4x4<f32>, query: Corner, keys: vec4<u32>, rows: vec4<u32>
) -> mat4x4<f32> {
    return mat4x4<f32>(
        hide_row(scores[0], query, keys, rows.x),
        hide_row(scores[1], query, keys, rows.y),
        hide_row(scores[2], query, keys, rows.z),
        hide_row(scores[3], query, keys, rows.w),
    );
}

fn hide_row(scores: vec4<f32>, query: Corner, keys: vec4<u32>, row: u32) -> vec4<f32> {
    let start = starts[query.sequence + min(row, params.seq - 1u)];
    let seen = (keys <= vec4<u32>(row)) & (keys >= vec4<u32>(start));
    return select(vec4<f32>(LOWEST), scores, seen);
}

// Returns the largest score of each row: the maximum of `before` and of the scores of all lanes of
// the thread's group.
fn max_of_lanes(before: RowNumbers, scores: Block, local_index: u32) -> RowNumbers {
    exchange(RowNumbers(row_max(scores.upper), row_max(scores.lower)), local_index);
    var largest = before;
    for (var lane = 0u; lane < LANES; lane++) {
        let other = exchanged(lane, local_index);
        largest = RowNumbers(max(largest.upper, other.upper), max(largest.lower, other.lower));
    }
    return largest;
}

// Returns the sum of each row over all lanes of the thread's group.
fn sum_of_lanes(value: RowNumbers, local_index: u32) -> RowNumbers {
    exchange(value, local_index);
    var sum = RowNumbers();
    for (var lane = 0u; lane < LANES; lane++) {
        let other = exchanged(lane, local_index);
        sum = RowNumbers(sum.upper + other.upper, sum.lower + other.lower);
    }
    return sum;
}

// Stores the thread's numbers in workgroup memory, where the threads of its group read them.
fn exchange(value: RowNumbers, local_index: u32) {
    workgroupBarrier();
    sh_tiles[local_index / 2u][local_index % 2u * 2u] = value.upper;
    sh_tiles[local_index / 2u][local_index % 2u * 2u + 1u] = value.lower;
    workgroupBarrier();
}

// Returns the numbers that a lane of the thread's group stored.
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

// Returns exp(scale * (score - largest)). The difference is computed before the product, because
// the product of the scale and a large score would be rounded to few digits after the point.
fn exponentials(scores: mat4x4<f32>, largest: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(
        exp2(params.log2_scale * (scores[0] - largest.x)),
        exp2(params.log2_scale * (scores[1] - largest.y)),
        exp2(params.log2_scale * (scores[2] - largest.z)),
        exp2(params.log2_scale * (scores[3] - largest.w)),
    );
}

// Stores log_sum_exp of the thread's rows. All lanes of a group have the same numbers, so only the
// first lane stores them.
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
