// Stores pairs of columns i, i + D/2 of the heads of new rows. Queries are rotated, keys are
// rotated and written to the cache, and values are written to the cache.
//
// The packed weights have rows for queries, for keys and for values, and the products have a column
// for each of these rows. The rows for keys begin at key_start, and the rows for values at
// value_start. A row of the cache holds all keys of a position, then all values.
//!include common/workgroup.wgsl

struct HeadParams {
    rows: u32, // N
    heads: u32, // H
    kv_heads: u32, // K
    half_width: u32, // D / 2
    key_start: u32, // row of the weights where keys start
    value_start: u32,
    width: u32, // vectors in a row of x (C / 4), or products in a row
    epsilon: f32,
}

@group(0) @binding(0) var<uniform> params: HeadParams;
@group(0) @binding(2) var<storage, read> cosines: array<f32>;
@group(0) @binding(3) var<storage, read> sines: array<f32>;
@group(0) @binding(4) var<storage, read> places: array<u32>;
@group(0) @binding(5) var<storage, read_write> q: array<f32>;
@group(0) @binding(6) var<storage, read_write> cache: array<f32>;

// Returns the number of pairs in a row: first the pairs of queries, then of keys, then of values.
fn pairs_of_row() -> u32 {
    return (params.heads + 2u * params.kv_heads) * params.half_width;
}

// Returns the two rows of the packed weights whose products are the columns of a pair.
fn weight_rows(pair: u32) -> vec2<u32> {
    let head = pair / params.half_width;
    let column = pair % params.half_width;
    let width = 2u * params.half_width;
    var first = head * width + column;
    if (head >= params.heads + params.kv_heads) {
        first = params.value_start + (head - params.heads - params.kv_heads) * width + column;
    } else if (head >= params.heads) {
        first = params.key_start + (head - params.heads) * width + column;
    }
    return vec2<u32>(first, first + params.half_width);
}

// Rotates a pair of a query or key, and stores the pair in q or in the cache.
fn store_pair(row: u32, pair: u32, values: vec2<f32>) {
    let head = pair / params.half_width;
    let column = pair % params.half_width;
    let width = 2u * params.half_width;
    let position = places[row];
    var turned = values;
    if (head < params.heads + params.kv_heads) {
        let angle = position * params.half_width + column;
        turned = values * cosines[angle] + vec2<f32>(-values.y, values.x) * sines[angle];
    }
    if (head < params.heads) {
        let target_ix = (row * params.heads + head) * width + column;
        q[target_ix] = turned.x;
        q[target_ix + params.half_width] = turned.y;
    } else {
        let cache_row = places[params.rows + row] + position;
        let target_ix = (cache_row * 2u * params.kv_heads + head - params.heads) * width + column;
        cache[target_ix] = turned.x;
        cache[target_ix + params.half_width] = turned.y;
    }
}
