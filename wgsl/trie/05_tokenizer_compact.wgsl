// trie_tokenizer_compact: copies the ids of all chunks into one array without gaps, one workgroup
// per chunk. Neighbouring threads access neighbouring ids.
//
// binding 0  token_output    read        (chunk_count, max_tokens_per_chunk) ids of each chunk
// binding 1  chunk_counts    read        (chunk_count) number of ids of each chunk
// binding 2  chunk_offsets   read        (chunk_count) index in compact_output of each chunk's
//                                        first id
// binding 3  compact_output  read_write  (tokens) ids
// binding 4  params          uniform     TrieParams
// dispatch: chunk_count, one workgroup per chunk
// source: trie_tokenizer_compact, with 256 threads. Here a workgroup has 64 threads: a chunk of
//   256 bytes has about 64 tokens, and more threads would have nothing to copy.
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
    let chunk = flat_group(workgroup, workgroups);
    if (chunk >= params.chunk_count) { return; }
    let count = chunk_counts[chunk];
    let source = chunk * params.max_tokens_per_chunk;
    let target_begin = chunk_offsets[chunk];
    for (var i = local_index; i < count; i += WORKGROUP_SIZE) {
        compact_output[target_begin + i] = token_output[source + i];
    }
}
