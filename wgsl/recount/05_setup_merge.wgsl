// bpe_setup_merge: decides on the merge, logs it, or ends the work of this submission.
//
// If no pair is to be merged, all later dispatches of the submission get 0 workgroups.
//
// binding 0  best_pair      read        (1) count and packed pair
// binding 1  table_status   read        (2) overflowed, slots used
// binding 2  state          read_write  IterState
// binding 3  merge_log      read_write  (merge_limit) first rank, second rank, count, symbols before
// binding 4  dispatch_args  read_write  (ARGS_COUNT_OF, 3)
// dispatch: 1 workgroup of one thread
// source: setup_merge. Here it also logs merges and ends the submission, because many merges are
//   submitted at once.
//!include recount/iter_state.wgsl

const FIRST_NEW_SYMBOL: u32 = 256u;

@group(0) @binding(0) var<storage, read> best_pair: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> table_status: array<u32>;
@group(0) @binding(2) var<storage, read_write> state: IterState;
@group(0) @binding(3) var<storage, read_write> merge_log: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> dispatch_args: array<u32>;

fn halt(status: u32) {
    state.status = status;
    for (var i = 0u; i < ARGS_COUNT_OF * 3u; i++) {
        dispatch_args[i] = 0u;
    }
}

@compute @workgroup_size(1)
fn bpe_setup_merge() {
    if (state.status != RUNNING) { return; }
    state.used_slots = table_status[1];
    if (table_status[0] != 0u) {
        halt(TABLE_FULL);
        return;
    }
    let best = best_pair[0];
    if (best.x < state.min_frequency || state.merge_count >= state.merge_limit) {
        halt(FINISHED);
        return;
    }
    let a = best.y >> 16u;
    let b = best.y & RANK_MASK;
    state.symbol_a = a;
    state.symbol_b = b;
    state.new_symbol = FIRST_NEW_SYMBOL + state.merge_count;
    merge_log[state.merge_count] = vec4<u32>(a, b, best.x, state.symbol_count);
    state.merge_count += 1u;
    if (a == b) {
        for (var i = 0u; i < 3u; i++) {
            dispatch_args[ARGS_RUNS * 3u + i] = dispatch_args[ARGS_BLOCKS * 3u + i];
            dispatch_args[ARGS_RUN_SCAN * 3u + i] = 1u;
        }
    }
}
