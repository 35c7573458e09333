// Copies the rows of a table for token ids, one element per thread. The kernel includes
// lm/element_type.wgsl before this file.
//
// A table that is too large for one binding is bound in parts, with one dispatch for each part. The
// first dispatch (KEEP = 0) writes zeros for tokens of other parts. Later dispatches (KEEP = 1)
// write only for tokens of their part.
//!include lm/elements.wgsl

override KEEP: u32 = 0u;

@group(0) @binding(0) var<storage, read> tokens: array<u32>;
@group(0) @binding(1) var<storage, read> table: array<Element>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;

fn look_up(i: u32) {
    if (i >= dims.x * dims.y) {
        return;
    }
    let row = tokens[i / dims.y] - dims.w; // for a token before the part, wraps to a large number
    if (row < dims.z) {
        out[i] = f32(table[row * dims.y + i % dims.y]);
    } else if (KEEP == 0u) {
        out[i] = 0.0;
    }
}
