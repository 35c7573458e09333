// encode_merge: byte pair encoding of the words that are new in the table.
//
// A thread merges a word: of all pairs of neighbouring symbols the one of the lowest rank, the
// leftmost of several, until no pair has a rank. Symbols and ranks lie where the word's bytes do;
// what is behind a merged pair moves up.
//
// binding 0  text     read        (length)
// binding 1  fresh    read        (fresh_capacity) key, start
// binding 2  owners   read        (fresh_capacity) OWN | number of a new word
// binding 3  pairs    read        (64) four bytes' tokens each, then slots: left, right, rank, result
// binding 4  symbols  read_write  (length) from where a word starts, its tokens
// binding 5  ranks    read_write  (length) of a symbol and the next
// binding 6  entries  read_write  (word_capacity) in: 0 tokens, else the word is done; out: start, count
// binding 7  state    read_write  WordState
// dispatch: any number of workgroups
//!include common/workgroup.wgsl
//!include words/state.wgsl
//!include words/fresh.wgsl
//!include encode/params.wgsl

@group(0) @binding(0) var<storage, read> text: array<u32>;
@group(0) @binding(1) var<storage, read> fresh: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> owners: array<u32>;
@group(0) @binding(3) var<storage, read> pairs: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> symbols: array<u32>;
@group(0) @binding(5) var<storage, read_write> ranks: array<u32>;
@group(0) @binding(6) var<storage, read_write> entries: array<Tokens>;
@group(0) @binding(7) var<storage, read_write> state: WordState;

override IGNORE_MERGES: bool = false; // words that are tokens are done already
const BYTE_VECTORS: u32 = 64u;
const NO_RANK: u32 = 0xFFFFFFu;
const FREE: u32 = 0xFFFFFFFFu; // rank of a free slot

// Rank and result of a pair.
fn look_up(left: u32, right: u32) -> vec2<u32> {
    let mask = arrayLength(&pairs) - BYTE_VECTORS - 1u;
    var hash = left * 0x9E3779B1u;
    hash = (hash ^ (hash >> 15u) ^ right) * 0x85EBCA77u;
    hash ^= hash >> 13u;
    for (var slot = hash & mask; ; slot = (slot + 1u) & mask) {
        let entry = pairs[BYTE_VECTORS + slot];
        if (entry.x == left && entry.y == right) { return entry.zw; }
        if (entry.z == FREE) { break; }
    }
    return vec2<u32>(NO_RANK, 0u);
}

fn rank_at(place: u32) -> u32 {
    return look_up(symbols[place], symbols[place + 1u]).x;
}

// Puts the symbols of a word's bytes and the ranks of its pairs in place; returns the best pair's
// place, NO_RANK if there is none.
fn begin_word(start: u32, length: u32) -> u32 {
    var best = NO_RANK;
    var best_place = NO_RANK;
    for (var i = start; i < start + length; i++) {
        let byte = (text[i >> 2u] >> ((i & 3u) * 8u)) & 0xFFu;
        symbols[i] = pairs[byte >> 2u][byte & 3u];
        if (i > start) {
            let rank = rank_at(i - 1u);
            ranks[i - 1u] = rank;
            if (rank < best) {
                best = rank;
                best_place = i - 1u;
            }
        }
    }
    return best_place;
}

// Merges the pair at `place` of a word that ends at `end`; returns the next best pair's place.
fn merge_at(place: u32, start: u32, end: u32) -> u32 {
    symbols[place] = look_up(symbols[place], symbols[place + 1u]).y;
    var best = NO_RANK;
    var best_place = NO_RANK;
    for (var i = start; i < end - 1u; i++) {
        if (i > place) {
            symbols[i] = symbols[i + 1u];
            ranks[i] = ranks[i + 1u];
        }
        var rank = ranks[i];
        if (i + 1u == place) {
            rank = rank_at(i);
            ranks[i] = rank;
        } else if (i == place) {
            rank = NO_RANK;
            if (i + 2u < end) {
                rank = look_up(symbols[i], symbols[i + 2u]).x;
            }
            ranks[i] = rank;
        }
        if (rank < best && i + 2u < end) {
            best = rank;
            best_place = i;
        }
    }
    return best_place;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn encode_merge(
    @builtin(global_invocation_id) thread: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let count = fresh_count();
    for (var i = thread.x; i < count; i += workgroups.x * WORKGROUP_SIZE) {
        if (!is_new(owners[i])) { continue; }
        let number = owners[i] ^ OWN;
        if (IGNORE_MERGES && entries[number].count != 0u) { continue; }
        let start = fresh[i].w;
        var end = start + length_of(fresh[i].xyz);
        var place = begin_word(start, end - start);
        while (place != NO_RANK) {
            place = merge_at(place, start, end);
            end -= 1u;
        }
        entries[number] = Tokens(start, end - start);
    }
}
