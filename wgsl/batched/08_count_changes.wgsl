// batched_count_changes: moves counts from old pairs to new pairs, as merging the marked
// occurrences will do.
//
// Each boundary in the merged text between a new symbol and another symbol is a change: the old
// pair there loses the word's weight, and the new pair gains it. A boundary between two new symbols
// belongs to the left one. Links and symbols do not change until all threads are done.
//
// binding 0  units          read        (positions)
// binding 1  links          read        (positions)
// binding 2  slots          read        (positions)
// binding 3  position_list  read        (list_capacity)
// binding 4  changes        read_write  (candidate_capacity) on the left: entry, place; on the right: entry, place
// binding 5  pair_counts    read_write  (pair_capacity)
// binding 6  entries        read_write  (entry_capacity)
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

// The entry of a new pair. The table is at most half full; the bound only keeps the loop finite.
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
            continue; // another thread was first, or a weak exchange failed for no reason
        }
        place = (place + 1u) & mask;
    }
    return place;
}

// Returns the new pair's entry and this occurrence's place among its others.
fn change(old_slot: u32, key: u32, weight: u32) -> vec2<u32> {
    if (old_slot != NO_SLOT) {
        atomicSub(&pair_counts[old_slot], weight);
    }
    let entry = find_entry(key);
    atomicAdd(&entries[entry].count, weight);
    return vec2<u32>(entry, atomicAdd(&entries[entry].size, 1u));
}

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
