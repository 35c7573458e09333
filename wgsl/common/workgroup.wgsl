// Declares the size of a workgroup, and numbers the workgroups of a dispatch that is split over x
// and y.

override WORKGROUP_SIZE: u32 = 256u;

// Returns the number of a workgroup. A dispatch of more than 65 535 workgroups is split over x and
// y, and may have more workgroups than the kernel needs.
fn flat_group(workgroup: vec3<u32>, workgroups: vec3<u32>) -> u32 {
    return workgroup.y * workgroups.x + workgroup.x;
}
