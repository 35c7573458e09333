// linear_few_rows_fours: computes a linear layer for an input of few rows, four numbers at a time.
//
//   out = x weight^T (+ residual); products and sums are f32
//
// binding 0  x         read        (N, I), four per element; I is a multiple of 4
// binding 1  weight    read        (O, I), four per element, in half precision if `half` is set
// binding 2  residual  read        (N, O); only read for ADD_RESIDUAL
// binding 3  out       read_write  (N, O)
// binding 4  dims      uniform     N, O, I / 4, code of the addend (addend.wgsl)
// dispatch: one workgroup for WORKGROUP_SIZE / ROW_THREADS elements of out
//!include lm/few_rows_fours.wgsl

//!let weight_binding = 1
//!include lm/four_weights.wgsl
//!let suffix =
//!let suffix = _half if half

@compute @workgroup_size(WORKGROUP_SIZE)
fn linear_few_rows{suffix}_fours(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    linear_elements(flat_group(workgroup, workgroups), local_index);
}
