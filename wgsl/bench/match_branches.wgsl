// Finds the longest match in a trie. The binary search for a child ends as soon as it finds the
// child.
//!let cached_levels = 2
//!let branchless = 0
//!include bench/match.wgsl
