// trie_chunk_entry: finds the entry of each chunk, the position at which its first token starts, if
// a pre-token starts shortly before the chunk.
//
// A token never crosses the start of a pre-token. So the matches from the last such start before
// the chunk, at most LOOK_BACK bytes before it, lead to the chunk's entry. If there is no start so
// near, trie_long_exit and trie_long_chain find the entry. These two kernels get 0 workgroups if no
// chunk needs them.
//
// binding 0  input          read        (input_length) bytes, four per u32
// binding 1  nodes          read        (nodes, 3) first_child, num_children, token_id
// binding 2  edges          read        (nodes - 1, 2) byte, target node
// binding 3  chunk_entries  read_write  (2, chunk_count) out: first row, entry or UNKNOWN_ENTRY
// binding 4  slice_state    read_write  (4) see STATE_... in params.wgsl
// binding 5  params         uniform     TrieParams
// binding 6  start_bits     read        (input_length bits) 1 where a pre-token starts
// binding 7  long_args      read_write  (2, 3) workgroups x, y, z of trie_long_exit and of
//                                       trie_long_chain; in: x is 0
// dispatch: ceil(chunk_count / WORKGROUP_SIZE), one thread per chunk
// source: none. The source begins a token at the start of each chunk. Here ids do not depend on the
//   size of chunks, so each chunk needs its entry.
//!include trie/match.wgsl

override LOOK_BACK: u32 = 256u;
const MAX_GROUPS: u32 = 65535u;

@group(0) @binding(0) var<storage, read> input: array<u32>;
@group(0) @binding(1) var<storage, read> nodes: array<u32>;
@group(0) @binding(2) var<storage, read> edges: array<u32>;
@group(0) @binding(3) var<storage, read_write> chunk_entries: array<u32>;
@group(0) @binding(4) var<storage, read_write> slice_state: array<u32>;
@group(0) @binding(5) var<uniform> params: TrieParams;
@group(0) @binding(6) var<storage, read> start_bits: array<u32>;
@group(0) @binding(7) var<storage, read_write> long_args: array<atomic<u32>>;

// Returns the entry of the chunk that begins at `begin`, or UNKNOWN_ENTRY.
fn chunk_entry(begin: u32) -> u32 {
    var position = begin;
    for (var k = 0u; k < LOOK_BACK; k++) {
        if (position == 0u || starts_at(position)) {
            break;
        }
        position--;
    }
    if (position == 0u) {
        position = slice_state[STATE_CARRY];
    } else if (!starts_at(position)) {
        return UNKNOWN_ENTRY;
    }
    for (; position < begin;) {
        position = next_position(position);
    }
    return position;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn trie_chunk_entry(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    load_root_cache(local_index);
    let chunk = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    if (chunk == 0u) {
        slice_state[STATE_UNMATCHED] = NO_BYTE;
    }
    if (chunk < params.chunk_count) {
        let entry = chunk_entry(chunk * params.chunk_size);
        chunk_entries[chunk] = entry;
        if (entry == UNKNOWN_ENTRY) {
            atomicStore(&long_args[0], min(params.chunk_count, MAX_GROUPS));
            let groups = (params.chunk_count + WORKGROUP_SIZE - 1u) / WORKGROUP_SIZE;
            atomicStore(&long_args[3], min(groups, MAX_GROUPS));
        }
    }
}
