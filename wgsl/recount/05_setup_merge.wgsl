// bpe_setup_merge: finds the best pair of all parts of the table, decides on the merge, logs it, or
// ends the work of this submission.
//
// It makes the text's new length the current one, computes the numbers of workgroups for it, and empties
// run_tiles for bpe_run_reduce. If no pair is to be merged, all later dispatches of the submission get 0
// workgroups.
//
// binding 0  candidates     read        (ceil(table_size / (4 * WORKGROUP_SIZE))) count, packed pair
// binding 1  table_status   read_write  (2) overflowed, slots used; 0 afterwards
// binding 2  state          read_write  IterState
// binding 3  merge_log      read_write  (merge_limit) first rank, second rank, count, symbols before
// binding 4  dispatch_args  read_write  (ARGS_COUNT_OF, 3)
// binding 5  run_tiles      read_write  (ceil(blocks / RUN_TILE)) 0 afterwards
// dispatch: 1 workgroup
// source: find_max_final_det and setup_merge, in one dispatch. Here it also logs merges and ends the
//   submission, because many merges are submitted at once.
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

fn halt(status: u32) {
    state.status = status;
    for (var i = 0u; i < ARGS_COUNT_OF * 3u; i++) {
        dispatch_args[i] = 0u;
    }
}

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
