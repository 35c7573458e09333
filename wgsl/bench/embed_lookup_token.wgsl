// embed_lookup_token: copies rows of a table by token id, one thread per token.
//
// Neighbouring threads read addresses that are C elements apart, which is slow. The kernel shows
// how much faster the other kernels are.
//
//   out[s, d] = table[tokens[s], d], 0 where tokens[s] >= V
//
// binding 0  tokens  read        (N,)
// binding 1  table   read        (V, C)
// binding 2  out     read_write  (N, C)
// binding 3  dims    uniform     N, C, V
// dispatch: one thread per token
// source: option 1 of the lab "Custom Embedding Lookup", which has no code for it.
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
