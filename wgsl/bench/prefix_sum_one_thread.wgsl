// trie_prefix_sum: computes in one thread the index in the output at which each chunk's ids begin,
// and the total number of ids.
//
// binding 0  chunk_counts   read        (chunk_count) number of ids of each chunk
// binding 1  chunk_offsets  read_write  (chunk_count) out: exclusive prefix sums
// binding 2  slice_state    read_write  (4) out: the number of ids at STATE_TOTAL
// binding 3  params         uniform     TrieParams
// binding 4  input          read        unused, bound as for trie/04_prefix_sum.wgsl
// dispatch: 1 workgroup of one thread
// source: the documents' trie_prefix_sum, which also uses one thread.
//!include common/workgroup.wgsl
//!include trie/params.wgsl

@group(0) @binding(0) var<storage, read> chunk_counts: array<u32>;
@group(0) @binding(1) var<storage, read_write> chunk_offsets: array<u32>;
@group(0) @binding(2) var<storage, read_write> slice_state: array<u32>;
@group(0) @binding(3) var<uniform> params: TrieParams;
@group(0) @binding(4) var<storage, read> input: array<u32>;

@compute @workgroup_size(1)
fn trie_prefix_sum() {
    var sum = 0u;
    for (var chunk = 0u; chunk < params.chunk_count; chunk++) {
        chunk_offsets[chunk] = sum;
        sum += chunk_counts[chunk];
    }
    slice_state[STATE_TOTAL] = sum;
}
