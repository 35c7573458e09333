// The longest match in a trie, with a binary search that ends as soon as it finds the child.
//!let cached_levels = 2
//!let branchless = 0
//!include bench/match.wgsl
