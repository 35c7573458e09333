// Products of tiles, one 8 x 4 block of the result per thread, which the attention kernels share.
//
// A workgroup owns BLOCK_ROWS rows (queries, or keys in the gradient of keys and values) and walks
// over blocks of as many rows of the other kind. It has BLOCK_ROWS / 8 groups of LANES threads. Of
// a block of scores, thread (group, lane) holds those of own rows 8 * group + i, i = 0 .. 7, and
// other rows 4 * lane + j, j = 0 .. 3. Of a result that is as wide as a head, the thread holds the
// same own rows and the columns 4 * lane + j; if heads have more than 64 columns, also the columns
// 64 + 4 * lane + j.
//
// Factors and products are blocks of 4 x 4, mat4x4 values. Accumulators are never indexed by a
// variable, so they stay in registers. The next stage is loaded from memory before this stage is
// multiplied, so that both overlap.
//
// The kernel defines quad_of(source, i): vector i of the tensor with the number `source`. All
// callers pass a constant, so compilers remove the branches on `source` when they inline functions.
//!include lm/attention_params.wgsl

override DEPTH_QUADS: u32 = 4u; // columns / 4 that are staged at a time for scores: 4 or 8
override TILE_SLOTS: u32 = 160u; // BLOCK_ROWS / 2 * (DEPTH_QUADS + 1)

const Q: u32 = 0u; // sources of tiles
const K: u32 = 1u;
const V: u32 = 2u;
const GRAD_OUT: u32 = 3u;

const LANES: u32 = 16u;
const BLOCK_ROWS: u32 = 64u;
const THREADS: u32 = 128u; // BLOCK_ROWS / 8 * LANES

// Four rows of four columns a slot; the fifth vector spreads slots over the banks of the memory.
// Holds tiles for scores, tiles for results and other numbers that threads exchange, in turn.
var<workgroup> sh_tiles: array<array<vec4<f32>, 5>, TILE_SLOTS>;

// Eight rows by four columns; each column of a matrix is a row.
struct Block {
    upper: mat4x4<f32>,
    lower: mat4x4<f32>,
}

// Where a tile is in a tensor: row 0 of its sequence, its head of `heads`, its first row in the
// sequence and its first column / 4.
struct Corner {
    sequence: u32,
    heads: u32,
    head: u32,
    row: u32,
    quad: u32,
}

// The block of queries of a workgroup: the last rows of all sequences, which see most keys, come first.
fn query_block(group: u32) -> Corner {
    let blocks = (params.seq + BLOCK_ROWS - 1u) / BLOCK_ROWS;
    let columns = params.workgroups / blocks; // B * H
    let sequence = group % columns / params.heads * params.seq;
    let first = (blocks - 1u - group / columns) * BLOCK_ROWS;
    return Corner(sequence, params.heads, group % params.heads, first, 0u);
}

// The first keys and values of the sequence that queries belong to.
fn keys_of(query: Corner) -> Corner {
    let kv_head = query.head / (params.heads / params.kv_heads);
    return Corner(query.sequence, params.kv_heads, kv_head, 0u, 0u);
}

// The corner moved down and right.
fn moved(corner: Corner, rows: u32, quads: u32) -> Corner {
    return Corner(
        corner.sequence, corner.heads, corner.head, corner.row + rows, corner.quad + quads
    );
}

fn is_inside(corner: Corner, row: u32, quad: u32) -> bool {
    return corner.row + row < params.seq && corner.quad + quad < HEAD_QUADS;
}

fn source_index(corner: Corner, row: u32, quad: u32) -> u32 {
    let position = corner.sequence + corner.row + row;
    return (position * corner.heads + corner.head) * HEAD_QUADS + corner.quad + quad;
}

