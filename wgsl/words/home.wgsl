// Computes the slot in which the search for a word begins. Uses the uniform hash_key, which the
// kernel that includes this file binds.
//!include common/hash.wgsl
//!include words/state.wgsl

// Returns the hash of a key, whose lowest bits are the first slot of the search. The hash of a
// hashed key leaves key.y out: it is the word's length in `fresh`, but its index in word_data in
// the table.
fn home_of(key: vec3<u32>) -> u32 {
    return hash_triple(vec3<u32>(key.x, select(key.y, 0u, is_hashed(key)), key.z)) & HASH_MASK;
}
