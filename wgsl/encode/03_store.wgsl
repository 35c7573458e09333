// encode_store: appends the tokens of new words to `ids`, which holds the tokens of all words of
// the table, and writes the number of each fresh word to `words`.
//
// binding 0  fresh    read        (fresh_capacity) x, y, z: key; w: start of the word in the text
// binding 1  owners   read        (fresh_capacity) OWN | number, index of an equal fresh word, or
//                                 NOBODY
// binding 2  words    read_write  (length) in: from the start of each new word its tokens; out: at
//                                 the start of each fresh word its number
// binding 3  entries  read_write  (word_capacity) in: start of a new word and number of its tokens;
//                                 out: index in `ids` of its first token in place of the start
// binding 4  ids      read_write  (4 * data_capacity) tokens of all words
// binding 5  state    read_write  WordState
// dispatch: any number of workgroups
//!include common/workgroup.wgsl
//!include words/state.wgsl
//!include words/fresh.wgsl
//!include encode/params.wgsl

@group(0) @binding(0) var<storage, read> fresh: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> owners: array<u32>;
@group(0) @binding(2) var<storage, read_write> words: array<u32>;
@group(0) @binding(3) var<storage, read_write> entries: array<Tokens>;
@group(0) @binding(4) var<storage, read_write> ids: array<u32>;
@group(0) @binding(5) var<storage, read_write> state: WordState;

// Copies the tokens of a new word to `ids`. `ids` always has room: it has four elements for each
// u32 of word_data, which holds four bytes of a word, and a word has at most as many tokens as
// bytes.
fn store(number: u32) {
    let tokens = entries[number];
    let place = atomicAdd(&state.ids_used, tokens.count);
    for (var k = 0u; k < tokens.count; k++) {
        ids[place + k] = words[tokens.first + k];
    }
    entries[number].first = place;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn encode_store(
    @builtin(global_invocation_id) thread: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let count = fresh_count();
    for (var i = thread.x; i < count; i += workgroups.x * WORKGROUP_SIZE) {
        var owner = owners[i];
        if (owner == NOBODY) { continue; }
        if (is_new(owner)) {
            store(owner ^ OWN);
        } else {
            owner = owners[owner];
        }
        words[fresh[i].w] = owner ^ OWN;
    }
}
