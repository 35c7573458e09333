// bpe_clear_table: empties a new pair table, and computes the number of workgroups of
// bpe_pair_count_b.
//
// Later iterations find the table empty, because bpe_find_max4 clears each slot that it has read.
//
// binding 0  pair_counts    read_write  (table_size) out: 0
// binding 1  pair_ids       read_write  (table_size) out: EMPTY_PAIR
// binding 2  state          read        IterState
// binding 3  table_status   read_write  (2) out: 0, 0
// binding 4  dispatch_args  read_write  (ARGS_COUNT_OF, 3) workgroups of indirect dispatches, see
//                                       iter_state.wgsl
// dispatch: ceil(table_size / WORKGROUP_SIZE), one thread per slot; once for each table
// source: clear_table. There it runs once for each merge.
//!include common/workgroup.wgsl
//!include recount/iter_state.wgsl

@group(0) @binding(0) var<storage, read_write> pair_counts: array<u32>;
@group(0) @binding(1) var<storage, read_write> pair_ids: array<u32>;
@group(0) @binding(2) var<storage, read> state: IterState;
@group(0) @binding(3) var<storage, read_write> table_status: array<u32>;
@group(0) @binding(4) var<storage, read_write> dispatch_args: array<u32>;

//!include recount/groups.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn bpe_clear_table(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let slot = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    if (slot < state.table_size) {
        pair_counts[slot] = 0u;
        pair_ids[slot] = EMPTY_PAIR;
    }
    if (slot == 0u) {
        table_status[0] = 0u;
        table_status[1] = 0u;
        set_groups(ARGS_COUNT, state.next_symbol_count, COUNT_TILE);
    }
}
