// bpe_setup_merge: selects the best pair of the table as the next merge and logs the merge, or
// halts the submission if no pair is to be merged.
//
// The best pair of the table is the best of the candidates of bpe_find_max4. The kernel copies
// next_symbol_count, the text's length after the last merge, to symbol_count, and computes from
// this length the numbers of workgroups of the next dispatches. It also clears run_tiles for
// bpe_run_reduce. To halt the submission, it gives all later dispatches 0 workgroups.
//
// binding 0  candidates     read        (ceil(table_size / (4 * WORKGROUP_SIZE))) best pair of each
//                                       workgroup: count, packed pair
// binding 1  table_status   read_write  (2) in: 1 after an overflow, number of used slots; out: 0,
//                                       0
// binding 2  state          read_write  IterState
// binding 3  merge_log      read_write  (merge_limit) first rank, second rank, count, symbol_count
//                                       before the merge
// binding 4  dispatch_args  read_write  (ARGS_COUNT_OF, 3) workgroups of indirect dispatches, see
//                                       iter_state.wgsl
// binding 5  run_tiles      read_write  (ceil(blocks / RUN_TILE)) out: 0
// dispatch: 1 workgroup
// source: find_max_final_det and setup_merge, in one dispatch. Here the kernel also logs merges and
//   halts the submission, because the host submits many merges at once.
//!include recount/best_pair.wgsl
//!include recount/iter_state.wgsl

const FIRST_NEW_SYMBOL: u32 = 256u;

@group(0) @binding(0) var<storage, read> candidates: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> table_status: array<u32>;
@group(0) @binding(2) var<storage, read_write> state: IterState;
@group(0) @binding(3) var<storage, read_write> merge_log: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> dispatch_args: array<u32>;
@group(0) @binding(5) var<storage, read_write> run_tiles: array<u32>;

//!include recount/groups.wgsl

// Gives all later dispatches of the submission 0 workgroups. status: the reason.
fn halt(status: u32) {
    state.status = status;
    for (var i = 0u; i < ARGS_COUNT_OF * 3u; i++) {
        dispatch_args[i] = 0u;
    }
}

// Sets up the merge of pair `best`, or halts the submission. One thread calls this function.
fn set_up(best: vec2<u32>) {
    if (state.status != RUNNING) { return; }
    let count = state.next_symbol_count;
    let overflowed = table_status[0] != 0u;
    state.symbol_count = count;
    state.used_slots = table_status[1];
    table_status[0] = 0u;
    table_status[1] = 0u;
    if (overflowed) {
        halt(TABLE_FULL);
        return;
    }
    if (best.x < state.min_frequency || state.merge_count >= state.merge_limit) {
        halt(FINISHED);
        return;
    }
    let a = best.y >> 16u;
    let b = best.y & 0xFFFFu;
    state.symbol_a = a;
    state.symbol_b = b;
    state.new_symbol = FIRST_NEW_SYMBOL + state.merge_count;
    merge_log[state.merge_count] = vec4<u32>(a, b, best.x, count);
    state.merge_count += 1u;
    set_groups(ARGS_BLOCKS, count, BLOCK);
    set_groups(ARGS_RUNS, select(0u, count, a == b), BLOCK);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn bpe_setup_merge(@builtin(local_invocation_index) local_index: u32) {
    let blocks = (state.next_symbol_count + BLOCK - 1u) / BLOCK;
    for (var i = local_index; i * RUN_TILE < blocks; i += WORKGROUP_SIZE) {
        run_tiles[i] = 0u;
    }
    let tile = 4u * WORKGROUP_SIZE;
    let count = (state.table_size + tile - 1u) / tile;
    var best = vec2<u32>(0u, EMPTY_PAIR);
    for (var i = local_index; i < count; i += WORKGROUP_SIZE) {
        best = better(best, candidates[i]);
    }
    best = workgroup_best(best, local_index);
    if (local_index == 0u) {
        set_up(best);
    }
}
