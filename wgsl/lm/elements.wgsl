// Numbers the threads of a dispatch, for kernels with one thread per element.
//!include common/workgroup.wgsl

fn flat_element(workgroup: vec3<u32>, workgroups: vec3<u32>, local_index: u32) -> u32 {
    return flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
}
