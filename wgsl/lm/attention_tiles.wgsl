// What the attention kernels share: products of tiles, one 8 x 4 block of the result a thread.
//
// A workgroup owns OWN_ROWS rows (queries, or keys in the gradient of keys and values) and walks over
// blocks of OTHER_ROWS rows of the other kind. It has OWN_GROUPS x LANES threads. Thread
// (group, lane) holds of a block of scores the own rows 8 * group + i, i = 0 .. 7, and the other rows
// 4 * lane + j, j = 0 .. 3; of a result of head width it holds the same own rows and the columns
// 4 * lane + j, plus 64 in a second set where heads are wider than that.
//
// All that is multiplied is in blocks of 4 x 4, as mat4x4 values: accumulators are never indexed by a
// variable, so that they stay in registers.
//!include common/workgroup.wgsl

override HEAD_QUADS: u32 = 16u; // head width / 4
override OWN_GROUPS: u32 = 4u; // own rows / 8; WORKGROUP_SIZE is LANES times that
override DEPTH_QUADS: u32 = 2u; // columns / 4 that are staged at a time for scores
override PIECE_ROWS: u32 = 16u; // other rows that are staged at a time for results
override TILE_SLOTS: u32 = 96u; // memory for what is staged

const LANES: u32 = 16u;
const OTHER_ROWS: u32 = 64u;
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

// Four rows of four columns a slot; the fifth vector spreads slots over the banks of the memory. Tiles
// of scores, of results and whatever else threads exchange are there one after the other.
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

// A tile in workgroup memory: rows 4 r to 4 r + 3 of column / 4 c are slot start + r * stride + c.
struct Tile {
    rows: u32,
    quads: u32,
    stride: u32,
    start: u32,
}

fn own_tile() -> Tile {
    return Tile(8u * OWN_GROUPS, DEPTH_QUADS, DEPTH_QUADS + 1u, 0u);
}

fn other_tile() -> Tile {
    return Tile(OTHER_ROWS, DEPTH_QUADS, DEPTH_QUADS + 1u, other_start());
}

fn other_start() -> u32 {
    return 2u * OWN_GROUPS * (DEPTH_QUADS + 1u);
}

fn piece_tile() -> Tile {
    return Tile(PIECE_ROWS, LANES, LANES, 0u);
}

fn tile_slot(tile: Tile, row: u32, quad: u32) -> u32 {
    return tile.start + row / 4u * tile.stride + quad;
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

// Copy a tile of a tensor, zeros outside of it. To be called by all threads, as those below. Loads
// depend on no condition, so that several of them can be under way.
fn stage_q(tile: Tile, corner: Corner, local_index: u32) {
    let quad = local_index % tile.quads;
    let step = WORKGROUP_SIZE / tile.quads;
    for (var row = local_index / tile.quads; row < tile.rows; row += step) {
        let inside = is_inside(corner, row, quad);
        let value = q[select(0u, source_index(corner, row, quad), inside)];
        sh_tiles[tile_slot(tile, row, quad)][row % 4u] = select(vec4<f32>(), value, inside);
    }
}

fn stage_k(tile: Tile, corner: Corner, local_index: u32) {
    let quad = local_index % tile.quads;
    let step = WORKGROUP_SIZE / tile.quads;
    for (var row = local_index / tile.quads; row < tile.rows; row += step) {
        let inside = is_inside(corner, row, quad);
        let value = k[select(0u, source_index(corner, row, quad), inside)];
        sh_tiles[tile_slot(tile, row, quad)][row % 4u] = select(vec4<f32>(), value, inside);
    }
}

fn stage_v(tile: Tile, corner: Corner, local_index: u32) {
    let quad = local_index % tile.quads;
    let step = WORKGROUP_SIZE / tile.quads;
    for (var row = local_index / tile.quads; row < tile.rows; row += step) {
        let inside = is_inside(corner, row, quad);
        let value = v[select(0u, source_index(corner, row, quad), inside)];
        sh_tiles[tile_slot(tile, row, quad)][row % 4u] = select(vec4<f32>(), value, inside);
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

fn tile_rows(slot: u32) -> mat4x4<f32> {
    return mat4x4<f32>(
        sh_tiles[slot][0], sh_tiles[slot][1], sh_tiles[slot][2], sh_tiles[slot][3]
    );
}

// sum + (own tile) (other tile)^T, over the columns that are staged.
fn add_scores(sum: Block, local_index: u32) -> Block {
    let stride = DEPTH_QUADS + 1u;
    let upper = local_index / LANES * 2u * stride;
    let lower = upper + stride;
    let other = other_start() + local_index % LANES * stride;
    var result = sum;
    for (var quad = 0u; quad < DEPTH_QUADS; quad++) {
        let columns = transpose(tile_rows(other + quad));
        result.upper = multiply_add(tile_rows(upper + quad), columns, result.upper);
        result.lower = multiply_add(tile_rows(lower + quad), columns, result.lower);
    }
    return result;
}

// The slot of the upper half of what lane `lane` of the thread's group stored; the lower half follows.
// Weights lie behind a piece of rows, for as many other rows.
fn weight_slot(lane: u32, local_index: u32) -> u32 {
    let group = local_index / LANES;
    return PIECE_ROWS / 4u * LANES + (lane * OWN_GROUPS + group) * 2u;
}

// Store weights of other rows `first` to first + PIECE_ROWS - 1 of the block, those lanes' that have them.
fn store_weights(weights: Block, first: u32, local_index: u32) {
    let lane = local_index % LANES - first / 4u;
    if (lane < PIECE_ROWS / 4u) {
        let slot = weight_slot(lane, local_index);
        sh_tiles[slot][0] = weights.upper[0];
        sh_tiles[slot][1] = weights.upper[1];
        sh_tiles[slot][2] = weights.upper[2];
        sh_tiles[slot][3] = weights.upper[3];
        sh_tiles[slot + 1u][0] = weights.lower[0];
        sh_tiles[slot + 1u][1] = weights.lower[1];
        sh_tiles[slot + 1u][2] = weights.lower[2];
        sh_tiles[slot + 1u][3] = weights.lower[3];
    }
}

// sum + (weights) (piece of other rows), both staged.
fn add_piece(sum: Block, local_index: u32) -> Block {
    let lane = local_index % LANES;
    var result = sum;
    for (var quad = 0u; quad < PIECE_ROWS / 4u; quad++) {
        let rows = tile_rows(quad * LANES + lane);
        let slot = weight_slot(quad, local_index);
        result.upper = multiply_add(tile_rows(slot), rows, result.upper);
        result.lower = multiply_add(tile_rows(slot + 1u), rows, result.lower);
    }
    return result;
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

// The first four of the thread's own rows in the sequence; the lower half follows.
fn upper_rows(first: u32, local_index: u32) -> vec4<u32> {
    return vec4<u32>(0u, 1u, 2u, 3u) + first + local_index / LANES * 8u;
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
