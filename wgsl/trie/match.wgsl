// Finds the longest token that matches the text at a position, without crossing the start of a
// pre-token.
//
// The root's children and their nodes are cached in workgroup memory, so the first two steps of a
// match read no node from global memory. In deeper nodes, a branchless binary search finds the
// child.
//
// Uses input, nodes, edges, start_bits and params, which the kernel that includes this file binds.
//!include common/workgroup.wgsl
//!include trie/params.wgsl

struct Match {
    length: u32, // 0: no token matches
    token: u32,
}

var<workgroup> root_lut: array<u32, 256>; // child of the root for each byte, or NO_NODE
var<workgroup> d1_fc: array<u32, 256>;    // first_child of this child
var<workgroup> d1_nc: array<u32, 256>;    // num_children of this child
var<workgroup> d1_tid: array<u32, 256>;   // token_id of this child

// Fills the cache. All threads of the workgroup must call this function before longest_match.
fn load_root_cache(local_index: u32) {
    for (var byte = local_index; byte < 256u; byte += WORKGROUP_SIZE) {
        root_lut[byte] = NO_NODE;
    }
    workgroupBarrier();
    let first = nodes[0];
    let count = min(nodes[1], 256u);
    for (var k = local_index; k < count; k += WORKGROUP_SIZE) {
        let byte = edges[(first + k) * 2u] & 0xFFu;
        let child = edges[(first + k) * 2u + 1u];
        root_lut[byte] = child;
        d1_fc[byte] = nodes[child * 3u];
        d1_nc[byte] = nodes[child * 3u + 1u];
        d1_tid[byte] = nodes[child * 3u + 2u];
    }
    workgroupBarrier();
}

fn input_byte(i: u32) -> u32 {
    return (input[i >> 2u] >> ((i & 3u) * 8u)) & 0xFFu;
}

// Returns whether a pre-token starts at byte i.
fn starts_at(i: u32) -> bool {
    return ((start_bits[i >> 5u] >> (i & 31u)) & 1u) == 1u;
}

// Returns the child on the edge with this byte, or NO_NODE. first, count: the range of the node's
// edges.
fn find_child_global(first: u32, count: u32, byte: u32) -> u32 {
    if (count == 0u) { return NO_NODE; }
    var low = first;
    for (var left = count; left > 1u;) {
        let half = left >> 1u;
        low = select(low, low + half, edges[(low + half) * 2u] <= byte);
        left -= half;
    }
    return select(NO_NODE, edges[low * 2u + 1u], edges[low * 2u] == byte);
}

fn longest_match(position: u32) -> Match {
    let root = input_byte(position);
    var found = Match(0u, NO_TOKEN);
    if (root_lut[root] == NO_NODE) { return found; }
    var first = d1_fc[root];
    var count = d1_nc[root];
    if (d1_tid[root] != NO_TOKEN) {
        found = Match(1u, d1_tid[root]);
    }
    for (var i = position + 1u; i < params.input_length && count != 0u; i++) {
        if (starts_at(i)) { break; }
        let child = find_child_global(first, count, input_byte(i));
        if (child == NO_NODE) { break; }
        first = nodes[child * 3u];
        count = nodes[child * 3u + 1u];
        let token = nodes[child * 3u + 2u];
        if (token != NO_TOKEN) {
            found = Match(i + 1u - position, token);
        }
    }
    return found;
}

// Returns the end of the token at a position. A byte at which no token matches counts as a token.
fn next_position(position: u32) -> u32 {
    return position + max(longest_match(position).length, 1u);
}
