// bpe_merge_reduce_b: marks the symbols that stay and the first symbols of merged pairs, and counts
// the symbols that stay.
//
//   mark of symbol i = 1 (stays) | 2 (is the first of a merged pair)
//   block_sums[k] = symbols of block k that stay
//
// This is the first pass of a parallel compaction; 09_scan_blocks.wgsl scans the sums of the
// blocks. A word of one symbol has no pair, so its symbol does not stay: later iterations read only
// symbols of words that can still be merged. Marks have an array of their own, because other
// threads read the symbols at the same time.
//
// If a symbol is merged with itself, every second pair of a run is merged, counted from the run's
// start, which may be in an earlier block (bindings 4 and 5). The pairs of a run share symbols, so
// their count is not the number of merges, and the kernel adds up the merges in binding 6. In all
// other cases the count of the pair is the number of merges, which the host knows.
//
// binding 0  symbols     read        (symbol_count) see symbols.wgsl
// binding 1  valid_mask  read_write  (blocks, WORKGROUP_SIZE) out: marks of each thread's symbols,
//                                    two bits per symbol
// binding 2  block_sums  read_write  (blocks) out: symbols of each block that stay
// binding 3  state       read        IterState
// binding 4  run_starts  read        (blocks) see 06_run_reduce.wgsl; only read if a symbol is
//                                    merged with itself
// binding 5  run_tiles   read        (ceil(blocks / RUN_TILE)) see 06_run_reduce.wgsl
// binding 6  run_merges  read_write  (1) merges of a symbol with itself, in the whole training
// dispatch: ARGS_BLOCKS = ceil(symbol_count / BLOCK), one thread per BLOCK / WORKGROUP_SIZE symbols
// source: bpe_merge_reduce_b. There each thread writes the mark of one symbol into the symbol. Here
//   the kernel only reads symbols, because neighbouring threads read them in the same dispatch, and
//   three more bindings serve runs. There words of one symbol stay until the end.
//!include scan
//!include common/scan_max.wgsl
//!include recount/iter_state.wgsl

@group(0) @binding(0) var<storage, read> symbols: array<u32>;
@group(0) @binding(1) var<storage, read_write> valid_mask: array<u32>;
@group(0) @binding(2) var<storage, read_write> block_sums: array<u32>;
@group(0) @binding(3) var<storage, read> state: IterState;
@group(0) @binding(4) var<storage, read> run_starts: array<u32>;
@group(0) @binding(5) var<storage, read> run_tiles: array<u32>;
@group(0) @binding(6) var<storage, read_write> run_merges: array<atomic<u32>>;

//!include recount/runs.wgsl

const STAYS: u32 = 1u;
const MERGES: u32 = 2u;
const ALL_STAY: u32 = 0x55555555u; // the mark STAYS of all symbols of a thread

var<workgroup> sh_run_start: atomic<u32>;

// Returns a symbol; after the last symbol, WORD_START_BIT, which ends the last word.
fn symbol_at(i: u32) -> u32 {
    if (i >= state.symbol_count) { return WORD_START_BIT; }
    return symbol(i);
}

// Returns whether two neighbouring symbols are the pair that is merged.
fn is_pair(first: u32, second: u32) -> bool {
    return (first & RANK_MASK) == state.symbol_a && second == state.symbol_b;
}

// Returns the largest start of a run, plus 1, among the elements of run_tiles and run_starts that
// this thread reads; 0 if no run continues into the block. The maximum over the workgroup belongs
// to the run that continues into the block.
fn start_before(block: u32, local_index: u32) -> u32 {
    var start = 0u;
    if (block * BLOCK < state.symbol_count && continues_run(block * BLOCK)) {
        let tiles = block / RUN_TILE;
        for (var k = local_index; k < tiles; k += WORKGROUP_SIZE) {
            start = max(start, run_tiles[k]);
        }
        for (var k = tiles * RUN_TILE + local_index; k < block; k += WORKGROUP_SIZE) {
            start = max(start, run_starts[k]);
        }
    }
    return start;
}

// Returns whether symbols first - 1 and first are merged: if they are the 1st, 3rd, 5th, ... pair
// of their run. All threads of the workgroup must call this function.
fn is_merged_in_run(block: u32, first: u32, local_index: u32) -> bool {
    var own = 0u;
    for (var k = 0u; k < BLOCK / WORKGROUP_SIZE; k++) {
        own = max(own, run_start_mark(first + k));
    }
    if (local_index == 0u) {
        atomicStore(&sh_run_start, 0u);
    }
    workgroupBarrier();
    atomicMax(&sh_run_start, start_before(block, local_index));
    let scan = workgroup_max_scan(own, local_index); // its barriers also publish sh_run_start
    let start = max(scan.exclusive, atomicLoad(&sh_run_start));
    return ((first + 1u - start) & 1u) == 1u;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn bpe_merge_reduce_b(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    scan_input: ScanInput,
) {
    let block = flat_group(workgroup, workgroups);
    let first = block * BLOCK + scan_input.local_index * (BLOCK / WORKGROUP_SIZE);
    let is_run = state.symbol_a == state.symbol_b; // the same for all threads of the dispatch
    var own = symbol_at(first);
    var absorbed = first > 0u && first < state.symbol_count && is_pair(symbol(first - 1u), own);
    if (is_run) {
        let is_merged = is_merged_in_run(block, first, scan_input.local_index);
        absorbed = absorbed && is_merged;
    }

    // Mark the thread's symbols in order. A symbol is absorbed if the symbol before it is merged
    // with it.
    let end = min(first + BLOCK / WORKGROUP_SIZE, state.symbol_count);
    var marks = 0u;
    var pairs = 0u;
    for (var i = first; i < end; i++) {
        let next = symbol_at(i + 1u);
        let merges = !absorbed && is_pair(own, next);
        var mark = select(STAYS, 0u, absorbed);
        var after = next;
        if (merges) {
            mark |= MERGES;
            pairs++;
            after = symbol_at(i + 2u);
        }
        if (!absorbed && (own & after & WORD_START_BIT) != 0u) {
            mark = 0u; // the symbol is a whole word
        }
        marks |= mark << (2u * (i - first));
        absorbed = merges;
        own = next;
    }
    if (first < state.symbol_count) {
        valid_mask[block * WORKGROUP_SIZE + scan_input.local_index] = marks;
    }

    let stay = workgroup_scan(countOneBits(marks & ALL_STAY), scan_input).total;
    if (scan_input.local_index == 0u && first < state.symbol_count) {
        block_sums[block] = stay;
    }
    if (is_run) {
        let merged = workgroup_scan(pairs, scan_input).total;
        if (scan_input.local_index == 0u && merged > 0u) {
            atomicAdd(&run_merges[0], merged);
        }
    }
}
