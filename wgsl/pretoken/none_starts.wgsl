// pretoken_none_starts: marks the starts of pre-tokens for the pattern none: each document is one
// pre-token.
//
// binding 0  params         uniform     PretokenParams
// binding 1  text           read        (length) bytes, four per u32
// binding 2  document_bits  read        (length bits) 1 where a document starts
// binding 3  start_bits     read_write  (length bits) out: 1 where a pre-token starts
// dispatch: one thread per segment of 32 bytes
//!include common/workgroup.wgsl
//!include pretoken/params.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn pretoken_none_starts(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let segment = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    if (segment * 32u >= params.length) { return; }
    let first = select(0u, 1u, segment == 0u && begins_document(0));
    start_bits[segment] = (document_word(segment) | first) & inside_text(segment);
}
