// Queries, keys and values of few rows in one kernel: the norm, the projections, the rotation, and
// writing to the cache. The kernel declares its weights, and `four_weights`.
//!include lm/head_places.wgsl
//!include lm/normed_pairs.wgsl

@group(0) @binding(7) var<storage, read> norm_weight: array<vec4<f32>>;

// The pairs of columns of a workgroup.
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
