// bpe_pair_count_b: counts adjacent pairs by atomic additions to the global table alone.
//
//   pair_counts[slot of (a, b)] = |{i : symbols[i] = a, symbols[i + 1] = b, no start at i + 1}|
//
// The kernel differs from recount/02_pair_count.wgsl in that it has no table in workgroup memory:
// it adds every occurrence of a pair to global memory by an atomic addition.
//
// binding 0  symbols       read        (next_symbol_count) see symbols.wgsl
// binding 1  pair_counts   read_write  (table_size)
// binding 2  pair_ids      read_write  (table_size) packed pairs, EMPTY_PAIR where free
// binding 3  state         read        IterState
// binding 4  table_status  read_write  (2) 1 after an overflow, number of used slots
// binding 5  hash_key      uniform     four numbers, see common/hash.wgsl
// dispatch: ARGS_COUNT = ceil(next_symbol_count / COUNT_TILE)
//!include common/workgroup.wgsl
//!include common/hash.wgsl
//!include recount/iter_state.wgsl
//!include recount/symbols.wgsl

override LOCAL_TABLE_SIZE: u32 = 0u; // the host sets it, but this kernel has no local table
const PROBES: u32 = 32u;
const SPURIOUS_FAILURES: u32 = 64u;

@group(0) @binding(0) var<storage, read> symbols: array<u32>;
@group(0) @binding(1) var<storage, read_write> pair_counts: array<atomic<u32>>;
@group(0) @binding(2) var<storage, read_write> pair_ids: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read> state: IterState;
@group(0) @binding(4) var<storage, read_write> table_status: array<atomic<u32>>;
@group(0) @binding(5) var<uniform> hash_key: vec4<u32>;

fn count_pair(pair: u32) {
    let mask = state.table_size - 1u;
    var slot = hash_number(pair) & mask;
    var probe = 0u;
    for (var attempt = 0u; attempt < PROBES + SPURIOUS_FAILURES; attempt++) {
        var seen = atomicLoad(&pair_ids[slot]);
        if (seen == EMPTY_PAIR) {
            let swap = atomicCompareExchangeWeak(&pair_ids[slot], EMPTY_PAIR, pair);
            if (swap.exchanged) {
                atomicAdd(&table_status[1], 1u);
            }
            seen = select(swap.old_value, pair, swap.exchanged);
        }
        if (seen == pair) {
            atomicAdd(&pair_counts[slot], 1u);
            return;
        }
        if (seen != EMPTY_PAIR) {
            probe++;
            slot = (slot + probe) & mask;
        }
    }
    atomicStore(&table_status[0], 1u);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn bpe_pair_count_b(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let begin = flat_group(workgroup, workgroups) * COUNT_TILE;
    let pairs = max(state.next_symbol_count, 1u) - 1u; // no pair starts at the last symbol
    let end = min(begin + COUNT_TILE, pairs);
    for (var i = begin + local_index; i < end; i += WORKGROUP_SIZE) {
        let second = symbol(i + 1u);
        if ((second & WORD_START_BIT) == 0u) {
            count_pair(((symbol(i) & RANK_MASK) << 16u) | second);
        }
    }
}
