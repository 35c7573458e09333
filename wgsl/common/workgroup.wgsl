// The size of a workgroup, and a workgroup's number in a dispatch that is split over two dimensions.

override WORKGROUP_SIZE: u32 = 256u;

// Dispatches of more than 65 535 workgroups use y as well; the last few may be more than needed.
fn flat_group(workgroup: vec3<u32>, workgroups: vec3<u32>) -> u32 {
    return workgroup.y * workgroups.x + workgroup.x;
}
