// linear_few_rows: computes a linear layer for an input of few rows.
//
//   out = x weight^T (+ residual); products and sums are f32
//
// binding 0  x         read        (N, I)
// binding 1  weight    read        (O, I), in half precision if `half` is set
// binding 2  residual  read        (N, O); only read for ADD_RESIDUAL
// binding 3  out       read_write  (N, O)
// binding 4  dims      uniform     N, O, I, code of the addend (addend.wgsl)
// dispatch: one workgroup per element of out
//!include lm/element_type.wgsl
//!include lm/few_rows.wgsl
//!let suffix =
//!let suffix = _half if half

@compute @workgroup_size(WORKGROUP_SIZE)
fn linear_few_rows{suffix}(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    linear_element(flat_group(workgroup, workgroups), local_index);
}
