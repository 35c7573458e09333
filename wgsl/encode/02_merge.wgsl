// encode_merge: encodes the new words of the table by byte pair encoding.
//
// Each thread encodes one word. It merges the pair of neighbouring symbols with the lowest rank,
// the leftmost if several pairs have this rank, and repeats this until no pair has a rank. The
// thread merges pairs of the same rank in one walk from left to right. The walk ends early if a
// merge makes a pair of this rank or a lower one, which may have to be merged before the next pair.
//
// A symbol is stored at the position of its first byte. The link at this position holds the
// symbol's number of bytes, which leads to the next symbol, and the rank of the pair of the two
// symbols.
//
// binding 0  text      read        (length) bytes, four per u32
// binding 1  fresh     read        (fresh_capacity) x, y, z: key; w: start of the word in the text
// binding 2  owners    read        (fresh_capacity) OWN | number for a new word
// binding 3  pairs     read        (64) the tokens of the 256 bytes, four per vector; then slots of
//                                  a hash table: left, right, rank, result
// binding 4  symbols   read_write  (length) out: from the start of each new word its tokens
// binding 5  links     read_write  (length) rank << BYTE_BITS | bytes
// binding 6  entries   read_write  (word_capacity) in, if WHOLE_TOKENS: see encode_whole_tokens;
//                                  out: start of a new word and number of its tokens
// binding 7  state     read_write  WordState
// binding 8  hash_key  uniform     four numbers, see common/hash.wgsl
// dispatch: one thread per fresh word
//!include common/workgroup.wgsl
//!include common/hash.wgsl
//!include words/state.wgsl
//!include words/fresh.wgsl
//!include encode/params.wgsl

@group(0) @binding(0) var<storage, read> text: array<u32>;
@group(0) @binding(1) var<storage, read> fresh: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> owners: array<u32>;
@group(0) @binding(3) var<storage, read> pairs: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> symbols: array<u32>;
@group(0) @binding(5) var<storage, read_write> links: array<u32>;
@group(0) @binding(6) var<storage, read_write> entries: array<Tokens>;
@group(0) @binding(7) var<storage, read_write> state: WordState;
@group(0) @binding(8) var<uniform> hash_key: vec4<u32>;

override WHOLE_TOKENS: u32 = 0u; // 1: encode_whole_tokens ran before
const BYTE_BITS: u32 = 10u;      // bits of a link that hold the symbol's bytes: 1023 at most
const BYTE_MASK: u32 = 1023u;
const NO_RANK: u32 = 0x3FFFFFu;  // rank of two symbols that do not merge
const BYTE_VECTORS: u32 = 64u;   // vectors of `pairs` before the hash table
const FREE: u32 = 0xFFFFFFFFu;   // rank of a free slot

// The pair of a word to merge next.
struct Best {
    rank: u32,
    place: u32,  // position of the pair's left symbol
    before: u32, // position of the symbol before the pair; NONE if there is none
    count: u32,  // pairs of this rank from this pair on
}

const NONE: u32 = 0xFFFFFFFFu;

// Returns the token of the byte at a position of the text.
fn byte_token(position: u32) -> u32 {
    let byte = (text[position >> 2u] >> ((position & 3u) * 8u)) & 0xFFu;
    return pairs[byte >> 2u][byte & 3u];
}

// Returns the rank and the result of a pair; NO_RANK if the pair does not merge.
fn look_up(left: u32, right: u32) -> vec2<u32> {
    let mask = arrayLength(&pairs) - BYTE_VECTORS - 1u;
    for (var slot = hash_pair(left, right) & mask; ; slot = (slot + 1u) & mask) {
        let entry = pairs[BYTE_VECTORS + slot];
        if (entry.x == left && entry.y == right) { return entry.zw; }
        if (entry.z == FREE) { break; }
    }
    return vec2<u32>(NO_RANK, 0u);
}

fn rank_at(place: u32) -> u32 {
    return links[place] >> BYTE_BITS;
}

// Sets the link of the symbol at position `place`, which has `bytes` bytes. The word ends at `end`.
fn set_link(place: u32, bytes: u32, end: u32) {
    var rank = NO_RANK;
    if (place + bytes < end) {
        rank = look_up(symbols[place], symbols[place + bytes]).x;
    }
    links[place] = (rank << BYTE_BITS) | bytes;
}

// Returns the leftmost pair of the lowest rank.
fn find_best(start: u32, end: u32) -> Best {
    var best = Best(NO_RANK, start, NONE, 0u);
    var before = NONE;
    for (var place = start; place < end; ) {
        let link = links[place];
        if (link >> BYTE_BITS < best.rank) {
            best = Best(link >> BYTE_BITS, place, before, 0u);
        }
        best.count += u32(link >> BYTE_BITS == best.rank);
        before = place;
        place += link & BYTE_MASK;
    }
    return best;
}

// Merges a pair, and updates the links of the new symbol and of the symbol before it.
fn merge(best: Best, end: u32) {
    let left_bytes = links[best.place] & BYTE_MASK;
    let right = best.place + left_bytes;
    symbols[best.place] = look_up(symbols[best.place], symbols[right]).y;
    set_link(best.place, left_bytes + (links[right] & BYTE_MASK), end);
    if (best.before != NONE) {
        set_link(best.before, links[best.before] & BYTE_MASK, end);
    }
}

// Merges the pairs of the rank of `first` from left to right, until a merge makes a pair of this
// rank or a lower one.
fn merge_all(first: Best, end: u32) {
    var best = first;
    loop {
        // If the right symbol begins another pair of this rank, the merge removes that pair, too.
        let right = best.place + (links[best.place] & BYTE_MASK);
        best.count -= 1u + u32(rank_at(right) == best.rank);
        merge(best, end);
        if (best.count == 0u || rank_at(best.place) <= best.rank) { return; }
        if (best.before != NONE && rank_at(best.before) <= best.rank) { return; }
        while (best.place < end && rank_at(best.place) != best.rank) {
            best.before = best.place;
            best.place += links[best.place] & BYTE_MASK;
        }
        if (best.place >= end) { return; }
    }
}

// Moves the word's remaining symbols to its start, without gaps, and returns their number.
fn gather(start: u32, end: u32) -> u32 {
    var count = 0u;
    for (var place = start; place < end; ) {
        symbols[start + count] = symbols[place];
        count += 1u;
        place += links[place] & BYTE_MASK;
    }
    return count;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn encode_merge(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    if (i >= fresh_count() || !is_new(owners[i])) { return; }
    let number = owners[i] ^ OWN;
    if (WHOLE_TOKENS != 0u && entries[number].count != 0u) { return; }
    let start = fresh[i].w;
    let end = start + length_of(fresh[i].xyz);
    for (var place = start; place < end; place++) {
        symbols[place] = byte_token(place);
    }
    for (var place = start; place < end; place++) {
        set_link(place, 1u, end);
    }
    var best = find_best(start, end);
    while (best.rank != NO_RANK) {
        merge_all(best, end);
        best = find_best(start, end);
    }
    entries[number] = Tokens(start, gather(start, end));
}
