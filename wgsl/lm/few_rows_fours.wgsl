// Computes a linear layer for an input of few rows, for example when one token at a time is
// generated. Such a layer spends most of its time on loading weights. ROW_THREADS threads compute
// one element of `out`, and each thread loads four neighbouring weights at once. The kernel
// includes lm/four_weights.wgsl, which declares the weights.
//!include common/reduce.wgsl
//!include lm/addend.wgsl

override ROW_THREADS: u32 = 32u; // a power of two

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> residual: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<uniform> dims: vec4<u32>;

// Computes the elements of `out` that belong to workgroup `group`. For elements beyond the last,
// the threads add no terms and store nothing.
fn linear_elements(group: u32, local_index: u32) {
    let i = group * (WORKGROUP_SIZE / ROW_THREADS) + local_index / ROW_THREADS;
    let thread = local_index % ROW_THREADS;
    let inside = i < dims.x * dims.y;
    let start = vec2<u32>(i / dims.y, i % dims.y) * dims.z; // starts of the rows of x and weight
    let terms = select(0u, dims.z, inside);
    var sums = vec4<f32>();
    for (var k = thread; k < terms; k += ROW_THREADS) {
        sums = fma(x[start.x + k], four_weights(start.y + k), sums);
    }
    let sum = (sums.x + sums.y) + (sums.z + sums.w);
    var total = run_sum(sum, local_index, ROW_THREADS);
    if (thread == 0u && inside) {
        if (dims.w == ADD_RESIDUAL) {
            total += residual[i];
        }
        if (dims.w == ADD_TO_PRODUCT) {
            total += out[i];
        }
        out[i] = total;
    }
}
