// embed_backward_join: adds up the partial sums of each token whose positions lie in several
// slices, see grouped_gradient.wgsl.
//
// binding 0  starts  read        (N + 1,) entry g: sorted position at which group g starts; N in
//   entries after the last group
// binding 1  rows    read        (N,) entry g: token of group g; 0xffffffff after the last group
// binding 2  sums    read_write  (V, C) gradient of the table, to which the kernel adds
// binding 3  pieces  read_write  (slices, 2, C) partial sums that embed_backward_grouped stored
// binding 4  dims    uniform     N, C, V, slices
// dispatch: one thread per slice and column, for the group that starts in the slice and ends after it
//!include lm/grouped_gradient.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_backward_join(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    let slice = i / dims.y;
    let column = i % dims.y;
    if (slice + 1u >= dims.w) {
        return; // no group reaches beyond the last slice
    }
    let group = group_of((slice + 1u) * SLICE - 1u);
    let last = (starts[group + 1u] - 1u) / SLICE; // slice in which the group ends
    if (starts[group] < slice * SLICE || last == slice) {
        return;
    }
    var sum = pieces[(2u * slice + 1u) * dims.y + column];
    for (var following = slice + 1u; following <= last; following++) {
        sum += pieces[2u * following * dims.y + column];
    }
    add_to_row(group, column, sum);
}
