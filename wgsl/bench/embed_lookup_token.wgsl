// embed_lookup_token: rows of a table for token ids, one thread per token.
//
//   out[s, d] = table[tokens[s], d], 0 where tokens[s] >= V
//
// binding 0  tokens  read        (N,)
// binding 1  table   read        (V, C)
// binding 2  out     read_write  (N, C)
// binding 3  dims    uniform     N, C, V
// dispatch: one thread per token; neighbouring threads read memory C elements apart, which is slow
// and shows how much the other kernels gain
// source: option 1 of the lab, which the lab does not write out.
//!include bench/copy_row.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_lookup_token(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let s = flat_element(workgroup, workgroups, local_index);
    if (s < dims.x) {
        copy_row(s, 0u, 1u);
    }
}
