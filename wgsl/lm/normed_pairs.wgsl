// Computes the products of a normalised row of x and pairs of rows of weights. The kernels spend
// most of their time on loading weights. ROW_THREADS threads compute the two products of a pair,
// and each thread loads four neighbouring weights of both rows at once. The kernel declares
// `norm_weight`, and includes lm/four_weights.wgsl, which declares the weights.
//
//   sums = (x * norm_weight) weight^T / sqrt(mean(x^2) + epsilon)
//
// One loop computes the products and the mean of x^2. At the end, the products are divided by the
// root of the mean plus epsilon.
//!include common/workgroup.wgsl

override ROW_THREADS: u32 = 64u; // a power of two

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;

// x and y: partial sums of the two products of a pair. z: partial sum of the squares of x.
var<workgroup> sh_pairs: array<vec4<f32>, WORKGROUP_SIZE>;

// Returns the products of row `row` of x and rows `rows` of the weights to all threads of the
// pair. All threads of the workgroup must call this function. A thread that is not `inside` adds
// no terms. `quads` is C / 4.
fn normed_sums(
    row: u32, rows: vec2<u32>, inside: bool, quads: u32, epsilon: f32, local_index: u32
) -> vec2<f32> {
    let thread = local_index % ROW_THREADS;
    let terms = select(0u, quads, inside);
    let start = row * quads;
    let starts = rows * quads;
    var first = vec4<f32>(0.0);
    var second = vec4<f32>(0.0);
    var squares = vec4<f32>(0.0);
    for (var k = thread; k < terms; k += ROW_THREADS) {
        let value = x[start + k];
        let scaled = value * norm_weight[k];
        squares = fma(value, value, squares);
        first = fma(scaled, four_weights(starts.x + k), first);
        second = fma(scaled, four_weights(starts.y + k), second);
    }
    let ones = vec4<f32>(1.0);
    sh_pairs[local_index] = vec4<f32>(dot(first, ones), dot(second, ones), dot(squares, ones), 0.0);
    workgroupBarrier();
    for (var half = ROW_THREADS / 2u; half > 0u; half >>= 1u) {
        if (thread < half) {
            sh_pairs[local_index] += sh_pairs[local_index + half];
        }
        workgroupBarrier();
    }
    let sums = sh_pairs[local_index - thread];
    return sums.xy / sqrt(sums.z / f32(4u * quads) + epsilon);
}
