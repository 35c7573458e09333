// Computes sums of the squares of a tensor. NORM_PARTIALS workgroups share a tensor, and stride
// over runs of 4 * WORKGROUP_SIZE elements. A thread loads LOADS vectors at a time, because few
// workgroups must keep enough loads in flight. For each binding, the kernel sets `binding` to its
// name and includes `squares`.
//!include lm/live_elements.wgsl

const LOADS: u32 = 8u; // vectors that a thread loads at a time

override NORM_PARTIALS: u32 = 128u;

//!block squares
// Returns the sum of the squares of a thread of workgroup `place`, 0 to NORM_PARTIALS - 1, over a
// tensor that begins at vector `first` of the binding.
fn squares_of_{binding}(first: u32, elements: u32, place: u32, local_index: u32) -> f32 {
    var sums = vec4<f32>();
    let stride = NORM_PARTIALS * WORKGROUP_SIZE;
    let vectors = (elements + 3u) / 4u;
    for (var i = place * WORKGROUP_SIZE + local_index; i < vectors; i += LOADS * stride) {
        var g: array<vec4<f32>, LOADS>;
        for (var k = 0u; k < LOADS; k++) {
            let at = i + k * stride;
            let live = live_elements(at, elements);
            g[k] = select(vec4<f32>(), {binding}[first + min(at, vectors - 1u)], live);
        }
        for (var k = 0u; k < LOADS; k++) {
            sums += g[k] * g[k];
        }
    }
    return sums.x + sums.y + sums.z + sums.w;
}
//!end
