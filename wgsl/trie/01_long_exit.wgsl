// trie_long_exit: computes the exit of every position of a chunk, the start of the first token
// after the chunk if a token starts at this position.
//
//   exit(i) = next(i) if next(i) is after the chunk, else exit(next(i))
//   next(i) = end of the longest match at i
//
// The threads find the longest matches at all positions in parallel, and chain the matches by
// pointer doubling. Only a chunk before a chunk without an entry needs exits: its pre-token began
// more than LOOK_BACK bytes before the next chunk. The kernel stores exits in token_output, to
// which trie_tokenizer_chunked later writes tokens.
//
// binding 0  input          read        (input_length) bytes, four per u32
// binding 1  nodes          read        (nodes, 3) first_child, num_children, token_id
// binding 2  edges          read        (nodes - 1, 2) byte, target node
// binding 3  token_output   read_write  (chunk_count, chunk_size) out: exit of each position
// binding 4  chunk_entries  read        (2, chunk_count) first row: entry or UNKNOWN_ENTRY
// binding 5  params         uniform     TrieParams
// binding 6  start_bits     read        (input_length bits) 1 where a pre-token starts
// dispatch: long_args[0..3] = chunk_count or none, one workgroup per chunk
// source: none, see 00_chunk_entry.wgsl.
//!include trie/match.wgsl

const MAX_CHUNK: u32 = 1024u;

@group(0) @binding(0) var<storage, read> input: array<u32>;
@group(0) @binding(1) var<storage, read> nodes: array<u32>;
@group(0) @binding(2) var<storage, read> edges: array<u32>;
@group(0) @binding(3) var<storage, read_write> token_output: array<u32>;
@group(0) @binding(4) var<storage, read> chunk_entries: array<u32>;
@group(0) @binding(5) var<uniform> params: TrieParams;
@group(0) @binding(6) var<storage, read> start_bits: array<u32>;

var<workgroup> sh_next: array<u32, 2048>; // two rows of MAX_CHUNK, read and written in turn

@compute @workgroup_size(WORKGROUP_SIZE)
fn trie_long_exit(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    load_root_cache(local_index);
    let chunk = flat_group(workgroup, workgroups);
    let begin = chunk * params.chunk_size;
    let end = begin + params.chunk_size;
    // `needed` is the same for all threads of the workgroup. No thread returns before the barriers.
    var needed = chunk + 1u < params.chunk_count;
    if (needed) {
        needed = chunk_entries[chunk + 1u] == UNKNOWN_ENTRY;
    }
    let size = select(0u, params.chunk_size, needed);
    for (var k = local_index; k < size; k += WORKGROUP_SIZE) {
        sh_next[k] = next_position(begin + k);
    }
    workgroupBarrier();
    var row = 0u;
    for (var span = 1u; span < params.chunk_size; span <<= 1u) {
        for (var k = local_index; k < size; k += WORKGROUP_SIZE) {
            var next = sh_next[row + k];
            if (next < end) {
                next = sh_next[row + next - begin];
            }
            sh_next[(row ^ MAX_CHUNK) + k] = next;
        }
        workgroupBarrier();
        row ^= MAX_CHUNK;
    }
    for (var k = local_index; k < size; k += WORKGROUP_SIZE) {
        token_output[begin + k] = sh_next[row + k];
    }
}
