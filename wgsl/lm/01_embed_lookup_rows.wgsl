// embed_lookup_rows: copies the rows of an embedding table for token ids, four elements at a time.
//
//   out[s, d] = table[tokens[s], d], 0 where tokens[s] >= V
//
// binding 0  tokens  read        (N,)
// binding 1  table   read        (V, C / 4) vectors, in half precision if `half` is set
// binding 2  out     read_write  (N, C / 4) vectors
// binding 3  dims    uniform     N, C, V, first token of this part of the table
// dispatch: LANES threads per token, WORKGROUP_SIZE / LANES tokens per workgroup; C is a multiple of 4
// source: embed_lookup. Here a thread moves 16 bytes at a time, which takes a quarter of the
//   loads, stores and divisions.
//!include lm/element_type.wgsl
//!include lm/lookup_rows.wgsl
//!let suffix =
//!let suffix = _w16 if half

@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_lookup_rows{suffix}(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    look_up_row(flat_element(workgroup, workgroups, local_index) / LANES, local_index % LANES);
}
