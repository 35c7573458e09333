// trie_tokenizer_compact: copies the ids of all chunks into one array without gaps, one thread per
// chunk.
//
// binding 0  token_output    read        (chunk_count, max_tokens_per_chunk) ids of each chunk
// binding 1  chunk_counts    read        (chunk_count) number of ids of each chunk
// binding 2  chunk_offsets   read        (chunk_count) index in compact_output of each chunk's
//                                        first id
// binding 3  compact_output  read_write  (tokens) ids
// binding 4  params          uniform     TrieParams
// dispatch: chunk_count workgroups, of which the first ceil(chunk_count / WORKGROUP_SIZE) have
//           chunks
// source: the documents' earlier kernel, which their trie_tokenizer_compact replaced.
//!include common/workgroup.wgsl
//!include trie/params.wgsl

@group(0) @binding(0) var<storage, read> token_output: array<u32>;
@group(0) @binding(1) var<storage, read> chunk_counts: array<u32>;
@group(0) @binding(2) var<storage, read> chunk_offsets: array<u32>;
@group(0) @binding(3) var<storage, read_write> compact_output: array<u32>;
@group(0) @binding(4) var<uniform> params: TrieParams;

@compute @workgroup_size(WORKGROUP_SIZE)
fn trie_tokenizer_compact(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let chunk = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    if (chunk >= params.chunk_count) { return; }
    for (var i = 0u; i < chunk_counts[chunk]; i++) {
        compact_output[chunk_offsets[chunk] + i] =
            token_output[chunk * params.max_tokens_per_chunk + i];
    }
}
