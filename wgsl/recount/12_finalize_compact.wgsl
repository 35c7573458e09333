// bpe_finalize_compact_b: applies the merge and moves the symbols that stay to their new places.
//
// A workgroup collects the symbols of its block in workgroup memory, so that neighbouring threads
// write neighbouring u32s. The first and the last u32 of a block may also hold a symbol of the
// block before or after. Each of the two workgroups clears and sets only its own bits of this u32,
// so their order makes no difference.
//
// binding 0  valid_mask      read        (blocks, WORKGROUP_SIZE) marks, two bits per symbol, see
//                                        08_merge_reduce.wgsl
// binding 1  block_sums      read        (blocks) where each block's output begins
// binding 2  symbols         read        (symbol_count) see symbols.wgsl
// binding 3  output_symbols  read_write  (next_symbol_count) see symbols.wgsl
// binding 4  state           read        IterState
// dispatch: ARGS_BLOCKS = ceil(symbol_count / BLOCK), one thread per BLOCK / WORKGROUP_SIZE symbols
// source: bpe_finalize_compact_b. There a second subgroup scan adds up the sums of 8 subgroups.
//   Here each thread adds them up: subgroups have 4 to 128 lanes, and 64 sums of subgroups of 4
//   lanes are more than a subgroup scans. A thread moves several symbols.
//!include scan
//!include recount/iter_state.wgsl
//!include recount/symbols.wgsl

@group(0) @binding(0) var<storage, read> valid_mask: array<u32>;
@group(0) @binding(1) var<storage, read> block_sums: array<u32>;
@group(0) @binding(2) var<storage, read> symbols: array<u32>;
@group(0) @binding(3) var<storage, read_write> output_symbols: array<atomic<u32>>;
@group(0) @binding(4) var<storage, read> state: IterState;

const ALL_STAY: u32 = 0x55555555u;

var<workgroup> sh_symbols: array<u32, BLOCK>; // the symbols of the block that stay

@compute @workgroup_size(WORKGROUP_SIZE)
fn bpe_finalize_compact_b(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    scan_input: ScanInput,
) {
    let block = flat_group(workgroup, workgroups);
    let first = block * BLOCK + scan_input.local_index * (BLOCK / WORKGROUP_SIZE);
    var marks = 0u;
    if (first < state.symbol_count) {
        marks = valid_mask[block * WORKGROUP_SIZE + scan_input.local_index];
    }
    let scan = workgroup_scan(countOneBits(marks & ALL_STAY), scan_input);
    var place = scan.exclusive;
    for (var i = first; marks != 0u; i++) {
        if ((marks & 1u) == 1u) {
            let own = symbol(i);
            let merged = state.new_symbol | (own & WORD_START_BIT);
            sh_symbols[place] = select(own, merged, (marks & 2u) != 0u);
            place++;
        }
        marks >>= 2u;
    }
    workgroupBarrier();
    if (block * BLOCK >= state.symbol_count) { return; }
    let begin = block_sums[block];
    let end = begin + scan.total;
    var word = begin / SYMBOLS_PER_WORD + scan_input.local_index;
    for (; word * SYMBOLS_PER_WORD < end; word += WORKGROUP_SIZE) {
        var packed = 0u;
        var written = 0u; // bits of the u32 that belong to this block
        for (var k = 0u; k < SYMBOLS_PER_WORD; k++) {
            let at = word * SYMBOLS_PER_WORD + k;
            if (at >= begin && at < end) {
                packed |= sh_symbols[at - begin] << (k * SYMBOL_BITS);
                written |= SYMBOL_MASK << (k * SYMBOL_BITS);
            }
        }
        if (written == 0xFFFFFFFFu) {
            atomicStore(&output_symbols[word], packed);
        } else {
            atomicAnd(&output_symbols[word], ~written);
            atomicOr(&output_symbols[word], packed);
        }
    }
}
