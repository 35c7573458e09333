// batched_link: merges the marked occurrences, and writes the positions of the new pairs to
// position_list.
//
// binding 0  units          read_write  (positions)
// binding 1  links          read_write  (positions)
// binding 2  slots          read_write  (positions) out: slots of the new pairs
// binding 3  position_list  read_write  (list_capacity) a range of positions for each pair
// binding 4  changes        read        (candidate_capacity) see batched_count_changes
// binding 5  pairs          read        (pair_capacity) by slot
// binding 6  entries        read_write  (entry_capacity) slot
// binding 7  state          read_write  BatchState
// dispatch: any number of workgroups
//!include common/workgroup.wgsl
//!include batched/member_of.wgsl
//!include batched/change.wgsl

@group(0) @binding(0) var<storage, read_write> units: array<Unit>;
@group(0) @binding(1) var<storage, read_write> links: array<Link>;
@group(0) @binding(2) var<storage, read_write> slots: array<u32>;
@group(0) @binding(3) var<storage, read_write> position_list: array<u32>;
@group(0) @binding(4) var<storage, read> changes: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> pairs: array<Pair>;
@group(0) @binding(6) var<storage, read_write> entries: array<Entry>;
@group(0) @binding(7) var<storage, read_write> state: BatchState;

// Writes the slot of the new pair that starts at a position, and writes the position to the pair's
// range of position_list. place: index in this range.
fn list_position(position: u32, entry: u32, place: u32) {
    let slot = entries[entry].slot;
    slots[position] = slot;
    if (slot != NO_SLOT) {
        position_list[pairs[slot].first + place] = position;
    }
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn batched_link(
    @builtin(global_invocation_id) thread: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    load_batch(local_index, WORKGROUP_SIZE);
    if (state.status != RUNNING || atomicLoad(&state.unfinished) != 0u) { return; }
    for (var i = thread.x; i < state.candidates; i += workgroups.x * WORKGROUP_SIZE) {
        let change = changes[i];
        if (change.x == STALE) { continue; }
        let member = state.batch[member_of(i)];
        let first = position_list[member.first + i - member.start];
        let second = links[first].following;
        let after = links[second].following;
        if (change.x != UNCHANGED) {
            // links[first].preceding is stable: only a merge directly before `first` writes it, and
            // then change.x is UNCHANGED.
            list_position(links[first].preceding, change.x, change.y);
        }
        if (change.z != UNCHANGED) {
            list_position(first, change.z, change.w);
        } else {
            slots[first] = NO_SLOT;
        }
        slots[second] = NO_SLOT;
        units[first].symbol = member.new_symbol;
        links[first].following = after;
        links[after].preceding = first;
    }
}
