// adamw_8bit_update: one step of AdamW with 8-bit moments (adamw_8bit.wgsl), nothing after a bad step.
//
// binding 0  parameter      read_write  any shape, taken as one list of elements
// binding 1  gradient       read        as parameter
// binding 2  first_codes    read_write  (blocks, BLOCK / 4) four signed bytes each
// binding 3  first_scales   read_write  (blocks,)
// binding 4  hyper          uniform     Hyper
// binding 5  stats          read        (4,)
// binding 6  second_codes   read_write  (blocks, BLOCK / 4) four unsigned bytes each
// binding 7  second_scales  read_write  (blocks,)
// binding 8  dims           uniform     elements, 1 if the tensor decays
// dispatch: one workgroup per block, one thread per four elements
//!include lm/adamw_8bit.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn adamw_8bit_update(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    update_block(flat_group(workgroup, workgroups), local_index);
}
