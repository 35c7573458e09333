// Where the search for a word's key begins. Expects the uniform hash_key among the globals.
//!include common/hash.wgsl
//!include words/state.wgsl

// The slot in which the search for a table's key begins. A hashed key's second part says where the
// bytes are, which a new word does not know yet.
fn home_of(key: vec3<u32>) -> u32 {
    return hash_triple(vec3<u32>(key.x, select(key.y, 0u, is_hashed(key)), key.z)) & HASH_MASK;
}
