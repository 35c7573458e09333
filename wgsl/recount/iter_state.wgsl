// The state of the training loop, which stays on the device between merges.
//
// A pair is packed as (first rank << 16 | second rank), see symbols.wgsl.

struct IterState {
    symbol_count: u32,      // symbols of the text, without words that are merged to one symbol
    next_symbol_count: u32, // the same after the current merge
    table_size: u32,        // slots of the pair table, a power of two
    symbol_a: u32,          // the pair being merged
    symbol_b: u32,
    new_symbol: u32,        // the symbol that replaces the pair
    merge_count: u32,       // merges chosen so far
    merge_limit: u32,       // merges wanted
    min_frequency: u32,     // a rarer pair is not merged
    status: u32,            // RUNNING, or why the rest of the submission does nothing
    used_slots: u32,        // slots of the pair table that the last count of pairs used
}

// Number of symbols whose pairs a workgroup of bpe_pair_count_b counts in a table of 1024 slots. Of
// the sizes 256 to 8192 (scripts/measure_recount_tiles.py), 1024 is the fastest on an H100: 4096
// takes 1.07 times as long.
override COUNT_TILE: u32 = 1024u;

// Number of symbols in a block, which a workgroup compacts. It is a multiple of WORKGROUP_SIZE, and
// at most 16 times WORKGROUP_SIZE, because the marks of a thread's symbols, two bits each, are one
// u32.
override BLOCK: u32 = 1024u;

// Number of blocks for which bpe_run_reduce writes one last start of a run, besides the last start
// of each block. A search for the last start then reads at most 2 * RUN_TILE numbers in a text of
// 2^30 symbols.
const RUN_TILE: u32 = 1024u;

const RUNNING: u32 = 0u;
const FINISHED: u32 = 1u;   // merge_limit reached, or no pair is frequent enough
const TABLE_FULL: u32 = 2u; // the pair table must grow; nothing was merged

// The id of a free slot. As a pair it is the highest rank, 0xFFFF, twice. Only the last possible
// merge makes this rank, so the pair is never counted.
const EMPTY_PAIR: u32 = 0xFFFFFFFFu;

// Rows of dispatch_args. Row k, at byte 12 * k, holds the workgroups (x, y, z) of these dispatches:
const ARGS_COUNT: u32 = 0u;    // bpe_pair_count_b
const ARGS_BLOCKS: u32 = 1u;   // bpe_merge_reduce_b, bpe_finalize_compact_b
const ARGS_RUNS: u32 = 2u;     // bpe_run_reduce; 0 unless a symbol is merged with itself
const ARGS_COUNT_OF: u32 = 3u; // number of rows

const MAX_GROUPS: u32 = 65535u;
