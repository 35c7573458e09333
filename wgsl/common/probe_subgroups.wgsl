// probe_subgroups: writes how the adapter assigns the threads of a workgroup to subgroups and
// lanes.
//
// binding 0  lanes  read_write  (256) x: local index of a thread; y: lane; z: subgroup size; w:
//                               subgroup
// dispatch: 1 workgroup

@group(0) @binding(0) var<storage, read_write> lanes: array<vec4<u32>>;

@compute @workgroup_size(256)
fn probe_subgroups(
    @builtin(local_invocation_index) local_index: u32,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_size) width: u32,
    @builtin(subgroup_id) subgroup: u32,
) {
    lanes[local_index] = vec4<u32>(local_index, lane, width, subgroup);
}
