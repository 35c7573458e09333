// trie_prefix_sum: computes where the ids of each chunk go in the output, and their total number,
// in one thread.
//
// binding 0  chunk_counts   read        (chunk_count)
// binding 1  chunk_offsets  read_write  (chunk_count) exclusive sums
// binding 2  slice_state    read_write  (4) STATE_TOTAL is written
// binding 3  params         uniform     TrieParams
// binding 4  input          read        not read
// dispatch: 1 workgroup of one thread
// source: the trie_prefix_sum there.
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
