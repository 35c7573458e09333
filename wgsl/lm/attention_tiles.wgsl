// What the attention kernels share: products of tiles, one 8 x 4 block of the result a thread.
//
// A workgroup owns OWN_ROWS rows (queries, or keys in the gradient of keys and values) and walks over
// blocks of OTHER_ROWS rows of the other kind. It has OWN_GROUPS x LANES threads. Thread
// (group, lane) holds of a block of scores the own rows group + i * OWN_GROUPS, i = 0 .. 7, and the
// other rows 4 * lane + j, j = 0 .. 3; of a result of head width it holds the same own rows and the
// columns 4 * lane + j, plus 64 in a second set where heads are wider than that.
//
// All that is multiplied is in blocks of 4 x 4, as mat4x4 values: accumulators are never indexed by a
// variable, so that they stay in registers.
//!include common/workgroup.wgsl

override HEAD_QUADS: u32 = 16u; // head width / 4
override OWN_GROUPS: u32 = 4u; // own rows / 8; WORKGROUP_SIZE is LANES times that
override DEPTH_QUADS: u32 = 2u; // columns / 4 that are staged at a time for scores
override PIECE_ROWS: u32 = 16u; // other rows that are staged at a time for results
override TILE_QUADS: u32 = 288u; // memory for what is staged
override WEIGHT_QUADS: u32 = 544u; // OWN_ROWS * WEIGHT_STRIDE

const LANES: u32 = 16u;
const OTHER_ROWS: u32 = 64u;
const WEIGHT_STRIDE: u32 = 17u; // odd, so that rows begin in different banks
const LOG2_E: f32 = 1.4426950408889634;

struct AttentionParams {
    seq: u32, // T, or rows of the cache
    heads: u32,
    kv_heads: u32,
    workgroups: u32,
    scale: f32, // 1 / sqrt(D)
    log2_scale: f32, // the same for exponents of 2
}

@group(0) @binding(0) var<uniform> params: AttentionParams;
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> v: array<vec4<f32>>;

var<workgroup> sh_tiles: array<vec4<f32>, TILE_QUADS>;
var<workgroup> sh_weights: array<vec4<f32>, WEIGHT_QUADS>;

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

// A tile in workgroup memory: from `start`, row r is at slot r / split + (r % split) * (rows / split).
struct Tile {
    rows: u32,
    quads: u32,
    split: u32,
    start: u32,
}

fn own_tile() -> Tile {
    return Tile(8u * OWN_GROUPS, DEPTH_QUADS, 1u, 0u);
}

// Lanes read rows 4 * lane + j together: slots one after the other.
fn other_tile() -> Tile {
    return Tile(OTHER_ROWS, DEPTH_QUADS, 4u, other_start());
}

fn other_start() -> u32 {
    return 8u * OWN_GROUPS * (DEPTH_QUADS + 1u);
}

fn piece_tile() -> Tile {
    return Tile(PIECE_ROWS, LANES, 1u, 0u);
}

fn tile_index(tile: Tile, row: u32, quad: u32) -> u32 {
    let slot = row / tile.split + (row % tile.split) * (tile.rows / tile.split);
    return tile.start + slot * (tile.quads + 1u) + quad;
}

fn is_inside(corner: Corner, row: u32, quad: u32) -> bool {
    return corner.row + row < params.seq && corner.quad + quad < HEAD_QUADS;
}

fn source_index(corner: Corner, row: u32, quad: u32) -> u32 {
    let position = corner.sequence + corner.row + row;
    return (position * corner.heads + corner.head) * HEAD_QUADS + corner.quad + quad;
}

// The corner moved down and right.
fn moved(corner: Corner, rows: u32, quads: u32) -> Corner {
    return Corner(
        corner.sequence, corner.heads, corner.head, corner.row + rows, corner.quad + quads
    );
}

// Copy a tile of a tensor, zeros outside of it. To be called by all threads, as those below.
fn stage_q(tile: Tile, corner: Corner, local_index: u32) {
    for (var e = local_index; e < tile.rows * tile.quads; e += WORKGROUP_SIZE) {
        let row = e / tile.quads;
        let quad = e % tile.quads;
        var value = vec4<f32>();
        if (is_inside(corner, row, quad)) {
            value = q[source_index(corner, row, quad)];
        }
        sh_tiles[tile_index(tile, row, quad)] = value;
    }
}

fn stage_k(tile: Tile, corner: Corner, local_index: u32) {
    for (var e = local_index; e < tile.rows * tile.quads; e += WORKGROUP_SIZE) {
        let row = e / tile.quads;
        let quad = e % tile.quads;
        var value = vec4<f32>();
        if (is_inside(corner, row, quad)) {
            value = k[source_index(corner, row, quad)];
        }
        sh_tiles[tile_index(tile, row, quad)] = value;
    }
}

