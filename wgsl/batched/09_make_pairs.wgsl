// batched_make_pairs: gives slots to the new pairs of a batch, and adds the pairs that reach the
// threshold to the hot list.
//
// binding 0  entries      read_write  (entry_capacity) in: key, count, size; out: slot
// binding 1  pairs        read_write  (pair_capacity) by slot
// binding 2  pair_counts  read_write  (pair_capacity) by slot; out: 0 for the pairs of the batch
// binding 3  hot_list     read_write  (HOT_CAPACITY) slot, left symbol, right symbol, size of the
//                                     pair
// binding 4  lengths      read        (symbols) bytes of each symbol
// binding 5  state        read_write  BatchState
// dispatch: any number of workgroups
//!include common/workgroup.wgsl
//!include batched/make_pair.wgsl
//!include batched/rank.wgsl

@group(0) @binding(0) var<storage, read_write> entries: array<Entry>;
@group(0) @binding(1) var<storage, read_write> pairs: array<Pair>;
@group(0) @binding(2) var<storage, read_write> pair_counts: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read_write> hot_list: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> lengths: array<u32>;
@group(0) @binding(5) var<storage, read_write> state: BatchState;

@compute @workgroup_size(WORKGROUP_SIZE)
fn batched_make_pairs(
    @builtin(global_invocation_id) thread: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    if (state.status != RUNNING || atomicLoad(&state.unfinished) != 0u) { return; }
    if (thread.x < state.batch_size) {
        atomicStore(&pair_counts[state.batch[thread.x].slot], 0u);
    }
    let threshold = vec3<u32>(state.threshold_count, state.threshold_left, state.threshold_right);
    let used = atomicLoad(&state.used);
    for (var i = thread.x; i < used; i += workgroups.x * WORKGROUP_SIZE) {
        let place = entries[i].used;
        let packed = atomicLoad(&entries[place].key) - 1u;
        let other = packed & LAST_SYMBOL;
        let made = state.batch[packed >> (SYMBOL_BITS + 1u)].new_symbol;
        let left_is_new = ((packed >> SYMBOL_BITS) & 1u) == LEFT_IS_NEW;
        let left = select(other, made, left_is_new);
        let right = select(made, other, left_is_new);
        let count = atomicLoad(&entries[place].count);
        let size = atomicLoad(&entries[place].size);
        let slot = make_pair(left, right, count, size);
        entries[place].slot = slot;
        if (slot != NO_SLOT && at_least(rank_of(count, left, right), threshold)) {
            let listed = atomicAdd(&state.hot_count, 1u);
            if (listed < HOT_CAPACITY) {
                hot_list[listed] = vec4<u32>(slot, left, right, size);
            }
        }
    }
}
