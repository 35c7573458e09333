// cache_append: copy new rows of keys or values to their positions in the cache.
//
// binding 0  x          read        (N, K * D)
// binding 1  cache      read_write  (L, K * D)
// binding 2  positions  read        (N,)
// binding 3  dims       uniform     elements, width
// dispatch: one thread an element
//!include lm/elements.wgsl

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> cache: array<f32>;
@group(0) @binding(2) var<storage, read> positions: array<u32>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn cache_append(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < dims.x) {
        cache[positions[i / dims.y] * dims.y + i % dims.y] = x[i];
    }
}
