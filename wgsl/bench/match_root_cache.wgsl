// Finds the longest match in a trie. Workgroup memory has a table of the root's children, but no
// table of the children's nodes.
//!let cached_levels = 1
//!let branchless = 1
//!include bench/match.wgsl
