// Finds the longest match in a trie without tables in workgroup memory.
//!let cached_levels = 0
//!let branchless = 1
//!include bench/match.wgsl
