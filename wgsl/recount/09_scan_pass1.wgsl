// bpe_scan_pass1: computes exclusive sums of the block sums within each tile, and the total of each
// tile.
//
// Three passes scan any number of blocks: the first scans each tile, the second the totals of
// tiles, and the third adds both. No workgroup waits for another one.
//
// binding 0  block_sums  read_write  (blocks) exclusive within the tile afterwards
// binding 1  tile_sums   read_write  (tiles)
// binding 2  state       read        IterState
// dispatch: ARGS_SCAN = ceil(blocks / SCAN_TILE)
// source: scan_pass1 of a scan in three passes by G. Blelloch's algorithm. Here a workgroup scans
//   as common/scan_subgroup.wgsl does, with 2 barriers, or without subgroups as
//   common/scan_shared.wgsl does.
//!include scan
//!include recount/iter_state.wgsl

override SCAN_TILE: u32 = 1024u;

@group(0) @binding(0) var<storage, read_write> block_sums: array<u32>;
@group(0) @binding(1) var<storage, read_write> tile_sums: array<u32>;
@group(0) @binding(2) var<storage, read> state: IterState;

@compute @workgroup_size(WORKGROUP_SIZE)
fn bpe_scan_pass1(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    scan_input: ScanInput,
) {
    let tile = flat_group(workgroup, workgroups);
    let blocks = (state.symbol_count + WORKGROUP_SIZE - 1u) / WORKGROUP_SIZE;
    var carry = 0u;
    for (var k = 0u; k < SCAN_TILE; k += WORKGROUP_SIZE) {
        let block = tile * SCAN_TILE + k + scan_input.local_index;
        var own = 0u;
        if (block < blocks) {
            own = block_sums[block];
        }
        let scan = workgroup_scan(own, scan_input);
        if (block < blocks) {
            block_sums[block] = carry + scan.exclusive;
        }
        carry += scan.total;
    }
    if (scan_input.local_index == 0u && tile * SCAN_TILE < blocks) {
        tile_sums[tile] = carry;
    }
}
