// embed_lookup_rows_scalar: copies rows of a table by token id, one workgroup per token, with loads
// of 4 bytes.
//
//   out[s, d] = table[tokens[s], d], 0 where tokens[s] >= V
//
// binding 0  tokens  read        (N,)
// binding 1  table   read        (V, C)
// binding 2  out     read_write  (N, C)
// binding 3  dims    uniform     N, C, V
// dispatch: one workgroup per token
// source: embedding_lookup_optimized_kernel of the lab "Custom Embedding Lookup".
//!include bench/copy_row.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_lookup_rows_scalar(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let s = flat_group(workgroup, workgroups);
    if (s < dims.x) {
        copy_row(s, local_index, WORKGROUP_SIZE);
    }
}
