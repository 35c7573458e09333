// Reads the list of fresh words, the words of a slice that were not found in the table. The list
// may contain equal words. The owner of a fresh word tells how the word enters the table:
// - OWN | slot if the fresh word itself is inserted. The kernel words_number replaces this by
//   OWN | number;
// - the index of an equal fresh word that is inserted in its place;
// - NOBODY if neither is inserted, and the word stays pending.
//
// Uses `state`, which the kernel that includes this file binds.

const OWN: u32 = 0x80000000u;    // flag: the fresh word itself is inserted
const NOBODY: u32 = 0xFFFFFFFFu; // the word is not inserted

// Returns the number of fresh words in the list.
fn fresh_count() -> u32 {
    return min(atomicLoad(&state.fresh), state.fresh_capacity);
}

// Returns whether the table has room for all fresh words even if they all differ. Only kernels
// before words_number may call this function, because words_number changes state.words and
// state.data_used.
fn fresh_fit() -> bool {
    return atomicLoad(&state.words) + fresh_count() <= state.word_capacity
        && atomicLoad(&state.data_used) + atomicLoad(&state.fresh_data) <= state.data_capacity;
}

// Returns whether a fresh word is a new word of the table. Of several equal fresh words, one is.
fn is_new(owner: u32) -> bool {
    return owner != NOBODY && (owner & OWN) != 0u;
}

// Returns the number of bytes of a fresh word with this key.
fn length_of(key: vec3<u32>) -> u32 {
    return select(key.z >> 24u, key.y, is_hashed(key));
}
