// Make a slot for a new pair. A pair that is too rare or too long gets NO_SLOT, since it can only
// become rarer.
//
// Expects pairs, pair_counts, lengths and state among the bindings.
//!include batched/state.wgsl

fn make_pair(left: u32, right: u32, count: u32, size: u32) -> u32 {
    if (count < state.min_frequency || lengths[left] + lengths[right] > state.max_length) {
        return NO_SLOT;
    }
    let slot = atomicAdd(&state.pair_count, 1u);
    pairs[slot] = Pair(left, right, atomicAdd(&state.list_length, size), size);
    atomicStore(&pair_counts[slot], count);
    return slot;
}
