// batched_mark: marks the positions at which pairs of the batch are merged.
//
// If the batch is a pair of two equal symbols, the pair occurs at every position of a run of the
// symbol except the last position. Every second occurrence is merged, counted from the left. The
// thread of the run's first position walks along the run. After MAX_WALK steps, it leaves the rest
// of the run to the next dispatch of this kernel. Until all walks have ended, the batch's other
// kernels do nothing.
//
// binding 0  links          read        (positions)
// binding 1  slots          read_write  (positions) in: slot of the pair; out: MARK | k where pair
//                                       k of the batch is merged
// binding 2  position_list  read        (list_capacity) a range of positions for each pair
// binding 3  changes        read_write  (candidate_capacity) x: position at which a walk continues,
//                                       or NONE
// binding 4  entries        read_write  (entry_capacity) out: the entries of the previous batch are
//                                       free
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

// Returns `position` if a run begins there, else NONE. MARK counts as the pair's slot, because the
// thread of a run may have marked some of the run's positions already.
fn run_start(position: u32, slot: u32) -> u32 {
    let own = slots[position];
    let before = slots[links[position].preceding];
    let listed = own == slot || own == MARK;
    return select(NONE, position, listed && before != slot && before != MARK);
}

// Marks every second position of a run from `start` on. Returns the position at which the next
// dispatch continues, or NONE at the end of the run.
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
