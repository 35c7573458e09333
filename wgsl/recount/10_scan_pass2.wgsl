// bpe_scan_pass2: computes exclusive sums of the tiles' totals in place; the sum of all totals is
// the new length, for which it computes how many workgroups count pairs.
//
// binding 0  tile_sums      read_write  (tiles)
// binding 1  state          read_write  IterState: next_symbol_count
// binding 2  dispatch_args  read_write  (ARGS_COUNT_OF, 3)
// dispatch: 1 workgroup
// source: scan_pass2, see 09_scan_pass1.wgsl.
//!include scan
//!include recount/iter_state.wgsl

override SCAN_TILE: u32 = 1024u;

@group(0) @binding(0) var<storage, read_write> tile_sums: array<u32>;
@group(0) @binding(1) var<storage, read_write> state: IterState;
@group(0) @binding(2) var<storage, read_write> dispatch_args: array<u32>;

//!include recount/groups.wgsl

var<workgroup> sh_symbol_count: u32;

@compute @workgroup_size(WORKGROUP_SIZE)
fn bpe_scan_pass2(scan_input: ScanInput) {
    // All threads take part in the scan below, so all must see the same number of tiles.
    if (scan_input.local_index == 0u) {
        sh_symbol_count = select(0u, state.symbol_count, state.status == RUNNING);
    }
    let symbol_count = workgroupUniformLoad(&sh_symbol_count);
    let blocks = (symbol_count + WORKGROUP_SIZE - 1u) / WORKGROUP_SIZE;
    let tiles = (blocks + SCAN_TILE - 1u) / SCAN_TILE;
    var carry = 0u;
    for (var begin = 0u; begin < tiles; begin += WORKGROUP_SIZE) {
        let tile = begin + scan_input.local_index;
        var own = 0u;
        if (tile < tiles) {
            own = tile_sums[tile];
        }
        let scan = workgroup_scan(own, scan_input);
        if (tile < tiles) {
            tile_sums[tile] = carry + scan.exclusive;
        }
        carry += scan.total;
    }
    if (scan_input.local_index == 0u && state.status == RUNNING) {
        state.next_symbol_count = carry;
        set_groups(ARGS_COUNT, carry, COUNT_TILE);
    }
}
