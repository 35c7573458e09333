// normed_gated: computes the first half of a gated feed-forward network for few rows: the norm, the
// products for gate and up, and the activation.
//
//   out = activated(gate) * up
//
// binding 0  params       uniform     sizes
// binding 1  x            read        (N, C), four per element
// binding 2  out          read_write  (N, F)
// binding 3  norm_weight  read        (C,), four per element
// binding 4  weight       read        (rows, C), four per element, in half precision if `half` is set
// dispatch: for each row, one workgroup for WORKGROUP_SIZE / ROW_THREADS columns
//!include lm/normed_gated.wgsl

//!let weight_binding = 4
//!include lm/four_weights.wgsl
//!let suffix =
//!let suffix = _half if half

@compute @workgroup_size(WORKGROUP_SIZE)
fn normed_gated{suffix}(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    store_normed_gated(flat_group(workgroup, workgroups), local_index);
}
