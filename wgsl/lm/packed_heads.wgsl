// Finds a vector of a head's columns in two places: in one of the separate tensors of queries, keys
// and values, and in the packed tensor, whose rows hold all three. A vector covers 4 * `fours`
// columns of the first half of a head. The partner of column i is column i + D/2, in the second
// half.
//!include lm/elements.wgsl
//!override fours = 1

struct HeadParams {
    vectors: u32, // N * (heads + 2 * kv_heads) * half_width
    heads: u32,
    kv_heads: u32,
    half_width: u32, // D/2; this field and all below count vectors of columns
    row_width: u32, // width of a row of the packed tensor
    keys: u32, // first column of the keys in a row of the packed tensor
    values: u32, // first column of the values in a row of the packed tensor
}

struct Place {
    row: u32,
    column: u32, // index of the vector in the first half of its head
    kind: u32, // 0, 1, 2: queries, keys, values
    alone: u32, // index of the vector in the tensor of queries, keys or values
    packed: u32, // index of the vector in the packed tensor
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
