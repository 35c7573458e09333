// muon_update: one step of Muon (muon.wgsl) on a matrix, nothing after a bad step.
//
// binding 0  parameter  read_write  (rows, columns), taken as one list of elements
// binding 1  direction  read        as parameter
// binding 2  hyper      uniform     Hyper
// binding 3  stats      read        (4,)
// binding 4  dims       uniform     elements, 1 if the tensor decays, max(rows, columns)
// dispatch: one thread per four elements
//!include lm/muon.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn muon_update(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (4u * i < dims.x && stats.z == 0.0) {
        update_vector(i);
    }
}
