// bpe_find_max4: finds the best pair among the slots of each workgroup, and empties the pair table.
// A thread compares four slots.
//
// binding 0  pair_counts  read_write  (table_size) out: 0
// binding 1  pair_ids     read_write  (table_size) out: EMPTY_PAIR
// binding 2  candidates   read_write  (workgroups) out: best pair of each workgroup: count, packed
//                                     pair
// binding 3  state        read        IterState
// dispatch: ceil(table_size / (4 * WORKGROUP_SIZE))
// source: find_max4. Here the kernel also clears the slots, which saves a dispatch for each merge.
//!include recount/best_pair.wgsl
//!include recount/iter_state.wgsl

const SLOTS_PER_THREAD: u32 = 4u;

@group(0) @binding(0) var<storage, read_write> pair_counts: array<u32>;
@group(0) @binding(1) var<storage, read_write> pair_ids: array<u32>;
@group(0) @binding(2) var<storage, read_write> candidates: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read> state: IterState;

@compute @workgroup_size(WORKGROUP_SIZE)
fn bpe_find_max4(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let group = flat_group(workgroup, workgroups);
    var best = vec2<u32>(0u, EMPTY_PAIR);
    for (var k = 0u; k < SLOTS_PER_THREAD; k++) {
        let slot = (group * SLOTS_PER_THREAD + k) * WORKGROUP_SIZE + local_index;
        if (slot < state.table_size) {
            let count = pair_counts[slot];
            if (count > 0u) {
                best = better(best, vec2<u32>(count, pair_ids[slot]));
                pair_counts[slot] = 0u;
                pair_ids[slot] = EMPTY_PAIR;
            }
        }
    }
    best = workgroup_best(best, local_index);
    if (local_index == 0u && group * SLOTS_PER_THREAD * WORKGROUP_SIZE < state.table_size) {
        candidates[group] = best;
    }
}