fn stage_v(tile: Tile, corner: Corner, local_index: u32) {
    for (var e = local_index; e < tile.rows * tile.quads; e += WORKGROUP_SIZE) {
        let row = e / tile.quads;
        let quad = e % tile.quads;
        var value = vec4<f32>();
        if (is_inside(corner, row, quad)) {
            value = v[source_index(corner, row, quad)];
        }
        sh_tiles[tile_index(tile, row, quad)] = value;
    }
}

// sum + a b, of 4 x 4 matrices whose columns are the rows of what is meant.
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

// sum + (own tile) (other tile)^T, over the columns that are staged.
fn add_scores(sum: Block, local_index: u32) -> Block {
    let stride = DEPTH_QUADS + 1u;
    let own = local_index / LANES * stride;
    let other = other_start() + local_index % LANES * stride;
    let own_step = OWN_GROUPS * stride;
    let other_step = LANES * stride;
    var result = sum;
    for (var quad = 0u; quad < DEPTH_QUADS; quad++) {
        let columns = transpose(mat4x4<f32>(
            sh_tiles[other + quad],
            sh_tiles[other + other_step + quad],
            sh_tiles[other + 2u * other_step + quad],
            sh_tiles[other + 3u * other_step + quad],
        ));
        let upper = mat4x4<f32>(
            sh_tiles[own + quad],
            sh_tiles[own + own_step + quad],
            sh_tiles[own + 2u * own_step + quad],
            sh_tiles[own + 3u * own_step + quad],
        );
        let lower = mat4x4<f32>(
            sh_tiles[own + 4u * own_step + quad],
            sh_tiles[own + 5u * own_step + quad],
            sh_tiles[own + 6u * own_step + quad],
            sh_tiles[own + 7u * own_step + quad],
        );
        result.upper = multiply_add(upper, columns, result.upper);
        result.lower = multiply_add(lower, columns, result.lower);
    }
    return result;
}

// sum + (weights) (piece of other rows), the piece being rows `first` and on of the block.
fn add_piece(sum: Block, first: u32, local_index: u32) -> Block {
    let lane = local_index % LANES;
    let own = local_index / LANES * WEIGHT_STRIDE + first / 4u;
    let own_step = OWN_GROUPS * WEIGHT_STRIDE;
    let stride = LANES + 1u;
    var result = sum;
    for (var quad = 0u; quad < PIECE_ROWS / 4u; quad++) {
        let other = 4u * quad * stride + lane;
        let rows = mat4x4<f32>(
            sh_tiles[other],
            sh_tiles[other + stride],
            sh_tiles[other + 2u * stride],
            sh_tiles[other + 3u * stride],
        );
        let upper = mat4x4<f32>(
            sh_weights[own + quad],
            sh_weights[own + own_step + quad],
            sh_weights[own + 2u * own_step + quad],
            sh_weights[own + 3u * own_step + quad],
        );
        let lower = mat4x4<f32>(
            sh_weights[own + 4u * own_step + quad],
            sh_weights[own + 5u * own_step + quad],
            sh_weights[own + 6u * own_step + quad],
            sh_weights[own + 7u * own_step + quad],
        );
        result.upper = multiply_add(upper, rows, result.upper);
        result.lower = multiply_add(lower, rows, result.lower);
    }
    return result;
}

fn store_weights(weights: Block, local_index: u32) {
    let own = local_index / LANES * WEIGHT_STRIDE + local_index % LANES;
    let own_step = OWN_GROUPS * WEIGHT_STRIDE;
    sh_weights[own] = weights.upper[0];
    sh_weights[own + own_step] = weights.upper[1];
    sh_weights[own + 2u * own_step] = weights.upper[2];
    sh_weights[own + 3u * own_step] = weights.upper[3];
    sh_weights[own + 4u * own_step] = weights.lower[0];
    sh_weights[own + 5u * own_step] = weights.lower[1];
    sh_weights[own + 6u * own_step] = weights.lower[2];
    sh_weights[own + 7u * own_step] = weights.lower[3];
}

// Q K^T of queries that are own rows and keys that are other rows.
fn query_key_scores(query: Corner, key: Corner, local_index: u32) -> Block {
    var scores = Block();
    for (var quad = 0u; quad < HEAD_QUADS; quad += DEPTH_QUADS) {
        workgroupBarrier();
        stage_q(own_tile(), moved(query, 0u, quad), local_index);
        stage_k(other_tile(), moved(key, 0u, quad), local_index);
        workgroupBarrier();
        scores = add_scores(scores, local_index);
    }
    return scores;
}

// The thread's own rows in the sequence, in the order of a block's upper or lower half.
fn upper_rows(first: u32, local_index: u32) -> vec4<u32> {
    return vec4<u32>(0u, 1u, 2u, 3u) * OWN_GROUPS + first + local_index / LANES;
}

fn scale_rows(rows: mat4x4<f32>, factors: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(
        rows[0] * factors.x, rows[1] * factors.y, rows[2] * factors.z, rows[3] * factors.w
    );
}

// The thread's four other rows, beginning with the block's row `first`.
fn lane_rows(first: u32, local_index: u32) -> vec4<u32> {
    return vec4<u32>(0u, 1u, 2u, 3u) + first + 4u * (local_index % LANES);
}
