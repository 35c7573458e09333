// words_claim: claims a slot of the table for each distinct fresh word. Of equal fresh words, the
// first to arrive gets the slot.
//
// If the table has no room for all fresh words, no word is inserted, and all fresh words stay
// pending.
//
// binding 0  text      read        (length) bytes, four per u32
// binding 1  fresh     read        (fresh_capacity) x, y, z: key; w: start of the word in the text
// binding 2  owners    read_write  (fresh_capacity) out: OWN | slot, index of an equal fresh word,
//                                  or NOBODY
// binding 3  slots     read_write  (slot_capacity) 0: free; TAKEN: holds a word of the table; else
//                                  1 + index of the fresh word that claims the slot
// binding 4  pending   read_write  (length bits) out: 1 for a fresh word that is not inserted
// binding 5  state     read_write  WordState
// binding 6  hash_key  uniform     four numbers, see common/hash.wgsl
// dispatch: any number of workgroups
//!include common/workgroup.wgsl
//!include words/home.wgsl
//!include words/text.wgsl
//!include words/fresh.wgsl

@group(0) @binding(0) var<storage, read> text: array<u32>;
@group(0) @binding(1) var<storage, read> fresh: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> owners: array<u32>;
@group(0) @binding(3) var<storage, read_write> slots: array<atomic<u32>>;
@group(0) @binding(4) var<storage, read_write> pending: array<atomic<u32>>;
@group(0) @binding(5) var<storage, read_write> state: WordState;
@group(0) @binding(6) var<uniform> hash_key: vec4<u32>;

// Returns whether two fresh words are equal.
fn same_word(a: vec4<u32>, b: vec4<u32>) -> bool {
    if (any(a.xyz != b.xyz)) { return false; }
    if (!is_hashed(a.xyz)) { return true; }
    for (var done = 0u; done < a.y; done += 4u) {
        let left = a.y - done;
        if (first_bytes(four_bytes(a.w + done), left) != first_bytes(four_bytes(b.w + done), left)) {
            return false;
        }
    }
    return true;
}

// Claims a slot for fresh word i, and returns OWN | slot. If an equal fresh word has claimed a
// slot, returns the index of that word. Returns NOBODY if no slot is found.
fn owner_of(i: u32) -> u32 {
    let word = fresh[i];
    let mask = state.slot_capacity - 1u;
    var slot = home_of(word.xyz) & mask;
    for (var probe = 0u; probe < MAX_PROBES; probe++) {
        let claim = atomicCompareExchangeWeak(&slots[slot], 0u, i + 1u);
        if (claim.exchanged) { return OWN | slot; }
        if (claim.old_value == 0u) { continue; } // the weak exchange failed for no reason
        if (claim.old_value != TAKEN && same_word(word, fresh[claim.old_value - 1u])) {
            return claim.old_value - 1u;
        }
        slot = (slot + 1u) & mask;
    }
    return NOBODY;
}

// Leaves fresh word i to another run of the slice.
fn leave_pending(i: u32) {
    let start = fresh[i].w;
    atomicOr(&pending[start >> 5u], 1u << (start & 31u));
    atomicAdd(&state.pending, 1u);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn words_claim(
    @builtin(global_invocation_id) thread: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let count = fresh_count();
    let fits = fresh_fit();
    if (!fits && thread.x == 0u) {
        atomicStore(&state.full, 1u);
    }
    for (var i = thread.x; i < count; i += workgroups.x * WORKGROUP_SIZE) {
        var owner = NOBODY;
        if (fits) {
            owner = owner_of(i);
        }
        owners[i] = owner;
        if (owner == NOBODY) {
            leave_pending(i);
        }
    }
}
