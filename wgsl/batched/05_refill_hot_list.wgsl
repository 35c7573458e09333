// batched_refill_hot_list: fills the hot list with the pairs whose rank reaches the threshold.
//
// binding 0  pairs        read        (pair_capacity) by slot
// binding 1  pair_counts  read        (pair_capacity) by slot
// binding 2  hot_list     read_write  (HOT_CAPACITY) slot, left symbol, right symbol, size of the
//                                     pair
// binding 3  state        read_write  BatchState; the kernel fills the list only if status is
//                                     REFILL
// dispatch: any number of workgroups
//!include common/workgroup.wgsl
//!include batched/state.wgsl
//!include batched/rank.wgsl

@group(0) @binding(0) var<storage, read> pairs: array<Pair>;
@group(0) @binding(1) var<storage, read> pair_counts: array<u32>;
@group(0) @binding(2) var<storage, read_write> hot_list: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> state: BatchState;

@compute @workgroup_size(WORKGROUP_SIZE)
fn batched_refill_hot_list(
    @builtin(global_invocation_id) thread: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    if (state.status != REFILL) { return; }
    let threshold = vec3<u32>(state.threshold_count, state.threshold_left, state.threshold_right);
    let count = atomicLoad(&state.pair_count);
    for (var slot = thread.x; slot < count; slot += workgroups.x * WORKGROUP_SIZE) {
        let occurrences = pair_counts[slot];
        if (occurrences < max(state.min_frequency, threshold.x)) { continue; }
        let pair = pairs[slot];
        if (at_least(rank_of(occurrences, pair.left, pair.right), threshold)) {
            let place = atomicAdd(&state.hot_count, 1u);
            hot_list[place] = vec4<u32>(slot, pair.left, pair.right, pair.size);
        }
    }
}
