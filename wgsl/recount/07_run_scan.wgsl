// bpe_run_scan: finds for each block the last start of a run before the block, by an exclusive scan
// for the maximum, in place.
//
// binding 0  run_starts  read_write  (blocks)
// binding 1  state       read        IterState
// dispatch: ARGS_RUN_SCAN = 1 workgroup or none
// source: none, see 06_run_reduce.wgsl.
//!include common/scan_max.wgsl
//!include recount/iter_state.wgsl

@group(0) @binding(0) var<storage, read_write> run_starts: array<u32>;
@group(0) @binding(1) var<storage, read> state: IterState;

@compute @workgroup_size(WORKGROUP_SIZE)
fn bpe_run_scan(@builtin(local_invocation_index) local_index: u32) {
    let blocks = (state.symbol_count + WORKGROUP_SIZE - 1u) / WORKGROUP_SIZE;
    var carry = 0u;
    for (var begin = 0u; begin < blocks; begin += WORKGROUP_SIZE) {
        let block = begin + local_index;
        var own = 0u;
        if (block < blocks) {
            own = run_starts[block];
        }
        let scan = workgroup_max_scan(own, local_index);
        if (block < blocks) {
            run_starts[block] = max(carry, scan.exclusive);
        }
        carry = max(carry, scan.total);
    }
}
