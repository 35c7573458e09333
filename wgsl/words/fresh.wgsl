// The list of fresh words of a slice. Expects state among the bindings.

const OWN: u32 = 0x80000000u;
const NOBODY: u32 = 0xFFFFFFFFu; // owner of a word that was not taken in

fn fresh_count() -> u32 {
    return min(atomicLoad(&state.fresh), state.fresh_capacity);
}

// Whether the table has room for all fresh words even if they all differ. The number of words is
// that before the slice until words are numbered, so no thread may ask after that.
fn fresh_fit() -> bool {
    return atomicLoad(&state.words) + fresh_count() <= state.word_capacity
        && atomicLoad(&state.data_used) + atomicLoad(&state.fresh_data) <= state.data_capacity;
}

// Whether a fresh word is new in the table: of several equal fresh words, one is.
fn is_new(owner: u32) -> bool {
    return owner != NOBODY && (owner & OWN) != 0u;
}

// Bytes of the word with this key, as it is in the list.
fn length_of(key: vec3<u32>) -> u32 {
    return select(key.z >> 24u, key.y, is_hashed(key));
}
