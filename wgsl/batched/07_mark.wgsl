// batched_mark: marks the positions at which pairs of the batch are merged.
//
// A pair of equal symbols occurs at every position of a run except the last. Every second
// occurrence is merged, counted from the left. One thread, that of the run's first position, walks
// along the run. After MAX_WALK steps, the rest of the run is left to the next dispatch, and the
// batch's other kernels do nothing until the walk is complete.
//
// binding 0  links          read        (positions)
// binding 1  slots          read_write  (positions)
// binding 2  position_list  read        (list_capacity)
// binding 3  changes        read_write  (candidate_capacity) x: where the walk of a run continues
// binding 4  entries        read_write  (entry_capacity) entries of the previous batch are freed
// binding 5  state          read_write  BatchState
// dispatch: any number of workgroups
//!include common/workgroup.wgsl
//!include batched/member_of.wgsl

override MAX_WALK: u32 = 16384u;

@group(0) @binding(0) var<storage, read> links: array<Link>;
@group(0) @binding(1) var<storage, read_write> slots: array<u32>;
@group(0) @binding(2) var<storage, read> position_list: array<u32>;
@group(0) @binding(3) var<storage, read_write> changes: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> entries: array<Entry>;
@group(0) @binding(5) var<storage, read_write> state: BatchState;

// Where the walk of a run begins, NONE if the run does not begin here. Positions of the run that
// its thread has passed are marked already.
fn run_start(position: u32, slot: u32) -> u32 {
    let own = slots[position];
    let before = slots[links[position].preceding];
    let listed = own == slot || own == MARK;
    return select(NONE, position, listed && before != slot && before != MARK);
}

// Returns where to continue in the next dispatch, NONE at the end of the run.
fn walk(start: u32, slot: u32) -> u32 {
    var position = start;
    for (var step = 0u; step < MAX_WALK; step++) {
        slots[position] = MARK;
        position = links[links[position].following].following;
        if (slots[position] != slot) { return NONE; }
    }
    return position;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn batched_mark(
    @builtin(global_invocation_id) thread: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    load_batch(local_index, WORKGROUP_SIZE);
    if (state.status != RUNNING) { return; }
    let stride = workgroups.x * WORKGROUP_SIZE;
    if (state.resumed == 0u) {
        for (var i = thread.x; i < state.used_before; i += stride) {
            let place = entries[i].used;
            atomicStore(&entries[place].key, 0u);
            atomicStore(&entries[place].count, 0u);
            atomicStore(&entries[place].size, 0u);
        }
    }
    let walking = state.equal_parts != 0u;
    for (var i = thread.x; i < state.candidates; i += stride) {
        let k = member_of(i);
        let member = state.batch[k];
        let position = position_list[member.first + i - member.start];
        if (!walking) {
            if (slots[position] == member.slot) {
                slots[position] = MARK | k;
            }
            continue;
        }
        var next = select(run_start(position, member.slot), changes[i].x, state.resumed != 0u);
        if (next != NONE) {
            next = walk(next, member.slot);
            if (next != NONE) {
                atomicStore(&state.unfinished, 1u);
            }
        }
        changes[i].x = next;
    }
}
