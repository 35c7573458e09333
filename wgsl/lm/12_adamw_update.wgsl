// adamw_update: one step of AdamW (adamw.wgsl) on a tensor, nothing after a bad step.
//
// binding 0  parameter  read_write  any shape, taken as one list of elements
// binding 1  gradient   read        as parameter
// binding 2  first      read_write  as parameter
// binding 3  second     read_write  as parameter
// binding 4  hyper      uniform     Hyper
// binding 5  stats      read        (4,)
// binding 6  dims       uniform     elements, 1 if the tensor decays
// dispatch: one thread per four elements
//!include lm/adamw_tensors.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn adamw_update(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (4u * i < dims.x && stats.z == 0.0) {
        update_vector(i);
    }
}
