// adamw_8bit_update: computes one step of AdamW with 8-bit moments (adamw_8bit.wgsl). After a bad
// step, nothing changes.
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
// binding 9  half_copy      read_write  as parameter, in half precision, if `half_copy` is set
// dispatch: one workgroup per block, one thread per four elements
// source: adamw_8bit_update_f16, with `half_copy`.
//!override half_copy = 0
//!let suffix =
//!let suffix = _f16 if half_copy
//!if half_copy
  //!include lm/half.wgsl
//!end
//!include lm/adamw_8bit.wgsl

//!if half_copy
@group(0) @binding(9) var<storage, read_write> half_copy: array<vec4<f16>>;

//!end
@compute @workgroup_size(WORKGROUP_SIZE)
fn adamw_8bit_update{suffix}(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
//!if half_copy
    let block = flat_group(workgroup, workgroups);
    let i = block * (BLOCK / 4u) + local_index;
    let halves = saturate_to_halves(update_block(block, local_index));
    let live = live_elements(i, dims.x);
    if (live.x && stats.z == 0.0) {
        half_copy[i] = select(half_copy[i], halves, live);
    }
//!else
    update_block(flat_group(workgroup, workgroups), local_index);
//!end
}
