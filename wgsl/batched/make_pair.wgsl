// Gives a new pair a slot and a range of position_list, and returns the slot. A pair that is too
// rare or too long gets NO_SLOT, and never needs a slot later: its count can only fall.
//
// Uses pairs, pair_counts, lengths and state, which the kernel that includes this file binds.
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
