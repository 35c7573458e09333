// Normalises rows by their root mean square. An element of a row is a number or a vector of
// numbers.
//
// The kernel defines square(i), the sum of the squares of the numbers in element i of x, and
// store(i, column, r), which stores element i of the output; r is 1 over the root mean square.
//!include common/reduce.wgsl

override ROW_THREADS: u32 = 256u;

@group(0) @binding(3) var<storage, read_write> inverse_rms: array<f32>;
@group(0) @binding(4) var<uniform> dims: vec4<u32>;
@group(0) @binding(5) var<uniform> params: vec4<f32>;

// Normalises the rows of workgroup `group`. An element holds `numbers` numbers.
fn normalise_rows(group: u32, numbers: u32, local_index: u32) {
    let row = group * (WORKGROUP_SIZE / ROW_THREADS) + local_index / ROW_THREADS;
    let thread = local_index % ROW_THREADS;
    let width = select(0u, dims.y, row < dims.x); // threads without a row must reach the barriers
    let base = row * dims.y;
    var squares = 0.0;
    for (var c = thread; c < width; c += ROW_THREADS) {
        squares += square(base + c);
    }
    let mean = run_sum(squares, local_index, ROW_THREADS) / f32(numbers * dims.y);
    let r = 1.0 / sqrt(mean + params.x);
    for (var c = thread; c < width; c += ROW_THREADS) {
        store(base + c, c, r);
    }
    if (row < dims.x && thread == 0u) {
        inverse_rms[row] = r;
    }
}
