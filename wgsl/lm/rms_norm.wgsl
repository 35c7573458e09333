// Root-mean-square normalisation of rows of elements, which are numbers or vectors of them. The
// kernel defines `square`, the square of an element of x, and `store`.
//!include common/reduce.wgsl

override ROW_THREADS: u32 = 256u;

@group(0) @binding(3) var<storage, read_write> inverse_rms: array<f32>;
@group(0) @binding(4) var<uniform> dims: vec4<u32>;
@group(0) @binding(5) var<uniform> params: vec4<f32>;

// Normalises the rows of workgroup `group`. numbers: how many numbers an element holds.
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
