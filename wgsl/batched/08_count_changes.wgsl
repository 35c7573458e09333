// batched_count_changes: updates the counts of pairs for the marked merges. It subtracts the pairs
// that these merges will destroy, and counts the new pairs that they will make.
//
// A merged occurrence changes two pairs of neighbours: the symbol before it with the new symbol,
// and the new symbol with the symbol after it. The old pair loses the word's weight, and the new
// pair gains the weight. If two merged occurrences are neighbours, the left occurrence counts the
// pair of their new symbols. This kernel does not change units and links, because other threads
// still read them; batched_link changes them.
//
// binding 0  units          read        (positions)
// binding 1  links          read        (positions)
// binding 2  slots          read        (positions) slot, or MARK | k where pair k of the batch is
//                                       merged
// binding 3  position_list  read        (list_capacity) a range of positions for each pair
// binding 4  changes        read_write  (candidate_capacity) out: x: index of the entry of the new
//                                       pair with the symbol before, or a value of change.wgsl; y:
//                                       number of this occurrence of the new pair, from 0; z, w:
//                                       the same for the new pair with the symbol after
// binding 5  pair_counts    read_write  (pair_capacity) by slot
// binding 6  entries        read_write  (entry_capacity) hash table of the new pairs
// binding 7  state          read_write  BatchState
// binding 8  hash_key       uniform     four numbers, see common/hash.wgsl
// dispatch: any number of workgroups
//!include common/workgroup.wgsl
//!include common/hash.wgsl
//!include batched/member_of.wgsl
//!include batched/change.wgsl

@group(0) @binding(0) var<storage, read> units: array<Unit>;
@group(0) @binding(1) var<storage, read> links: array<Link>;
@group(0) @binding(2) var<storage, read> slots: array<u32>;
@group(0) @binding(3) var<storage, read> position_list: array<u32>;
@group(0) @binding(4) var<storage, read_write> changes: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> pair_counts: array<atomic<u32>>;
@group(0) @binding(6) var<storage, read_write> entries: array<Entry>;
@group(0) @binding(7) var<storage, read_write> state: BatchState;
@group(0) @binding(8) var<uniform> hash_key: vec4<u32>;

// Returns the index of a new pair's entry, and makes the entry if there is none. The table is at
// most half full, so the search ends long before the bound on `tries`.
fn find_entry(key: u32) -> u32 {
    let mask = state.entry_capacity - 1u;
    var place = hash_number(key) & mask;
    for (var tries = 0u; tries < 4u * state.entry_capacity; tries++) {
        let seen = atomicLoad(&entries[place].key);
        if (seen == key) { return place; }
        if (seen == 0u) {
            let claim = atomicCompareExchangeWeak(&entries[place].key, 0u, key);
            if (claim.exchanged) {
                entries[atomicAdd(&state.used, 1u)].used = place;
                return place;
            }
            continue; // another thread took the entry, or the weak exchange failed for no reason
        }
        place = (place + 1u) & mask;
    }
    return place;
}

// Moves a weight from the old pair to the new pair with this key. Returns the index of the new
// pair's entry, and how many occurrences of the pair were counted before this one.
fn change(old_slot: u32, key: u32, weight: u32) -> vec2<u32> {
    if (old_slot != NO_SLOT) {
        atomicSub(&pair_counts[old_slot], weight);
    }
    let entry = find_entry(key);
    atomicAdd(&entries[entry].count, weight);
    return vec2<u32>(entry, atomicAdd(&entries[entry].size, 1u));
}

// Returns whether a pair of the batch is merged at a position.
fn is_merged(position: u32) -> bool {
    return (slots[position] & MARK) != 0u;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn batched_count_changes(
    @builtin(global_invocation_id) thread: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    load_batch(local_index, WORKGROUP_SIZE);
    if (state.status != RUNNING || atomicLoad(&state.unfinished) != 0u) { return; }
    for (var i = thread.x; i < state.candidates; i += workgroups.x * WORKGROUP_SIZE) {
        let k = member_of(i);
        let member = state.batch[k];
        let first = position_list[member.first + i - member.start];
        if (slots[first] != (MARK | k)) {
            changes[i].x = STALE;
            continue;
        }
        let second = links[first].following;
        let before = links[first].preceding;
        let after = links[second].following;
        let symbol_before = units[before].symbol;
        let symbol_after = units[after].symbol;
        let weight = units[first].weight;
        var made = vec4<u32>(UNCHANGED, 0u, UNCHANGED, 0u);
        if (symbol_before != SEPARATOR && !is_merged(links[before].preceding)) {
            let key = entry_key(k, RIGHT_IS_NEW, symbol_before);
            let gained = change(slots[before], key, weight);
            made.x = gained.x;
            made.y = gained.y;
        }
        if (symbol_after != SEPARATOR) {
            var other = symbol_after;
            if (is_merged(after)) {
                other = state.batch[slots[after] ^ MARK].new_symbol;
            }
            let key = entry_key(k, LEFT_IS_NEW, other);
            let gained = change(slots[second], key, weight);
            made.z = gained.x;
            made.w = gained.y;
        }
        changes[i] = made;
        if (state.equal_parts != 0u) {
            atomicAdd(&state.taken, weight);
        }
    }
}
