// Shared by the training kernels: the state of the loop, kept on the device between merges.
//
// A pair is packed as (first rank << 16 | second rank), see symbols.wgsl.

struct IterState {
    symbol_count: u32,      // symbols of words that are not merged to one symbol yet
    next_symbol_count: u32, // the same after the current merge
    table_size: u32,        // slots of the pair table, a power of two
    symbol_a: u32,          // the pair being merged
    symbol_b: u32,
    new_symbol: u32,        // the symbol that replaces the pair
    merge_count: u32,       // merges chosen so far
    merge_limit: u32,       // merges wanted
    min_frequency: u32,     // a rarer pair is not merged
    status: u32,            // RUNNING, or why the rest of the submission does nothing
    used_slots: u32,        // slots that the last count used
}

// Symbols that a workgroup of bpe_pair_count_b counts, with 1024 slots for their pairs. Of 256 to 8192
// (scripts/measure_recount_tiles.py) this is the fastest on an H100: 4096 takes 1.07 times as long.
override COUNT_TILE: u32 = 1024u;

// Symbols of a block, which a workgroup compacts. A multiple of WORKGROUP_SIZE, at most 16 times it,
// because a thread writes two bits for each of its symbols.
override BLOCK: u32 = 1024u;

// bpe_run_reduce writes the last start of a run for each block, and for each RUN_TILE blocks. A search
// for the last start then reads at most 2 * RUN_TILE numbers in a text of 2^30 symbols.
const RUN_TILE: u32 = 1024u;

const RUNNING: u32 = 0u;
const FINISHED: u32 = 1u;   // merge_limit reached, or no pair is frequent enough
const TABLE_FULL: u32 = 2u; // the pair table must grow; nothing was merged

// The last rank paired with itself: the last merge makes it, so this pair is never counted.
const EMPTY_PAIR: u32 = 0xFFFFFFFFu;

// Byte 12 * k of dispatch_args holds the workgroups (x, y, z) of these dispatches.
const ARGS_COUNT: u32 = 0u;    // bpe_pair_count_b
const ARGS_BLOCKS: u32 = 1u;   // bpe_merge_reduce_b, bpe_finalize_compact_b
const ARGS_RUNS: u32 = 2u;     // bpe_run_reduce: only when a symbol is merged with itself
const ARGS_COUNT_OF: u32 = 3u;

const MAX_GROUPS: u32 = 65535u;
