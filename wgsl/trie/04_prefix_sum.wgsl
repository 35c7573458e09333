// trie_prefix_sum: computes the index in the output at which each chunk's ids begin, and the total
// number of ids.
//
// binding 0  chunk_counts   read        (chunk_count) number of ids of each chunk
// binding 1  chunk_offsets  read_write  (chunk_count) out: exclusive prefix sums
// binding 2  slice_state    read_write  (4) out: STATE_TOTAL and STATE_UNMATCHED_BYTE
// binding 3  params         uniform     TrieParams
// binding 4  input          read        bytes, four per u32; read to report the first byte without
//                                       a token
// dispatch: 1 workgroup; it scans a tile of 4 counts per thread at a time
// source: trie_prefix_sum, with one thread. Here a workgroup scans, because one thread waits for
//   memory at each of up to 65 536 counts. A fifth binding serves to report the byte without a
//   token.
//!include scan
//!include trie/params.wgsl

@group(0) @binding(0) var<storage, read> chunk_counts: array<u32>;
@group(0) @binding(1) var<storage, read_write> chunk_offsets: array<u32>;
@group(0) @binding(2) var<storage, read_write> slice_state: array<u32>;
@group(0) @binding(3) var<uniform> params: TrieParams;
@group(0) @binding(4) var<storage, read> input: array<u32>;

fn count_at(chunk: u32) -> u32 {
    if (chunk >= params.chunk_count) { return 0u; }
    return chunk_counts[chunk];
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn trie_prefix_sum(scan_input: ScanInput) {
    var carry = 0u;
    for (var begin = 0u; begin < params.chunk_count; begin += 4u * WORKGROUP_SIZE) {
        let first = begin + 4u * scan_input.local_index;
        var counts: vec4<u32>;
        counts.x = count_at(first);
        counts.y = counts.x + count_at(first + 1u);
        counts.z = counts.y + count_at(first + 2u);
        counts.w = counts.z + count_at(first + 3u);
        let scan = workgroup_scan(counts.w, scan_input);
        let offset = carry + scan.exclusive;
        if (first < params.chunk_count) { chunk_offsets[first] = offset; }
        if (first + 1u < params.chunk_count) { chunk_offsets[first + 1u] = offset + counts.x; }
        if (first + 2u < params.chunk_count) { chunk_offsets[first + 2u] = offset + counts.y; }
        if (first + 3u < params.chunk_count) { chunk_offsets[first + 3u] = offset + counts.z; }
        carry += scan.total;
    }
    if (scan_input.local_index == 0u) {
        slice_state[STATE_TOTAL] = carry;
        let unmatched = slice_state[STATE_UNMATCHED];
        if (unmatched != NO_BYTE) {
            let word = input[unmatched >> 2u];
            slice_state[STATE_UNMATCHED_BYTE] = (word >> ((unmatched & 3u) * 8u)) & 0xFFu;
        }
    }
}
