// Computes the gradient of a table from positions that the host has sorted by their token.
//
//   grad_table[v, d] += sum over s with tokens[s] == v of grad_out[s, d]
//
// Additions have a fixed order and need no atomics, so results repeat bit for bit. A slice is SLICE
// consecutive sorted positions. A thread walks one column of a slice (embed_backward_grouped). A
// second dispatch (embed_backward_join) adds up the sums of tokens that lie in several slices, so
// a token that occurs thousands of times takes no longer than other tokens. Gradients that are not
// finite count as 0, tokens beyond the table are left out.
//
// The sorted positions of a token form a group. If a group lies in several slices, its sum over the
// first slice is pieces[slice, 1], and its sum over each later slice is pieces[slice, 0].
//
// With COMPACT = 1 the sum of group g goes to row g, so that the gradient has a row for each
// distinct token.
//!include lm/elements.wgsl
//!include lm/finite.wgsl

override SLICE: u32 = 32u;
override COMPACT: u32 = 0u;

@group(0) @binding(0) var<storage, read> starts: array<u32>;
@group(0) @binding(1) var<storage, read> rows: array<u32>;
@group(0) @binding(2) var<storage, read_write> sums: array<f32>;
@group(0) @binding(3) var<storage, read_write> pieces: array<f32>;
@group(0) @binding(4) var<uniform> dims: vec4<u32>;

// Returns the group that has this sorted position.
fn group_of(position: u32) -> u32 {
    var low = 0u; // starts[low] <= position < starts[high]
    var high = dims.x;
    while (high - low > 1u) {
        let middle = (low + high) / 2u;
        if (starts[middle] <= position) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

fn add_to_row(group: u32, column: u32, sum: f32) {
    let row = select(rows[group], group, COMPACT == 1u);
    if (row < dims.z) {
        sums[row * dims.y + column] += sum;
    }
}