// A tile is `quads` columns / 4 wide: DEPTH_QUADS and BLOCK_ROWS rows high for scores, LANES and
// piece_rows() high for results. A thread copies column / 4 local_index % quads of the rows
// local_index / quads + i * THREADS / quads, i below DEPTH_QUADS / 2, which a matrix holds.
fn piece_rows() -> u32 {
    return 4u * DEPTH_QUADS;
}

fn load(source: u32, corner: Corner, quads: u32, local_index: u32) -> mat4x4<f32> {
    let step = THREADS / quads;
    let first = moved(corner, local_index / quads, local_index % quads);
    var values = mat4x4<f32>();
    values[0] = load_row(source, first, 0u);
    values[1] = load_row(source, first, step);
    if (DEPTH_QUADS > 4u) {
        values[2] = load_row(source, first, 2u * step);
        values[3] = load_row(source, first, 3u * step);
    }
    return values;
}

// Zeros outside of the tensor. The load itself depends on no condition: several are under way.
fn load_row(source: u32, corner: Corner, row: u32) -> vec4<f32> {
    let inside = is_inside(corner, row, 0u);
    let values = quad_of(source, select(0u, source_index(corner, row, 0u), inside));
    return select(vec4<f32>(), values, inside);
}

// Store a thread's part of a tile. Its rows 4 r to 4 r + 3 of column / 4 c are slot
// start + r * stride + c.
fn store_tile(values: mat4x4<f32>, quads: u32, stride: u32, start: u32, local_index: u32) {
    let row = local_index / quads;
    let slot = start + row / 4u * stride + local_index % quads;
    let step = THREADS / quads / 4u * stride;
    sh_tiles[slot][row % 4u] = values[0];
    sh_tiles[slot + step][row % 4u] = values[1];
    if (DEPTH_QUADS > 4u) {
        sh_tiles[slot + 2u * step][row % 4u] = values[2];
        sh_tiles[slot + 3u * step][row % 4u] = values[3];
    }
}

fn tile_rows(slot: u32) -> mat4x4<f32> {
    return mat4x4<f32>(
        sh_tiles[slot][0], sh_tiles[slot][1], sh_tiles[slot][2], sh_tiles[slot][3]
    );
}

// sum + a b, of transposed 4 x 4 matrices.
fn multiply_add(a: mat4x4<f32>, b: mat4x4<f32>, sum: mat4x4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(
        add_weighted(sum[0], a[0], b),
        add_weighted(sum[1], a[1], b),
        add_weighted(sum[2], a[2], b),
        add_weighted(sum[3], a[3], b),
    );
}

fn add_weighted(sum: vec4<f32>, weights: vec4<f32>, rows: mat4x4<f32>) -> vec4<f32> {
    let first = fma(weights.yyyy, rows[1], fma(weights.xxxx, rows[0], sum));
    return fma(weights.wwww, rows[3], fma(weights.zzzz, rows[2], first));
}

// Tiles for scores: the own one, then the other one. Lanes of a group read slots that are an odd
// number of slots apart. To be called by all threads, as all that has a barrier.
fn stage_scores(own: mat4x4<f32>, other: mat4x4<f32>, local_index: u32) {
    let stride = DEPTH_QUADS + 1u;
    workgroupBarrier();
    store_tile(own, DEPTH_QUADS, stride, 0u, local_index);
    store_tile(other, DEPTH_QUADS, stride, BLOCK_ROWS / 4u * stride, local_index);
    workgroupBarrier();
}

// sum + (own tile) (other tile)^T.
fn add_scores(sum: Block, local_index: u32) -> Block {
    let stride = DEPTH_QUADS + 1u;
    let upper = local_index / LANES * 2u * stride;
    let lower = upper + stride;
    let other = (BLOCK_ROWS / 4u + local_index % LANES) * stride;
    var result = sum;
    for (var quad = 0u; quad < DEPTH_QUADS; quad++) {
        let columns = transpose(tile_rows(other + quad));
        result.upper = multiply_add(tile_rows(upper + quad), columns, result.upper);
        result.lower = multiply_add(tile_rows(lower + quad), columns, result.lower);
    }
    return result;
}

