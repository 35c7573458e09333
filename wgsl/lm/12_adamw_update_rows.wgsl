// adamw_update_rows: computes one step of AdamW on the listed rows of a table (adamw_rows.wgsl).
// After a bad step, nothing changes.
//
// binding 0  parameter  read_write  (V, C)
// binding 1  gradient   read        (U, C)
// binding 2  first      read_write  (V, C)
// binding 3  second     read_write  (V, C)
// binding 4  hyper      uniform     Hyper
// binding 5  stats      read        (4,)
// binding 6  rows       read        (U,)
// binding 7  dims       uniform     U C, C, V, 1 if the table decays
// binding 8  half_copy  read_write  (V, C), in half precision, if `half_copy` is set
// dispatch: one thread per element of a listed row
//!override half_copy = 0
//!let suffix =
//!let suffix = _f16 if half_copy
//!if half_copy
  //!include lm/half.wgsl
//!end
//!include lm/adamw_rows.wgsl

//!if half_copy
@group(0) @binding(8) var<storage, read_write> half_copy: array<f16>;

//!end
@compute @workgroup_size(WORKGROUP_SIZE)
fn adamw_update_rows{suffix}(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let place = place_of(flat_element(workgroup, workgroups, local_index));
    if (place.listed && stats.z == 0.0) {
//!if half_copy
        half_copy[place.element] = saturate_to_half(update_place(place));
//!else
        update_place(place);
//!end
    }
}
