// normed_heads: computes queries, keys and values of few rows from the residual stream: the norm,
// the projections and the rotation, and writes keys and values to the cache.
//
// binding 0  params       uniform     sizes
// binding 1  x            read        (N, C), four per element
// binding 2  cosines      read        (positions, D/2)
// binding 3  sines        read        (positions, D/2)
// binding 4  places       read        (2, N), positions and the rows of the cache where sequences start
// binding 5  q            read_write  (N, H * D), rotated
// binding 6  cache        read_write  (L, 2 * K * D), rotated keys and values
// binding 7  norm_weight  read        (C,), four per element
// binding 8  weight       read        (rows, C), four per element, in half precision if `half` is set
// dispatch: for each row, one workgroup for WORKGROUP_SIZE / ROW_THREADS pairs of columns
//!include lm/normed_heads.wgsl

//!let weight_binding = 8
//!include lm/four_weights.wgsl
//!let suffix =
//!let suffix = _half if half

@compute @workgroup_size(WORKGROUP_SIZE)
fn normed_heads{suffix}(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    store_normed_heads(flat_group(workgroup, workgroups), local_index);
}
