// Finds runs of the merged symbol, for merges of a symbol with itself.
//
// "aaaaa" merges left to right into [aa][aa][a], so whether a symbol is the first or the second of
// a pair depends on its distance from the start of its run. A run ends at a pre-token's end.
//
// Uses symbols and state, which the kernel that includes this file binds.
//!include recount/symbols.wgsl

// Returns whether symbol i is in a run, but not the first symbol of the run. i < symbol_count.
fn continues_run(i: u32) -> bool {
    return i > 0u && symbol(i) == state.symbol_a
        && (symbol(i - 1u) & RANK_MASK) == state.symbol_a;
}

// Returns i + 1 if a run starts at symbol i, else 0. The maximum over all symbols up to a symbol of
// a run is the start of this run, plus 1.
fn run_start_mark(i: u32) -> u32 {
    if (i >= state.symbol_count) { return 0u; }
    let starts = (symbol(i) & RANK_MASK) == state.symbol_a && !continues_run(i);
    return select(0u, i + 1u, starts);
}
