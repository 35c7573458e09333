// encode_items: replaces the symbols of new words by ids, in a vocabulary of SentencePiece's kind.
//
// llmgpu/bpe/vocabulary/symbols.py defines the symbols and their items, and llmgpu/cpu/pieces.c does
// the same on the host. A symbol covers at least as many bytes of a word as it has items, so the ids
// of a word fit where its bytes' symbols were.
//
// binding 0  fresh    read        (fresh_capacity) key, start
// binding 1  owners   read        (fresh_capacity) OWN | number of a new word
// binding 2  firsts   read        (symbols + 1) where the items of each symbol start
// binding 3  items    read        an id, SIZE + the bytes that an unknown character still lacks, or
//                                 SIZE + CONTINUES
// binding 4  symbols  read_write  (length) from where a word starts: in its symbols, out its ids
// binding 5  entries  read_write  (word_capacity) start of a word and count of its symbols, then ids
// binding 6  state    read_write  WordState
// dispatch: any number of workgroups
//!include common/workgroup.wgsl
//!include words/state.wgsl
//!include words/fresh.wgsl
//!include encode/params.wgsl

@group(0) @binding(0) var<storage, read> fresh: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> owners: array<u32>;
@group(0) @binding(2) var<storage, read> firsts: array<u32>;
@group(0) @binding(3) var<storage, read> items: array<u32>;
@group(0) @binding(4) var<storage, read_write> symbols: array<u32>;
@group(0) @binding(5) var<storage, read_write> entries: array<Tokens>;
@group(0) @binding(6) var<storage, read_write> state: WordState;

override SIZE: u32 = 0u;        // ids of the vocabulary
override UNKNOWN: u32 = 0u;     // the unknown token
override FUSES: bool = false;   // unknown characters in a row become one id
const CONTINUES: u32 = 4u;      // item of a byte that continues a character

// Replaces the symbols of a word in place; returns how many ids there are.
fn replace(start: u32, count: u32, end: u32) -> u32 {
    // Move the symbols to the end of the word, so that each is read before an id overwrites it.
    let moved = end - count;
    for (var k = count; k > 0u; k--) {
        symbols[moved + k - 1u] = symbols[start + k - 1u];
    }
    var place = start;
    var missing = 0u;        // bytes that an unknown character still lacks
    var was_unknown = false; // the last id
    for (var k = moved; k < end; k++) {
        let symbol = symbols[k];
        let last = firsts[symbol + 1u];
        for (var at = firsts[symbol]; at < last; at++) {
            let item = items[at];
            if (item < SIZE) {
                symbols[place] = item;
                place += 1u;
                missing = 0u;
                was_unknown = false;
            } else if (item == SIZE + CONTINUES && missing > 0u) {
                missing -= 1u;
            } else {
                missing = select(item - SIZE, 0u, item == SIZE + CONTINUES);
                if (!(was_unknown && FUSES)) {
                    symbols[place] = UNKNOWN;
                    place += 1u;
                }
                was_unknown = true;
            }
        }
    }
    return place - start;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn encode_items(
    @builtin(global_invocation_id) thread: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let count = fresh_count();
    for (var i = thread.x; i < count; i += workgroups.x * WORKGROUP_SIZE) {
        if (!is_new(owners[i])) { continue; }
        let number = owners[i] ^ OWN;
        let start = fresh[i].w;
        entries[number].count = replace(
            start, entries[number].count, start + length_of(fresh[i].xyz));
    }
}
