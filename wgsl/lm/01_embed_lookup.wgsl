// embed_lookup: copies the rows of an embedding table for token ids.
//
//   out[s, d] = table[tokens[s], d], 0 where tokens[s] >= V
//
// binding 0  tokens  read        (N,)
// binding 1  table   read        (V, C), in half precision if `half` is set
// binding 2  out     read_write  (N, C)
// binding 3  dims    uniform     N, C, V, first token of this part of the table
// dispatch: one thread per element
// source: embed_lookup, and embed_lookup_w16 with `half`. Here a large table may be bound in parts,
// because the size of a binding is limited.
//!include lm/element_type.wgsl
//!include lm/lookup.wgsl
//!let suffix =
//!let suffix = _w16 if half

@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_lookup{suffix}(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    look_up(flat_element(workgroup, workgroups, local_index));
}
