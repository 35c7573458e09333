// bpe_merge_reduce_b: marks the symbols that stay and the first symbols of merged pairs, and counts
// the symbols that stay.
//
//   valid_mask[i] = 1 (stays) | 2 (is the first of a merged pair)
//   block_sums[k] = symbols of block k that stay
//
// A word of one symbol has no pair, so its symbol does not stay: later iterations read only symbols
// of words that can still be merged. This is the first pass of a parallel compaction; kernels 09 to 11 scan the sums of the blocks.
// Marks have an array of their own, because other threads read the symbols at the same time. In a
// run of one symbol every second pair is merged, counted from the run's start, which may be in an
// earlier block (binding 4). The host knows how many symbols any other merge removes: the count of
// its pair. In runs, pairs share symbols, so binding 5 adds up the merges made.
//
// binding 0  symbols     read        (symbol_count)
// binding 1  valid_mask  read_write  (symbol_count)
// binding 2  block_sums  read_write  (blocks)
// binding 3  state       read        IterState
// binding 4  run_starts  read        (blocks) only read when a symbol is merged with itself
// binding 5  run_merges  read_write  (1) merges of a symbol with itself, in the whole training
// dispatch: ARGS_BLOCKS = ceil(symbol_count / WORKGROUP_SIZE), one thread per symbol
// source: bpe_merge_reduce_b. There marks are written into the symbols. Here symbols are only
//   read, because neighbours read them in the same dispatch, and two more bindings belong to runs.
//   There words of one symbol stay until the end.
//!include scan
//!include common/scan_max.wgsl
//!include recount/iter_state.wgsl

@group(0) @binding(0) var<storage, read> symbols: array<u32>;
@group(0) @binding(1) var<storage, read_write> valid_mask: array<u32>;
@group(0) @binding(2) var<storage, read_write> block_sums: array<u32>;
@group(0) @binding(3) var<storage, read> state: IterState;
@group(0) @binding(4) var<storage, read> run_starts: array<u32>;
@group(0) @binding(5) var<storage, read_write> run_merges: array<atomic<u32>>;

//!include recount/runs.wgsl

const STAYS: u32 = 1u;
const MERGES: u32 = 2u;

// Whether the chosen pair of two different symbols is at i and i + 1.
fn pair_at(i: u32) -> bool {
    return i + 1u < state.symbol_count && (symbols[i] & RANK_MASK) == state.symbol_a
        && symbols[i + 1u] == state.symbol_b;
}

fn mark_pair(i: u32) -> u32 {
    if (i > 0u && pair_at(i - 1u)) { return 0u; }
    return select(STAYS, STAYS | MERGES, pair_at(i));
}

// run_start: position of the first symbol of the run that i is in.
fn mark_run(i: u32, run_start: u32) -> u32 {
    let odd = ((i - run_start) & 1u) == 1u;
    if (odd && continues_run(i)) { return 0u; }
    let merges = !odd && (symbols[i] & RANK_MASK) == state.symbol_a
        && i + 1u < state.symbol_count && continues_run(i + 1u);
    return select(STAYS, STAYS | MERGES, merges);
}

// Whether symbol i, merged or not, is a whole word after the merge.
fn is_word(i: u32, mark: u32) -> bool {
    let next = i + select(1u, 2u, (mark & MERGES) != 0u);
    return (symbols[i] & WORD_START_BIT) != 0u
        && (next >= state.symbol_count || (symbols[next] & WORD_START_BIT) != 0u);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn bpe_merge_reduce_b(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    scan_input: ScanInput,
) {
    let block = flat_group(workgroup, workgroups);
    let i = block * WORKGROUP_SIZE + scan_input.local_index;
    let inside = i < state.symbol_count;
    var mark = 0u;
    if (state.symbol_a == state.symbol_b) { // the same for all threads of the dispatch
        let scan = workgroup_max_scan(run_start_mark(i), scan_input.local_index);
        if (inside) {
            mark = mark_run(i, max(scan.inclusive, run_starts[block]) - 1u);
        }
        let merges = workgroup_scan((mark & MERGES) / MERGES, scan_input).total;
        if (scan_input.local_index == 0u && merges > 0u) {
            atomicAdd(&run_merges[0], merges);
        }
    } else if (inside) {
        mark = mark_pair(i);
    }
    if (inside) {
        if (is_word(i, mark)) {
            mark = 0u;
        }
        valid_mask[i] = mark;
    }
    let scan = workgroup_scan(mark & STAYS, scan_input);
    if (scan_input.local_index == 0u && inside) {
        block_sums[block] = scan.total;
    }
}
