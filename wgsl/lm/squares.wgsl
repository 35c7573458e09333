// Sums of squares of a tensor, shared by NORM_PARTIALS workgroups, which stride over runs of 4
// WORKGROUP_SIZE elements. A thread loads several vectors at a time, because few workgroups must
// keep enough loads in flight. The kernel includes `squares` for each of its bindings, `{binding}`.
//!include lm/live_elements.wgsl

const LOADS: u32 = 8u; // vectors of a thread at a time

override NORM_PARTIALS: u32 = 128u;

//!block squares
// A thread's part of the sum of workgroup `place`, of the tensor that begins at vector `first`.
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
