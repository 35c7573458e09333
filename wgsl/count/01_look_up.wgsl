// count_look_up: counts the words that are in the table, and lists those that are not.
//
// A thread goes through the words that start in 32 bytes of text, one u32 of start bits.
//
// binding 0  params      uniform     CountParams
// binding 1  text        read        (length)
// binding 2  start_bits  read        (length bits) where words start
// binding 3  pending     read_write  (length bits) the words to look at; left: those to look at again
// binding 4  table       read        (slot_capacity) key, 1 + number of the word; 0 is free
// binding 5  word_data   read        (data_capacity) words: length, then bytes
// binding 6  counts      read_write  (word_capacity) occurrences by number
// binding 7  fresh       read_write  (fresh_capacity) key, start
// binding 8  state       read_write  CountState
// dispatch: one thread for 32 bytes of text
//!include common/workgroup.wgsl
//!include count/state.wgsl
//!include count/text.wgsl

@group(0) @binding(0) var<uniform> params: CountParams;
@group(0) @binding(1) var<storage, read> text: array<u32>;
@group(0) @binding(2) var<storage, read> start_bits: array<u32>;
@group(0) @binding(3) var<storage, read_write> pending: array<u32>;
@group(0) @binding(4) var<storage, read> table: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> word_data: array<u32>;
@group(0) @binding(6) var<storage, read_write> counts: array<atomic<u32>>;
@group(0) @binding(7) var<storage, read_write> fresh: array<vec4<u32>>;
@group(0) @binding(8) var<storage, read_write> state: CountState;

const NOT_FOUND: u32 = 0xFFFFFFFFu;

// Where the word that starts at `start` ends; NOT_FOUND if it has more than about MAX_WORD bytes.
fn word_end(start: u32) -> u32 {
    let segment = start >> 5u;
    let rest = start_bits[segment] & (0xFFFFFFFEu << (start & 31u));
    if (rest != 0u) { return min((segment << 5u) + countTrailingZeros(rest), params.main_end); }
    let last = min((params.main_end - 1u) >> 5u, (start + MAX_WORD) >> 5u);
    for (var i = segment + 1u; i <= last; i++) {
        let bits = start_bits[i];
        if (bits != 0u) { return min((i << 5u) + countTrailingZeros(bits), params.main_end); }
    }
    return select(NOT_FOUND, params.main_end, params.main_end <= start + MAX_WORD);
}

fn same_bytes(start: u32, length: u32, place: u32) -> bool {
    if (word_data[place] != length) { return false; }
    for (var done = 0u; done < length; done += 4u) {
        let four = first_bytes(four_bytes(start + done), length - done);
        if (word_data[place + 1u + done / 4u] != four) { return false; }
    }
    return true;
}

// The number of a word, NOT_FOUND if it is not in the table.
fn find(key: vec3<u32>, start: u32) -> u32 {
    let mask = state.slot_capacity - 1u;
    var slot = home_of(key) & mask;
    for (var probe = 0u; probe < MAX_PROBES; probe++) {
        let entry = table[slot];
        if (entry.w == 0u) { return NOT_FOUND; }
        if (entry.x == key.x && entry.z == key.z) {
            if (!is_hashed(key)) {
                if (entry.y == key.y) { return entry.w - 1u; }
            } else if (same_bytes(start, key.y, entry.y)) {
                return entry.w - 1u;
            }
        }
        slot = (slot + 1u) & mask;
    }
    return NOT_FOUND;
}

// Whether the word was counted or listed, or is none of ours.
fn take(start: u32) -> bool {
    let end = word_end(start);
    if (end == NOT_FOUND || end - start > MAX_WORD) {
        atomicAdd(&state.long, 1u);
        return true;
    }
    let key = key_of(start, end - start);
    let number = find(key, start);
    if (number != NOT_FOUND) {
        atomicAdd(&counts[number], 1u);
        return true;
    }
    let place = atomicAdd(&state.fresh, 1u);
    if (place >= state.fresh_capacity) { return false; }
    atomicAdd(&state.fresh_data, 1u + (end - start + 3u) / 4u);
    fresh[place] = vec4<u32>(key, start);
    return true;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn count_look_up(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let segment = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    let first = segment * 32u;
    if (first >= params.main_end) { return; }
    var wanted = pending[segment];
    if (params.main_end - first < 32u) {
        wanted &= (1u << (params.main_end - first)) - 1u;
    }
    var left = 0u;
    while (wanted != 0u) {
        let bit = countTrailingZeros(wanted);
        wanted &= wanted - 1u;
        if (!take(first + bit)) {
            left |= 1u << bit;
        }
    }
    pending[segment] = left;
    if (left != 0u) {
        atomicAdd(&state.pending, countOneBits(left));
    }
}
