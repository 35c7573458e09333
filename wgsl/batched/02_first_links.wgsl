// batched_first_links: writes to each position the slot of the pair that starts there, and lists
// the positions of each pair.
//
// binding 0  places         read        (positions) index of the occurrence among the occurrences
//                                       of its pair
// binding 1  entries        read_write  (distinct pairs) slot
// binding 2  pairs          read        (pair_capacity) by slot
// binding 3  slots          read_write  (positions) in: 1 + index in `entries`, or 0; out: slot of
//                                       the pair
// binding 4  position_list  read_write  (list_capacity) out: a range of positions for each pair
// binding 5  params         uniform     LayOutParams
// dispatch: one thread per position
//!include common/workgroup.wgsl
//!include batched/state.wgsl

@group(0) @binding(0) var<storage, read> places: array<u32>;
@group(0) @binding(1) var<storage, read_write> entries: array<Entry>;
@group(0) @binding(2) var<storage, read> pairs: array<Pair>;
@group(0) @binding(3) var<storage, read_write> slots: array<u32>;
@group(0) @binding(4) var<storage, read_write> position_list: array<u32>;
@group(0) @binding(5) var<uniform> params: LayOutParams;

@compute @workgroup_size(WORKGROUP_SIZE)
fn batched_first_links(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let position = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    if (position >= params.positions) { return; }
    let entry = slots[position];
    if (entry == 0u) { return; }
    let slot = entries[entry - 1u].slot;
    slots[position] = slot;
    if (slot != NO_SLOT) {
        position_list[pairs[slot].first + places[position]] = position;
    }
}
