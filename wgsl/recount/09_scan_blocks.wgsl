// bpe_scan_blocks: replaces the block sums by their exclusive prefix sums. The total is the text's
// new length, from which the kernel computes the number of workgroups of bpe_pair_count_b.
//
// One workgroup scans all sums, 4 * WORKGROUP_SIZE at a time: 10^7 symbols have 10 000 blocks, and
// more passes would take longer to start than this loop takes.
//
// binding 0  block_sums     read_write  (blocks) in: symbols of each block that stay; out: where
//                                       the block's output begins
// binding 1  state          read_write  IterState; out: next_symbol_count
// binding 2  dispatch_args  read_write  (ARGS_COUNT_OF, 3) out: workgroups at ARGS_COUNT
// dispatch: 1 workgroup
// source: scan_pass1, scan_pass2 and scan_pass3 of a scan in three passes by G. Blelloch's
//   algorithm. There a block has as many symbols as a workgroup has threads. Here it has four times
//   as many, and a workgroup scans as common/scan_subgroup.wgsl does, with 2 barriers, or without
//   subgroups as common/scan_shared.wgsl does.
//!include scan
//!include recount/iter_state.wgsl

const SUMS_PER_THREAD: u32 = 4u;

@group(0) @binding(0) var<storage, read_write> block_sums: array<u32>;
@group(0) @binding(1) var<storage, read_write> state: IterState;
@group(0) @binding(2) var<storage, read_write> dispatch_args: array<u32>;

//!include recount/groups.wgsl

var<workgroup> sh_symbol_count: u32;

@compute @workgroup_size(WORKGROUP_SIZE)
fn bpe_scan_blocks(scan_input: ScanInput) {
    // All threads take part in the scan below, so all must see the same number of blocks.
    if (scan_input.local_index == 0u) {
        sh_symbol_count = select(0u, state.symbol_count, state.status == RUNNING);
    }
    let blocks = (workgroupUniformLoad(&sh_symbol_count) + BLOCK - 1u) / BLOCK;
    var carry = 0u;
    for (var begin = 0u; begin < blocks; begin += SUMS_PER_THREAD * WORKGROUP_SIZE) {
        let first = begin + SUMS_PER_THREAD * scan_input.local_index;
        let end = min(first + SUMS_PER_THREAD, blocks);
        var own = 0u;
        for (var block = first; block < end; block++) {
            own += block_sums[block];
        }
        let scan = workgroup_scan(own, scan_input);
        var sum = carry + scan.exclusive;
        for (var block = first; block < end; block++) {
            let symbols = block_sums[block];
            block_sums[block] = sum;
            sum += symbols;
        }
        carry += scan.total;
    }
    if (scan_input.local_index == 0u && state.status == RUNNING) {
        state.next_symbol_count = carry;
        set_groups(ARGS_COUNT, carry, COUNT_TILE);
    }
}
