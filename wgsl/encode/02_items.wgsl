// encode_items: replaces the symbols of new words by ids, in a vocabulary of SentencePiece's kind.
//
// llmgpu/bpe/vocabulary/pieces.py defines the symbols and their items, and llmgpu/cpu/pieces.c is
// the same computation on the host. A symbol has at most as many items as bytes. So a word has at
// most as many ids as bytes, and its ids have room in its range of `symbols`, which has an element
// per byte.
//
// binding 0  fresh    read        (fresh_capacity) x, y, z: key; w: start of the word in the text
// binding 1  owners   read        (fresh_capacity) OWN | number for a new word
// binding 2  firsts   read        (symbols + 1) index in `items` of each symbol's first item
// binding 3  items    read        an id; or SIZE + n for the beginning of an unknown character that
//                                 lacks n bytes; or SIZE + CONTINUES for a later byte of a
//                                 character
// binding 4  symbols  read_write  (length) in: from the start of each new word its symbols; out:
//                                 its ids
// binding 5  entries  read_write  (word_capacity) start of a word; in: number of its symbols; out:
//                                 of its ids
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

override SIZE: u32 = 0u;        // number of ids in the vocabulary
override UNKNOWN: u32 = 0u;     // id of the unknown token
override FUSES: u32 = 0u;       // 1: unknown characters in a row become one id
const CONTINUES: u32 = 4u;      // SIZE + CONTINUES is the item of a later byte of a character

// Replaces the `count` symbols of a word by ids, and returns the number of ids.
fn replace(start: u32, count: u32, end: u32) -> u32 {
    // Move the symbols to the end of the word's range, so that each is read before an id overwrites
    // it.
    let moved = end - count;
    for (var k = count; k > 0u; k--) {
        symbols[moved + k - 1u] = symbols[start + k - 1u];
    }
    var place = start;
    var missing = 0u;        // bytes that the last unknown character lacks
    var was_unknown = false; // whether the last id is the unknown token
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
                if (!(was_unknown && FUSES != 0u)) {
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
