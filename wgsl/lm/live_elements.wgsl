// Tensors as vectors of four elements, the last of which may reach beyond the tensor's end.
//!include lm/elements.wgsl

// Which elements of vector `i` are among the first `count`.
fn live_elements(i: u32, count: u32) -> vec4<bool> {
    return vec4<u32>(4u * i) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(count);
}
