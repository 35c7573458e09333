// Computes the first half of a gated feed-forward network for few rows: the norm, the products for
// gate and up, and the activation. The kernel includes lm/four_weights.wgsl, which declares the
// weights.
//!include lm/inner_params.wgsl
//!include lm/normed_pairs.wgsl
//!include lm/activations.wgsl

@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<storage, read> norm_weight: array<vec4<f32>>;

// Computes the columns of out that belong to workgroup `group`.
fn store_normed_gated(group: u32, local_index: u32) {
    let of_workgroup = WORKGROUP_SIZE / ROW_THREADS;
    let groups = (params.width + of_workgroup - 1u) / of_workgroup;
    let row = group / groups;
    let column = group % groups * of_workgroup + local_index / ROW_THREADS;
    let inside = row < params.rows && column < params.width;
    let rows = vec2<u32>(column, params.up_start + column);
    let sums = normed_sums(row, rows, inside, params.quads, params.epsilon, local_index);
    if (inside && local_index % ROW_THREADS == 0u) {
        out[row * params.width + column] = activated(sums.x) * sums.y;
    }
}
