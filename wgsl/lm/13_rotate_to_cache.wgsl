// rotate_to_cache: rotates the queries and keys of new rows, and writes keys and values to the
// cache.
//
// binding 0  params   uniform     sizes
// binding 1  x        read        (N, products)
// binding 2  cosines  read        (positions, D/2)
// binding 3  sines    read        (positions, D/2)
// binding 4  places   read        (2, N), positions and the rows of the cache where sequences start
// binding 5  q        read_write  (N, H * D), rotated
// binding 6  cache    read_write  (L, 2 * K * D), rotated keys and values
// dispatch: one thread per pair of columns
//!include lm/elements.wgsl
//!include lm/head_places.wgsl

@group(0) @binding(1) var<storage, read> x: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn rotate_to_cache(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    let row = i / pairs_of_row();
    let pair = i % pairs_of_row();
    if (row < params.rows) {
        let columns = weight_rows(pair) + row * params.width;
        store_pair(row, pair, vec2<f32>(x[columns.x], x[columns.y]));
    }
}
