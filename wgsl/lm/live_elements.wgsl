// Masks elements of tensors that are bound as vectors of four elements. The last vector may reach
// beyond the tensor's end.
//!include lm/elements.wgsl

// Returns which elements of vector `i` are among the first `count` elements.
fn live_elements(i: u32, count: u32) -> vec4<bool> {
    return vec4<u32>(4u * i) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(count);
}
