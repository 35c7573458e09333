// Computes products of tiles for the attention kernels without matrix units. Each thread computes
// 8 x 4 elements of a product.
//
// A workgroup owns a block of BLOCK_ROWS rows: queries, or keys in the gradient of keys and values.
// It walks over blocks of BLOCK_ROWS other rows: keys, or queries in the gradient of keys and
// values. The workgroup has BLOCK_ROWS / 8 groups of LANES threads. Lane l of group g is the thread
// with local index g * LANES + l. In a block of scores, this thread holds the scores of own rows
// 8 * g + i, i = 0 .. 7, with other rows 4 * l + j, j = 0 .. 3. In a result, which is as wide as a
// head, it holds columns 4 * l + j of the same own rows. If heads have more than 64 columns, it
// also holds columns 64 + 4 * l + j.
//
// Factors and products are blocks of 4 x 4, mat4x4 values. Accumulators are never indexed by a
// variable, so they stay in registers. The tiles of the next stage are loaded from global memory
// before the tiles of this stage are multiplied, so that loads and multiplications overlap.
//
// The kernel defines quad_of(source, i): vector i of the tensor with the number `source`. All
// callers pass a constant, so compilers remove the branches on `source` when they inline functions.
//!include lm/attention_params.wgsl

override DEPTH_QUADS: u32 = 4u; // vectors of 4 columns in a tile for scores: 4 or 8
override TILE_SLOTS: u32 = 160u; // BLOCK_ROWS / 2 * (DEPTH_QUADS + 1)

// Numbers of the tensors from which tiles are loaded.
const Q: u32 = 0u;
const K: u32 = 1u;
const V: u32 = 2u;
const GRAD_OUT: u32 = 3u;

const LANES: u32 = 16u;
const BLOCK_ROWS: u32 = 64u;
const THREADS: u32 = 128u; // BLOCK_ROWS / 8 * LANES

// A slot holds four rows by four columns. Its fifth vector is padding, so that slots start in
// different banks. The array holds tiles for scores, tiles for results, and other numbers that
// threads exchange, one after the other.
var<workgroup> sh_tiles: array<array<vec4<f32>, 5>, TILE_SLOTS>;

// Eight rows by four columns: rows 0 to 3 in `upper`, rows 4 to 7 in `lower`. Each column of the
// mat4x4 values is a row.
struct Block {
    upper: mat4x4<f32>,
    lower: mat4x4<f32>,
}

// The position of a tile in a tensor.
struct Corner {
    sequence: u32, // first row of the sequence in the tensor
    heads: u32, // number of heads of the tensor
    head: u32,
    row: u32, // first row of the tile in the sequence
    quad: u32, // first column of the tile in the head, divided by 4
}

// Returns the block of queries of a workgroup. The first workgroups get the last rows of all
// sequences, which see most keys.
fn query_block(group: u32) -> Corner {
    let blocks = (params.seq + BLOCK_ROWS - 1u) / BLOCK_ROWS;
    let columns = params.workgroups / blocks; // B * H
    let sequence = group % columns / params.heads * params.seq;
    let first = (blocks - 1u - group / columns) * BLOCK_ROWS;
    return Corner(sequence, params.heads, group % params.heads, first, 0u);
}

// Returns the corner of the first key and value of the sequence and head of the queries.
fn keys_of(query: Corner) -> Corner {
    let kv_head = query.head / (params.heads / params.kv_heads);
    return Corner(query.sequence, params.kv_heads, kv_head, 0u, 0u);
}

// Returns the corner moved down by `rows` rows, and right by `quads` vectors of four columns.
fn moved(corner: Corner, rows: u32, quads: u32) -> Corner {
    return Corner(
        corner.sequence, corner.heads, corner.head, corner.row + rows, corner.quad + quads
    );
}

// `&&` would branch in each load. The time that SwiftShader takes to compile a loop doubles with each
// branch in it, and the loops of these kernels have dozens of loads.
fn is_inside(corner: Corner, row: u32, quad: u32) -> bool {
    return (corner.row + row < params.seq) & (corner.quad + quad < HEAD_QUADS);
}

fn source_index(corner: Corner, row: u32, quad: u32) -> u32 {
    let position = corner.sequence + corner.row + row;
    return (position * corner.heads + corner.head) * HEAD_QUADS + corner.quad + quad;
}

// Returns the number of rows of a piece. A piece is a tile for results, LANES vectors of four
// columns wide. A tile for scores has BLOCK_ROWS rows, and is DEPTH_QUADS vectors of four columns
// wide.
fn piece_rows() -> u32 {
    return 4u * DEPTH_QUADS;
}

// Loads a thread's vectors of a tile that is `quads` vectors wide: vector local_index % quads of
// rows local_index / quads + i * THREADS / quads, for i below DEPTH_QUADS / 2. Column i of the
// result is the vector of row i.
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

// Loads a vector, or returns zeros outside of the tensor. The load itself is not in a branch, so
// that several loads are in flight at once.
fn load_row(source: u32, corner: Corner, row: u32) -> vec4<f32> {
    let inside = is_inside(corner, row, 0u);
    let values = quad_of(source, select(0u, source_index(corner, row, 0u), inside));
    return select(vec4<f32>(), values, inside);
}

// Stores the vectors of a tile that a thread has loaded. Slot start + r * stride + c holds rows
// 4 r to 4 r + 3 of the tile in columns 4 c to 4 c + 3.
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

// Returns sum + a b, where each column of a mat4x4 value is a row of the matrix.
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

// Stores the tiles for scores: the tile of own rows, then the tile of other rows. The stride is
// odd, so that the lanes of a group read from different banks. All threads of the workgroup must
// call this function and all other functions that have barriers.
fn stage_scores(own: mat4x4<f32>, other: mat4x4<f32>, local_index: u32) {
    let stride = DEPTH_QUADS + 1u;
    workgroupBarrier();
    store_tile(own, DEPTH_QUADS, stride, 0u, local_index);
    store_tile(other, DEPTH_QUADS, stride, BLOCK_ROWS / 4u * stride, local_index);
    workgroupBarrier();
}

// Returns the thread's block of sum + (tile of own rows) (tile of other rows)^T.
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

// Stores the tiles for results: a piece, which starts at row `first` of the block of other rows,
// and after the piece the weights of its rows. The lanes that hold weights of rows of the piece
// store them.
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

// Returns the slot with the weights of own rows 0 to 3 of the thread's group, with rows 4 * quad to
// 4 * quad + 3 of the piece. The next slot has the weights of own rows 4 to 7.
fn weight_slot(quad: u32, local_index: u32) -> u32 {
    return piece_rows() / 4u * LANES + quad * (BLOCK_ROWS / 4u) + local_index / LANES * 2u;
}

// Returns `sum` plus the thread's block of the matrix product of the weights and the piece.
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

// Returns the thread's block of (own rows of `left`) (other rows of `right`)^T, over all columns
// of the head.
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

// Returns the thread's block of result + (weights) (rows of `source` from `corner` on). `weights`
// is the thread's block of the weights.
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

// Returns the positions, in the sequence, of the first four of the thread's eight own rows. `first`
// is the position of the first own row of the workgroup.
fn upper_rows(first: u32, local_index: u32) -> vec4<u32> {
    return vec4<u32>(0u, 1u, 2u, 3u) + first + local_index / LANES * 8u;
}

// Returns the positions, in the sequence, of the thread's four other rows. `first` is the position of
// the first other row of this step.
fn lane_rows(first: u32, local_index: u32) -> vec4<u32> {
    return vec4<u32>(0u, 1u, 2u, 3u) + first + local_index % LANES * 4u;
}
