// trie_long_chain: finds the entries of the chunks inside long pre-tokens, one chunk after the
// other.
//
// If a thread's chunk has an entry and the next chunk has none, the thread computes the entries of
// the chunks up to the next chunk that has one. It writes these entries to the second row of
// chunk_entries, because other threads read the first row.
//
// binding 0  token_output   read        (chunk_count, chunk_size) exit of each position
// binding 1  chunk_entries  read_write  (2, chunk_count) in: first row; out: second row
// binding 2  params         uniform     TrieParams
// dispatch: long_args[3..6] = ceil(chunk_count / WORKGROUP_SIZE) or none, one thread per chunk
// source: none, see 00_chunk_entry.wgsl.
//!include common/workgroup.wgsl
//!include trie/params.wgsl

@group(0) @binding(0) var<storage, read> token_output: array<u32>;
@group(0) @binding(1) var<storage, read_write> chunk_entries: array<u32>;
@group(0) @binding(2) var<uniform> params: TrieParams;

fn is_unknown(chunk: u32) -> bool {
    return chunk < params.chunk_count && chunk_entries[chunk] == UNKNOWN_ENTRY;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn trie_long_chain(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let first = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    if (first >= params.chunk_count || is_unknown(first) || !is_unknown(first + 1u)) { return; }
    var entry = chunk_entries[first];
    for (var chunk = first + 1u; is_unknown(chunk); chunk++) {
        if (entry < chunk * params.chunk_size) { // else a token covers the whole previous chunk
            entry = token_output[entry];
        }
        chunk_entries[params.chunk_count + chunk] = entry;
    }
}
