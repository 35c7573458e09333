// encode_document_starts: turns the positions of documents in the text into positions in its tokens.
//
// binding 0  params      uniform     SliceParams
// binding 1  start_bits  read        (length bits) where words start
// binding 2  words       read        (length) where a word starts its number
// binding 3  entries     read        (word_capacity) where the tokens of a word are, and how many
// binding 4  offsets     read        (segments) tokens of the segments before in the workgroup
// binding 5  group_sums  read        (workgroups) tokens of the workgroups before
// binding 6  documents   read_write  (documents) positions, each in [0, main_end]
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
