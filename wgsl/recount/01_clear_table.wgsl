// bpe_clear_table: begins an iteration: empties the pair table, makes the text's new length the
// current one, and computes the number of workgroups for it.
//
// binding 0  pair_counts    read_write  (table_size)
// binding 1  pair_ids       read_write  (table_size)
// binding 2  state          read_write  IterState
// binding 3  table_status   read_write  (2) overflowed, slots used
// binding 4  dispatch_args  read_write  (ARGS_COUNT_OF, 3)
// dispatch: ceil(table_size / WORKGROUP_SIZE), one thread per slot
// source: clear_table. Here it also writes how many workgroups the shorter text needs, so that the
//   host reads nothing between merges.
//!include common/workgroup.wgsl
//!include recount/iter_state.wgsl

override SCAN_TILE: u32 = 1024u;  // block sums a workgroup of bpe_scan_pass1 scans

@group(0) @binding(0) var<storage, read_write> pair_counts: array<u32>;
@group(0) @binding(1) var<storage, read_write> pair_ids: array<u32>;
@group(0) @binding(2) var<storage, read_write> state: IterState;
@group(0) @binding(3) var<storage, read_write> table_status: array<u32>;
@group(0) @binding(4) var<storage, read_write> dispatch_args: array<u32>;

fn set_groups(which: u32, groups: u32) {
    dispatch_args[which * 3u] = min(groups, MAX_GROUPS);
    dispatch_args[which * 3u + 1u] = (groups + MAX_GROUPS - 1u) / MAX_GROUPS;
    dispatch_args[which * 3u + 2u] = 1u;
}

fn begin_iteration() {
    let count = state.next_symbol_count;
    let blocks = (count + WORKGROUP_SIZE - 1u) / WORKGROUP_SIZE;
    state.symbol_count = count;
    table_status[0] = 0u;
    table_status[1] = 0u;
    set_groups(ARGS_COUNT, (count + COUNT_TILE - 1u) / COUNT_TILE);
    set_groups(ARGS_BLOCKS, blocks);
    set_groups(ARGS_SCAN, (blocks + SCAN_TILE - 1u) / SCAN_TILE);
    set_groups(ARGS_SINGLE, 1u);
    set_groups(ARGS_RUNS, 0u);
    set_groups(ARGS_RUN_SCAN, 0u);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn bpe_clear_table(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    if (state.status != RUNNING) { return; }
    let slot = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    if (slot < state.table_size) {
        pair_counts[slot] = 0u;
        pair_ids[slot] = EMPTY_PAIR;
    }
    if (slot == 0u) {
        begin_iteration();
    }
}
