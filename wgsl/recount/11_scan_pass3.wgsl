// bpe_scan_pass3: adds each tile's offset, so that block_sums holds where each block's output begins.
//
// binding 0  block_sums  read_write  (blocks)
// binding 1  tile_sums   read        (tiles) exclusive sums
// binding 2  state       read        IterState
// dispatch: ARGS_SCAN = ceil(blocks / SCAN_TILE)
// source: scan_pass3.
//!include common/workgroup.wgsl
//!include recount/iter_state.wgsl

override SCAN_TILE: u32 = 1024u;

@group(0) @binding(0) var<storage, read_write> block_sums: array<u32>;
@group(0) @binding(1) var<storage, read> tile_sums: array<u32>;
@group(0) @binding(2) var<storage, read> state: IterState;

@compute @workgroup_size(WORKGROUP_SIZE)
fn bpe_scan_pass3(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let tile = flat_group(workgroup, workgroups);
    let blocks = (state.symbol_count + WORKGROUP_SIZE - 1u) / WORKGROUP_SIZE;
    for (var k = local_index; k < SCAN_TILE; k += WORKGROUP_SIZE) {
        let block = tile * SCAN_TILE + k;
        if (block < blocks) {
            block_sums[block] += tile_sums[tile];
        }
    }
}
