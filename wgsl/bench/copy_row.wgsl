// Copies rows of a table by token id, one column at a time.
//!include lm/elements.wgsl

@group(0) @binding(0) var<storage, read> tokens: array<u32>;
@group(0) @binding(1) var<storage, read> table: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;

// Writes columns first, first + step, ... of row s of `out`; zeros if tokens[s] is not in the
// table.
fn copy_row(s: u32, first: u32, step: u32) {
    let token = tokens[s];
    for (var column = first; column < dims.y; column += step) {
        if (token < dims.z) {
            out[s * dims.y + column] = table[token * dims.y + column];
        } else {
            out[s * dims.y + column] = 0.0;
        }
    }
}
