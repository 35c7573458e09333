// Copies the rows of a table for token ids; LANES threads share a row. The kernel includes
// lm/element_type.wgsl before this file.
//
// Only LANES threads load each token id. A thread starts four loads before its first store. Tables
// in parts are handled as in lookup.wgsl.
//!include lm/elements.wgsl

override KEEP: u32 = 0u;
override LANES: u32 = 64u; // threads that share a row; a power of two, at most WORKGROUP_SIZE

@group(0) @binding(0) var<storage, read> tokens: array<u32>;
@group(0) @binding(1) var<storage, read> table: array<FourElements>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;

fn look_up_row(s: u32, lane: u32) {
    if (s >= dims.x) {
        return;
    }
    let row = tokens[s] - dims.w; // for a token before the part, wraps to a large number
    if (row >= dims.z && KEEP == 1u) {
        return;
    }
    for (var column = lane; column < dims.y / 4u; column += 4u * LANES) {
        let first = table_vector(row, column);
        let second = table_vector(row, column + LANES);
        let third = table_vector(row, column + 2u * LANES);
        let fourth = table_vector(row, column + 3u * LANES);
        write_vector(s, column, first);
        write_vector(s, column + LANES, second);
        write_vector(s, column + 2u * LANES, third);
        write_vector(s, column + 3u * LANES, fourth);
    }
}

fn table_vector(row: u32, column: u32) -> FourElements {
    if (row >= dims.z || column >= dims.y / 4u) {
        return FourElements();
    }
    return table[row * (dims.y / 4u) + column];
}

fn write_vector(s: u32, column: u32, values: FourElements) {
    if (column < dims.y / 4u) {
        out[s * (dims.y / 4u) + column] = vec4<f32>(values);
    }
}
