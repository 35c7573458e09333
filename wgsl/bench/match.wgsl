// Finds the longest match in a trie as trie/match.wgsl does, with some optimizations switched off.
//
// cached_levels: the tables in workgroup memory. 0: none. 1: the root's children. 2: the root's
// children and their nodes.
//
// branchless: 1 if the number of steps of a search for a child depends only on the node's number of
// children. 0 if the search ends as soon as it finds the child.
//!include common/workgroup.wgsl
//!include trie/params.wgsl

struct Match {
    length: u32, // 0: no token matches
    token: u32,
}

struct Node {
    first: u32,
    count: u32,
    token: u32,
}

//!if cached_levels
var<workgroup> root_lut: array<u32, 256>;
//!end
//!if cached_levels == 2
var<workgroup> root_nodes: array<Node, 256>;
//!end

fn load_root_cache(local_index: u32) {
    //!if cached_levels
    for (var byte = local_index; byte < 256u; byte += WORKGROUP_SIZE) {
        root_lut[byte] = find_child(nodes[0], nodes[1], byte);
        //!if cached_levels == 2
        root_nodes[byte] = node_at(select(root_lut[byte], 0u, root_lut[byte] == NO_NODE));
        //!end
    }
    workgroupBarrier();
    //!end
}

fn node_at(node: u32) -> Node {
    return Node(nodes[node * 3u], nodes[node * 3u + 1u], nodes[node * 3u + 2u]);
}

fn input_byte(i: u32) -> u32 {
    return (input[i >> 2u] >> ((i & 3u) * 8u)) & 0xFFu;
}

fn starts_at(i: u32) -> bool {
    return ((start_bits[i >> 5u] >> (i & 31u)) & 1u) == 1u;
}

fn find_child(first: u32, count: u32, byte: u32) -> u32 {
    //!if branchless
    if (count == 0u) { return NO_NODE; }
    var low = first;
    for (var left = count; left > 1u;) {
        let half = left >> 1u;
        low = select(low, low + half, edges[(low + half) * 2u] <= byte);
        left -= half;
    }
    return select(NO_NODE, edges[low * 2u + 1u], edges[low * 2u] == byte);
    //!else
    var low = first;
    for (var end = first + count; low < end;) {
        let middle = (low + end) >> 1u;
        let seen = edges[middle * 2u];
        if (seen == byte) { return edges[middle * 2u + 1u]; }
        if (seen < byte) { low = middle + 1u; } else { end = middle; }
    }
    return NO_NODE;
    //!end
}

fn longest_match(position: u32) -> Match {
    let root = input_byte(position);
    var found = Match(0u, NO_TOKEN);
    //!if cached_levels
    let first = root_lut[root];
    //!else
    let first = find_child(nodes[0], nodes[1], root);
    //!end
    if (first == NO_NODE) { return found; }
    //!if cached_levels == 2
    var node = root_nodes[root];
    //!else
    var node = node_at(first);
    //!end
    if (node.token != NO_TOKEN) { found = Match(1u, node.token); }
    for (var i = position + 1u; i < params.input_length && node.count != 0u; i++) {
        if (starts_at(i)) { break; }
        let child = find_child(node.first, node.count, input_byte(i));
        if (child == NO_NODE) { break; }
        node = node_at(child);
        if (node.token != NO_TOKEN) { found = Match(i + 1u - position, node.token); }
    }
    return found;
}

fn next_position(position: u32) -> u32 {
    return position + max(longest_match(position).length, 1u);
}
