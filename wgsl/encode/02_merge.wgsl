// encode_merge: byte pair encoding of the words that are new in the table.
//
// Of all pairs of neighbouring symbols the one of the lowest rank is merged, the leftmost of several,
// until no pair has a rank. A thread merges a word of up to THREAD_BYTES; its symbols and ranks lie
// where the word's bytes do, and what is behind a merged pair moves up. Longer words are merged by
// the whole workgroup, one after the other, as linked lists in workgroup memory.
//
// binding 0  text     read        (length)
// binding 1  fresh    read        (fresh_capacity) key, start
// binding 2  owners   read        (fresh_capacity) OWN | number of a new word
// binding 3  pairs    read        (64) four bytes' tokens each, then slots: left, right, rank, result
// binding 4  symbols  read_write  (length) from where a word starts, its tokens
// binding 5  ranks    read_write  (length) of a symbol and the next
// binding 6  entries  read_write  (word_capacity) in: 0 tokens, else the word is done; out: start, count
// binding 7  state    read_write  WordState
// dispatch: one thread a fresh word
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

override WHOLE_TOKENS: bool = false; // words that are tokens are done already
const THREAD_BYTES: u32 = 64u;
const LONGEST: u32 = 512u; // bytes of a word
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

fn byte_token(position: u32) -> u32 {
    let byte = (text[position >> 2u] >> ((position & 3u) * 8u)) & 0xFFu;
    return pairs[byte >> 2u][byte & 3u];
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
        symbols[i] = byte_token(i);
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

// The workgroup's long words, and the one that is being merged: by place of its symbols.
var<workgroup> sh_long: array<u32, WORKGROUP_SIZE>; // numbers in the list of fresh words
var<workgroup> sh_long_count: atomic<u32>;
var<workgroup> sh_symbols: array<u32, LONGEST>;
var<workgroup> sh_pairs: array<vec2<u32>, LONGEST>; // rank and result of a symbol and the next
var<workgroup> sh_before: array<u32, LONGEST>;
var<workgroup> sh_behind: array<u32, LONGEST>;
var<workgroup> sh_best: atomic<u32>;  // lowest rank
var<workgroup> sh_place: atomic<u32>; // first place that has it
var<workgroup> sh_uniform: u32;

// Gives all threads the value that thread 0 has.
fn broadcast(value: u32, local_index: u32) -> u32 {
    if (local_index == 0u) {
        sh_uniform = value;
    }
    return workgroupUniformLoad(&sh_uniform);
}

fn load_long(start: u32, length: u32, local_index: u32) {
    for (var i = local_index; i < length; i += WORKGROUP_SIZE) {
        sh_symbols[i] = byte_token(start + i);
        sh_before[i] = i - 1u;
        sh_behind[i] = i + 1u;
    }
    workgroupBarrier();
    for (var i = local_index; i < length; i += WORKGROUP_SIZE) {
        var pair = vec2<u32>(NO_RANK, 0u);
        if (i + 1u < length) {
            pair = look_up(sh_symbols[i], sh_symbols[i + 1u]);
        }
        sh_pairs[i] = pair;
    }
}

// Finds the place of the best pair, NO_RANK if there is none.
fn best_place(length: u32, local_index: u32) -> u32 {
    if (local_index == 0u) {
        atomicStore(&sh_best, NO_RANK);
        atomicStore(&sh_place, NO_RANK);
    }
    workgroupBarrier();
    var own = NO_RANK;
    for (var i = local_index; i < length; i += WORKGROUP_SIZE) {
        own = min(own, sh_pairs[i].x);
    }
    atomicMin(&sh_best, own);
    workgroupBarrier();
    let best = atomicLoad(&sh_best);
    for (var i = local_index; i < length; i += WORKGROUP_SIZE) {
        if (best != NO_RANK && sh_pairs[i].x == best) {
            atomicMin(&sh_place, i);
        }
    }
    workgroupBarrier();
    return broadcast(atomicLoad(&sh_place), local_index);
}

// Merges the pair at a place; the first thread sees to the pair behind, the second to that before.
fn merge_long_at(place: u32, length: u32, local_index: u32) {
    let symbol = sh_pairs[place].y;
    let gone = sh_behind[place];
    let behind = sh_behind[gone];
    let before = sh_before[place];
    workgroupBarrier();
    if (local_index == 0u) {
        sh_symbols[place] = symbol;
        sh_behind[place] = behind;
        sh_pairs[gone].x = NO_RANK;
        sh_pairs[place].x = NO_RANK;
        if (behind < length) {
            sh_before[behind] = place;
            sh_pairs[place] = look_up(symbol, sh_symbols[behind]);
        }
    } else if (local_index == 1u && place != 0u) {
        sh_pairs[before] = look_up(sh_symbols[before], symbol);
    }
    workgroupBarrier();
}

// Merges a word, all threads together, and puts its tokens where a short word's would be.
fn merge_long(fresh_number: u32, local_index: u32) {
    let start = fresh[fresh_number].w;
    let length = length_of(fresh[fresh_number].xyz);
    load_long(start, length, local_index);
    var place = best_place(length, local_index);
    while (place != NO_RANK) {
        merge_long_at(place, length, local_index);
        place = best_place(length, local_index);
    }
    if (local_index == 0u) {
        var count = 0u;
        for (var i = 0u; i < length; i = sh_behind[i]) {
            symbols[start + count] = sh_symbols[i];
            count += 1u;
        }
        entries[owners[fresh_number] ^ OWN] = Tokens(start, count);
    }
    workgroupBarrier();
}

// Merges a short word, lists a long one, leaves one that is done.
fn see_to(fresh_number: u32) {
    let owner = owners[fresh_number];
    if (!is_new(owner)) { return; }
    let number = owner ^ OWN;
    if (WHOLE_TOKENS && entries[number].count != 0u) { return; }
    let word = fresh[fresh_number];
    let length = length_of(word.xyz);
    if (length > THREAD_BYTES) {
        sh_long[atomicAdd(&sh_long_count, 1u)] = fresh_number;
        return;
    }
    var end = word.w + length;
    var place = begin_word(word.w, length);
    while (place != NO_RANK) {
        place = merge_at(place, word.w, end);
        end -= 1u;
    }
    entries[number] = Tokens(word.w, end - word.w);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn encode_merge(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    if (local_index == 0u) {
        atomicStore(&sh_long_count, 0u);
    }
    workgroupBarrier();
    let fresh_number = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    if (fresh_number < fresh_count()) {
        see_to(fresh_number);
    }
    workgroupBarrier();
    let long = broadcast(atomicLoad(&sh_long_count), local_index);
    for (var k = 0u; k < long; k++) {
        merge_long(broadcast(sh_long[k], local_index), local_index);
    }
}
