// adamw_update_rows: one step of AdamW on the listed rows of a table (adamw_rows.wgsl), nothing after a
// bad step.
//
// binding 0  parameter  read_write  (V, C)
// binding 1  gradient   read        (U, C)
// binding 2  first      read_write  (V, C)
// binding 3  second     read_write  (V, C)
// binding 4  hyper      uniform     Hyper
// binding 5  stats      read        (4,)
// binding 6  rows       read        (U,)
// binding 7  dims       uniform     U C, C, V, 1 if the table decays
// dispatch: one thread per element of a listed row
//!include lm/adamw_rows.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn adamw_update_rows(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let place = place_of(flat_element(workgroup, workgroups, local_index));
    if (place.listed && stats.z == 0.0) {
        update_place(place);
    }
}
