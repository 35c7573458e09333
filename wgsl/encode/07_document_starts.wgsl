// encode_document_starts: replaces the position of each document's start in the text by the number
// of tokens before it.
//
// binding 0  params      uniform     SliceParams
// binding 1  start_bits  read        (length bits) 1 where a word starts
// binding 2  words       read        (length) at the start of each word its number
// binding 3  entries     read        (word_capacity) index in `ids` of a word's first token, number
//                                    of its tokens
// binding 4  offsets     read        (segments) tokens of the earlier segments of the same
//                                    workgroup
// binding 5  group_sums  read        (workgroups) tokens of all earlier workgroups
// binding 6  documents   read_write  (documents) in: starts of documents in the text, in [0,
//                                    main_end]; out: tokens before each start
// binding 7  state       read_write  WordState
// dispatch: one thread per document
//!include common/workgroup.wgsl
//!include words/state.wgsl
//!include encode/tokens.wgsl

@group(0) @binding(0) var<uniform> params: SliceParams;
@group(0) @binding(1) var<storage, read> start_bits: array<u32>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read> entries: array<Tokens>;
@group(0) @binding(4) var<storage, read> offsets: array<u32>;
@group(0) @binding(5) var<storage, read> group_sums: array<u32>;
@group(0) @binding(6) var<storage, read_write> documents: array<u32>;
@group(0) @binding(7) var<storage, read_write> state: WordState;

@compute @workgroup_size(WORKGROUP_SIZE)
fn encode_document_starts(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let document = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    if (document >= params.documents || atomicLoad(&state.pending) != 0u) { return; }
    let position = documents[document];
    if (position >= params.main_end) {
        documents[document] = state.tokens;
        return;
    }
    let segment = position / SEGMENT;
    let before = starts_in(segment) & ((1u << (position % SEGMENT)) - 1u);
    documents[document] =
        group_sums[segment / WORKGROUP_SIZE] + offsets[segment] + count_tokens(segment, before);
}
