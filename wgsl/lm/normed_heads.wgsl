// Computes queries, keys and values of few rows: the norm, the projections, and the rotation, and
// writes keys and values to the cache. The kernel includes lm/four_weights.wgsl, which declares the
// weights.
//!include lm/head_places.wgsl
//!include lm/normed_pairs.wgsl

@group(0) @binding(7) var<storage, read> norm_weight: array<vec4<f32>>;

// Computes the pairs of columns that belong to workgroup `group`.
fn store_normed_heads(group: u32, local_index: u32) {
    let of_workgroup = WORKGROUP_SIZE / ROW_THREADS;
    let groups = (pairs_of_row() + of_workgroup - 1u) / of_workgroup;
    let row = group / groups;
    let pair = group % groups * of_workgroup + local_index / ROW_THREADS;
    let inside = row < params.rows && pair < pairs_of_row();
    let sums =
        normed_sums(row, weight_rows(pair), inside, params.width, params.epsilon, local_index);
    if (inside && local_index % ROW_THREADS == 0u) {
        store_pair(row, pair, sums);
    }
}
