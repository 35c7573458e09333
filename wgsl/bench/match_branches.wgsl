// The longest match in a trie, with a binary search that ends at the child that it looks for.
//!let cached_levels = 2
//!let branchless = 0
//!include bench/match.wgsl
