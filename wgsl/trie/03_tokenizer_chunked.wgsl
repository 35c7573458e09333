// trie_tokenizer_chunked: tokenizes by greedy longest match in a trie, one thread per chunk.
//
// A thread writes the tokens that start in its chunk. The first of these tokens starts at the
// chunk's entry, where the last token of the previous chunk ends, so the ids do not depend on the
// size of chunks.
//
// binding 0  input          read        (input_length) bytes, four per u32
// binding 1  nodes          read        (nodes, 3) first_child, num_children, token_id
// binding 2  edges          read        (nodes - 1, 2) byte, target node
// binding 3  token_output   read_write  (chunk_count, max_tokens_per_chunk) ids
// binding 4  chunk_counts   read_write  (chunk_count) tokens of each chunk
// binding 5  params         uniform     TrieParams
// binding 6  start_bits     read        (input_length bits) 1 where a pre-token starts
// binding 7  chunk_entries  read        (2, chunk_count) entries; second row where the first is
//                                       UNKNOWN_ENTRY
// binding 8  slice_state    read_write  (4) see STATE_... in params.wgsl
// dispatch: ceil(chunk_count / WORKGROUP_SIZE), one thread per chunk
// source: trie_tokenizer_chunked, with 6 bindings and room for 512 ids per chunk. Here three more
//   bindings hold the starts of pre-tokens, which no token crosses, the chunks' entries, and the
//   slice's state. Chunks of 256 bytes give twice as many threads.
//!include trie/match.wgsl

@group(0) @binding(0) var<storage, read> input: array<u32>;
@group(0) @binding(1) var<storage, read> nodes: array<u32>;
@group(0) @binding(2) var<storage, read> edges: array<u32>;
@group(0) @binding(3) var<storage, read_write> token_output: array<u32>;
@group(0) @binding(4) var<storage, read_write> chunk_counts: array<u32>;
@group(0) @binding(5) var<uniform> params: TrieParams;
@group(0) @binding(6) var<storage, read> start_bits: array<u32>;
@group(0) @binding(7) var<storage, read> chunk_entries: array<u32>;
@group(0) @binding(8) var<storage, read_write> slice_state: array<atomic<u32>>;

// Writes the chunk's tokens, and returns the start of the first token after the chunk.
fn tokenize_chunk(chunk: u32) -> u32 {
    var position = chunk_entries[chunk];
    if (position == UNKNOWN_ENTRY) {
        position = chunk_entries[params.chunk_count + chunk];
    }
    let end = min((chunk + 1u) * params.chunk_size, params.main_end);
    let output_begin = chunk * params.max_tokens_per_chunk;
    var count = 0u;
    for (; position < end;) {
        let found = longest_match(position);
        var token = found.token;
        if (found.length == 0u) {
            token = params.unknown_token;
            if (token == NO_TOKEN) {
                atomicMin(&slice_state[STATE_UNMATCHED], position);
            }
        }
        token_output[output_begin + count] = token;
        count++;
        position += max(found.length, 1u);
    }
    chunk_counts[chunk] = count;
    return position;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn trie_tokenizer_chunked(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    load_root_cache(local_index);
    let chunk = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    if (chunk < params.chunk_count) {
        let next = tokenize_chunk(chunk);
        if (chunk == params.chunk_count - 1u) {
            atomicStore(&slice_state[STATE_CARRY], next - params.main_end);
        }
    }
}
