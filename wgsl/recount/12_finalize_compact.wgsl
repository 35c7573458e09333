// bpe_finalize_compact_b: applies the merge and moves the symbols that stay to their new places.
//
// binding 0  valid_mask      read        (symbol_count) bit 0: stays, bit 1: first of a merged pair
// binding 1  block_sums      read        (blocks) where each block's output begins
// binding 2  input_symbols   read        (symbol_count)
// binding 3  output_symbols  read_write  (next_symbol_count)
// binding 4  state           read        IterState
// dispatch: ARGS_BLOCKS = ceil(symbol_count / WORKGROUP_SIZE), one thread per symbol
// source: bpe_finalize_compact_b. There a second subgroup scan adds up the sums of 8 subgroups.
//   Here each thread adds them up: subgroups have 4 to 128 lanes, and 64 sums of subgroups of 4
//   lanes are more than a subgroup scans.
//!include scan
//!include recount/iter_state.wgsl

@group(0) @binding(0) var<storage, read> valid_mask: array<u32>;
@group(0) @binding(1) var<storage, read> block_sums: array<u32>;
@group(0) @binding(2) var<storage, read> input_symbols: array<u32>;
@group(0) @binding(3) var<storage, read_write> output_symbols: array<u32>;
@group(0) @binding(4) var<storage, read> state: IterState;

@compute @workgroup_size(WORKGROUP_SIZE)
fn bpe_finalize_compact_b(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    scan_input: ScanInput,
) {
    let block = flat_group(workgroup, workgroups);
    let i = block * WORKGROUP_SIZE + scan_input.local_index;
    var mark = 0u;
    if (i < state.symbol_count) {
        mark = valid_mask[i];
    }
    let scan = workgroup_scan(mark & 1u, scan_input);
    if ((mark & 1u) == 1u) {
        let own = input_symbols[i];
        let merged = state.new_symbol | (own & WORD_START_BIT);
        output_symbols[block_sums[block] + scan.exclusive] = select(own, merged, (mark & 2u) != 0u);
    }
}
