// The longest match in a trie, without the tables in workgroup memory.
//!let cached_levels = 0
//!let branchless = 1
//!include bench/match.wgsl
