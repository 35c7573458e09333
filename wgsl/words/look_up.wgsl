// Looks up the words of a slice in the table, and lists the words that are not in the table as
// fresh.
//
// The kernel that includes this file binds params, text, start_bits, pending, table, word_data,
// fresh, state and hash_key. It defines found(start, number), which is called for each word in the
// table, and too_long(start), which is called for each word of more than MAX_WORD bytes.
//!include common/workgroup.wgsl
//!include words/home.wgsl
//!include words/text.wgsl

const NOT_FOUND: u32 = 0xFFFFFFFFu;

// Returns the end of the word that starts at `start`. If the word has more than MAX_WORD bytes, the
// function may return NOT_FOUND instead.
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

// Returns whether the word of `length` bytes at `start` is the word at word_data[place].
fn same_bytes(start: u32, length: u32, place: u32) -> bool {
    if (word_data[place] != length) { return false; }
    for (var done = 0u; done < length; done += 4u) {
        let four = first_bytes(four_bytes(start + done), length - done);
        if (word_data[place + 1u + done / 4u] != four) { return false; }
    }
    return true;
}

// Returns the key of a word. A hashed key is (hash, length, HASHED | hash). Each round of the hash
// takes eight bytes of the word; the last eight bytes may overlap with the eight bytes before.
fn key_of(start: u32, length: u32) -> vec3<u32> {
    if (length <= EXACT_BYTES) {
        var key = vec3<u32>(first_bytes(four_bytes(start), length), 0u, length << 24u);
        if (length > 4u) {
            key.y = first_bytes(four_bytes(start + 4u), length - 4u);
        }
        if (length > 8u) {
            key.z |= first_bytes(four_bytes(start + 8u), length - 8u);
        }
        return key;
    }
    var hash = vec2<u32>(length, 0u);
    for (var done = 0u; done < length; done += 8u) {
        let place = start + min(done, length - 8u);
        hash = keyed_product(hash, vec2<u32>(four_bytes(place), four_bytes(place + 4u)));
    }
    hash &= vec2<u32>(HASH_MASK, HASH_MASK & 0xFFFFFFu);
    return vec3<u32>(hash.x, length, HASHED | hash.y);
}

// Returns the number of the word with this key, or NOT_FOUND if the word is not in the table.
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

// Looks up the word at `start`. Returns false if the list of fresh words is full: the word stays
// pending.
fn take(start: u32) -> bool {
    let end = word_end(start);
    if (end == NOT_FOUND || end - start > MAX_WORD) {
        atomicAdd(&state.long, 1u);
        too_long(start);
        return true;
    }
    let key = key_of(start, end - start);
    let number = find(key, start);
    if (number != NOT_FOUND) {
        found(start, number);
        return true;
    }
    let place = atomicAdd(&state.fresh, 1u);
    if (place >= state.fresh_capacity) { return false; }
    atomicAdd(&state.fresh_data, 1u + (end - start + 3u) / 4u);
    fresh[place] = vec4<u32>(key, start);
    return true;
}

// Looks up the pending words that start in a segment, 32 bytes of text, and writes which words stay
// pending.
fn take_segment(segment: u32) {
    let first = segment * 32u;
    if (first >= params.main_end || state.undecided != 0u) { return; }
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
