// cache_append: copies the keys or values of new rows to the cache.
//
// binding 0  x       read        (N, K * D)
// binding 1  cache   read_write  (L, 2 * K * D), keys and values
// binding 2  places  read        (2, N), positions and the rows of the cache where sequences start
// binding 3  dims    uniform     N, K * D, 2 * K * D, first column
// dispatch: one thread per element
//!include lm/elements.wgsl

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> cache: array<f32>;
@group(0) @binding(2) var<storage, read> places: array<u32>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn cache_append(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    let row = i / dims.y;
    if (row < dims.x) {
        let cache_row = places[row] + places[dims.x + row];
        cache[cache_row * dims.z + dims.w + i % dims.y] = x[i];
    }
}