// Tiles for results: a piece of the other rows, from row `first` of the block on, and after it the
// threads' weights of these rows, which the lanes that have them store.
fn stage_piece(piece: mat4x4<f32>, weights: Block, first: u32, local_index: u32) {
    workgroupBarrier();
    store_tile(piece, LANES, LANES, 0u, local_index);
    let quad = local_index % LANES - first / 4u;
    if (quad < piece_rows() / 4u) {
        let slot = weight_slot(quad, local_index);
        sh_tiles[slot][0] = weights.upper[0];
        sh_tiles[slot][1] = weights.upper[1];
        sh_tiles[slot][2] = weights.upper[2];
        sh_tiles[slot][3] = weights.upper[3];
        sh_tiles[slot + 1u][0] = weights.lower[0];
        sh_tiles[slot + 1u][1] = weights.lower[1];
        sh_tiles[slot + 1u][2] = weights.lower[2];
        sh_tiles[slot + 1u][3] = weights.lower[3];
    }
    workgroupBarrier();
}

// The slot of the weights of the group's upper own rows and of rows 4 * quad and on of the piece.
fn weight_slot(quad: u32, local_index: u32) -> u32 {
    return piece_rows() / 4u * LANES + quad * (BLOCK_ROWS / 4u) + local_index / LANES * 2u;
}

// sum + (weights) (piece).
fn add_piece(sum: Block, local_index: u32) -> Block {
    let lane = local_index % LANES;
    var result = sum;
    for (var quad = 0u; quad < piece_rows() / 4u; quad++) {
        let rows = tile_rows(quad * LANES + lane);
        let slot = weight_slot(quad, local_index);
        result.upper = multiply_add(tile_rows(slot), rows, result.upper);
        result.lower = multiply_add(tile_rows(slot + 1u), rows, result.lower);
    }
    return result;
}

// (own rows of `left`) (other rows of `right`)^T, over all columns of the head.
fn scores_of(left: u32, own: Corner, right: u32, other: Corner, local_index: u32) -> Block {
    var scores = Block();
    var own_tile = load(left, own, DEPTH_QUADS, local_index);
    var other_tile = load(right, other, DEPTH_QUADS, local_index);
    for (var quad = DEPTH_QUADS; quad < HEAD_QUADS + DEPTH_QUADS; quad += DEPTH_QUADS) {
        stage_scores(own_tile, other_tile, local_index);
        if (quad < HEAD_QUADS) {
            own_tile = load(left, moved(own, 0u, quad), DEPTH_QUADS, local_index);
            other_tile = load(right, moved(other, 0u, quad), DEPTH_QUADS, local_index);
        }
        scores = add_scores(scores, local_index);
    }
    return scores;
}

// result + (weights) (columns of `source` from the corner on); `weights` are the thread's own.
fn add_weighted_rows(
    result: Block, weights: Block, source: u32, corner: Corner, local_index: u32
) -> Block {
    var sum = result;
    var piece = load(source, corner, LANES, local_index);
    for (var row = piece_rows(); row <= BLOCK_ROWS; row += piece_rows()) {
        stage_piece(piece, weights, row - piece_rows(), local_index);
        if (row < BLOCK_ROWS) {
            piece = load(source, moved(corner, row, 0u), LANES, local_index);
        }
        sum = add_piece(sum, local_index);
    }
    return sum;
}

// The first four of the thread's own rows in the sequence; the lower half follows.
fn upper_rows(first: u32, local_index: u32) -> vec4<u32> {
    return vec4<u32>(0u, 1u, 2u, 3u) + first + local_index / LANES * 8u;
}

// The thread's four other rows, of a block that starts with row `first`.
fn lane_rows(first: u32, local_index: u32) -> vec4<u32> {
    return vec4<u32>(0u, 1u, 2u, 3u) + first + local_index % LANES * 4u;
}
