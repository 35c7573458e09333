// encode_emit: copies the tokens of every word of the text to the output.
//
// binding 0  params      uniform     SliceParams
// binding 1  start_bits  read        (length bits) 1 where a word starts
// binding 2  words       read        (length) at the start of each word its number
// binding 3  entries     read        (word_capacity) index in `ids` of a word's first token, number
//                                    of its tokens
// binding 4  ids         read        tokens of all words of the table
// binding 5  offsets     read        (segments) tokens of the earlier segments of the same
//                                    workgroup
// binding 6  group_sums  read        (workgroups) tokens of all earlier workgroups
// binding 7  output      read_write  (tokens) ids of the slice
// binding 8  state       read_write  WordState
// dispatch: one thread per segment, with the workgroup size of encode_count_tokens
//!include common/workgroup.wgsl
//!include words/state.wgsl
//!include encode/tokens.wgsl

@group(0) @binding(0) var<uniform> params: SliceParams;
@group(0) @binding(1) var<storage, read> start_bits: array<u32>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read> entries: array<Tokens>;
@group(0) @binding(4) var<storage, read> ids: array<u32>;
@group(0) @binding(5) var<storage, read> offsets: array<u32>;
@group(0) @binding(6) var<storage, read> group_sums: array<u32>;
@group(0) @binding(7) var<storage, read_write> output: array<u32>;
@group(0) @binding(8) var<storage, read_write> state: WordState;

// Writes the tokens of the word that starts at a position, from output[place] on. Returns the index
// after them.
fn emit_word(position: u32, place: u32) -> u32 {
    if (words[position] == LONG_WORD) {
        output[place] = LONG_WORD;
        return place + 1u;
    }
    let tokens = tokens_at(position);
    for (var k = 0u; k < tokens.count; k++) {
        output[place + k] = ids[tokens.first + k];
    }
    return place + tokens.count;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn encode_emit(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let group = flat_group(workgroup, workgroups);
    let segment = group * WORKGROUP_SIZE + local_index;
    if (segment * SEGMENT >= params.main_end || atomicLoad(&state.pending) != 0u) { return; }
    var place = group_sums[group] + offsets[segment];
    var starts = starts_in(segment);
    while (starts != 0u) {
        place = emit_word(segment * SEGMENT + countTrailingZeros(starts), place);
        starts &= starts - 1u;
    }
}
