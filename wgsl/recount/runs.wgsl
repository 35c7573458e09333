// Runs of the merged symbol, for merges of a symbol with itself.
//
// "aaaaa" merges left to right into [aa][aa][a], so whether a symbol is the first or the second of
// a pair depends on its distance from the start of its run. A run ends at a pre-token's end.
//
// Expects the globals symbols and state.
//!include recount/symbols.wgsl

// Whether symbol i is not the first of its run. The caller knows that i < symbol_count.
fn continues_run(i: u32) -> bool {
    return i > 0u && symbol(i) == state.symbol_a
        && (symbol(i - 1u) & RANK_MASK) == state.symbol_a;
}

// i + 1 where a run starts at i, else 0: the maximum up to a symbol is the start of its run.
fn run_start_mark(i: u32) -> u32 {
    if (i >= state.symbol_count) { return 0u; }
    let starts = (symbol(i) & RANK_MASK) == state.symbol_a && !continues_run(i);
    return select(0u, i + 1u, starts);
}
