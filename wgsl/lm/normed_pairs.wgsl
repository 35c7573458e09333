// Products of a normalised row with pairs of rows of weights, which spend most of their time on
// loading weights. ROW_THREADS threads compute a pair, and each thread loads four neighbouring
// weights of both rows at once. The kernel declares `norm_weight`, its weights, and `four_weights`.
//
//   sums = (x * norm_weight) weight^T / sqrt(mean(x^2) + epsilon)
//
// The mean is computed in the same loop as the products, which are scaled by it at the end.
//!include common/workgroup.wgsl

override ROW_THREADS: u32 = 64u; // a power of two

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;

// The two sums of a pair and the sum of the squares of x.
var<workgroup> sh_pairs: array<vec4<f32>, WORKGROUP_SIZE>;

// All threads of the workgroup call it; a thread that is not `inside` has no terms.
// quads: C / 4. The first thread of a pair gets the sums.
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
