// Finds where a vector of a head's columns is stored: in the separate tensors of queries, keys and
// values, and in the tensor whose rows hold all three. A vector covers 4 * `fours` columns of the first
// half of a head; each of them has its partner in the second half.
//!include lm/elements.wgsl
//!override fours = 1

struct HeadParams {
    vectors: u32, // N * (heads + 2 * kv_heads) * half_width
    heads: u32,
    kv_heads: u32,
    half_width: u32, // D/2; this field and all below count vectors of columns
    row_width: u32, // of all three side by side
    keys: u32,
    values: u32,
}

struct Place {
    row: u32,
    column: u32, // of the first half of a head
    kind: u32, // 0, 1, 2: queries, keys, values
    alone: u32,
    packed: u32,
}

fn place_of(i: u32) -> Place {
    let column = i % params.half_width;
    let heads = params.heads + 2u * params.kv_heads;
    let head = i / params.half_width % heads;
    let row = i / params.half_width / heads;
    let kind = u32(head >= params.heads) + u32(head >= params.heads + params.kv_heads);
    let count = select(params.kv_heads, params.heads, kind == 0u);
    let first = vec3<u32>(0u, params.heads, params.heads + params.kv_heads)[kind];
    let start = vec3<u32>(0u, params.keys, params.values)[kind];
    let own = (head - first) * 2u * params.half_width + column;
    let alone = row * count * 2u * params.half_width + own;
    return Place(row, column, kind, alone, row * params.row_width + start + own);
}
