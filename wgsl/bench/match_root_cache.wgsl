// The longest match in a trie, with a table of the root's children, but without a table of their
// nodes.
//!let cached_levels = 1
//!let branchless = 1
//!include bench/match.wgsl
