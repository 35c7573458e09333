// encode_whole_tokens: finds the new words that spell a token.
//
// The kernel runs only for vocabularies that encode such a word as this token, without merging. It
// walks down the trie along the bytes of the word. encode_merge encodes all other new words.
//
// binding 0  text     read        (length) bytes, four per u32
// binding 1  fresh    read        (fresh_capacity) x, y, z: key; w: start of the word in the text
// binding 2  owners   read        (fresh_capacity) OWN | number for a new word
// binding 3  nodes    read        (nodes, 3) first_child, num_children, token_id
// binding 4  edges    read        (nodes - 1, 2) byte, target node
// binding 5  symbols  read_write  (length) out: at the start of a new word its token, or NO_TOKEN
// binding 6  entries  read_write  (word_capacity) out: start of a new word; 1 if the word is a
//                                 token, else 0
// binding 7  state    read_write  WordState
// dispatch: any number of workgroups
//!include common/workgroup.wgsl
//!include words/state.wgsl
//!include words/fresh.wgsl
//!include encode/params.wgsl

@group(0) @binding(0) var<storage, read> text: array<u32>;
@group(0) @binding(1) var<storage, read> fresh: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> owners: array<u32>;
@group(0) @binding(3) var<storage, read> nodes: array<u32>;
@group(0) @binding(4) var<storage, read> edges: array<u32>;
@group(0) @binding(5) var<storage, read_write> symbols: array<u32>;
@group(0) @binding(6) var<storage, read_write> entries: array<Tokens>;
@group(0) @binding(7) var<storage, read_write> state: WordState;

// Returns the child of a node on the edge with this byte, or 0 (the root) if there is none.
fn child_of(node: u32, byte: u32) -> u32 {
    var low = nodes[node * 3u];
    var left = nodes[node * 3u + 1u];
    if (left == 0u) { return 0u; }
    while (left > 1u) {
        let half = left >> 1u;
        low = select(low, low + half, edges[(low + half) * 2u] <= byte);
        left -= half;
    }
    return select(0u, edges[low * 2u + 1u], edges[low * 2u] == byte);
}

// Returns the token that a word spells, or NO_TOKEN.
fn whole_token(start: u32, length: u32) -> u32 {
    var node = 0u;
    for (var i = start; i < start + length; i++) {
        node = child_of(node, (text[i >> 2u] >> ((i & 3u) * 8u)) & 0xFFu);
        if (node == 0u) { return NO_TOKEN; }
    }
    return nodes[node * 3u + 2u];
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn encode_whole_tokens(
    @builtin(global_invocation_id) thread: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let count = fresh_count();
    for (var i = thread.x; i < count; i += workgroups.x * WORKGROUP_SIZE) {
        if (!is_new(owners[i])) { continue; }
        let start = fresh[i].w;
        let token = whole_token(start, length_of(fresh[i].xyz));
        symbols[start] = token;
        entries[owners[i] ^ OWN] = Tokens(start, select(1u, 0u, token == NO_TOKEN));
    }
}
