// bpe_pair_count_b: counts adjacent pairs for byte pair encoding (R. Sennrich et al., arXiv
// 1508.07909), in workgroup memory first.
//
//   pair_counts[slot of (a, b)] = |{i : symbols[i] = a, symbols[i + 1] = b, no start at i + 1}|
//
// Both tables are hash tables with open addressing. A workgroup counts COUNT_TILE pairs in a small
// table in workgroup memory, and adds only its sums to the global table. If the small table has no
// slot for a pair, the workgroup counts the pair in the global table. If the global table has no
// slot either, the kernel sets table_status[0], and nothing is merged until the host has made the
// table larger.
//
// A pair has one slot in each table: no slot is freed while pairs are counted, and a
// compare-exchange that fails on a free slot is repeated on this slot.
//
// binding 0  symbols       read        (next_symbol_count) see symbols.wgsl
// binding 1  pair_counts   read_write  (table_size)
// binding 2  pair_ids      read_write  (table_size) packed pairs, EMPTY_PAIR where free
// binding 3  state         read        IterState
// binding 4  table_status  read_write  (2) out: 1 after an overflow, number of used slots
// binding 5  hash_key      uniform     four numbers, see common/hash.wgsl
// dispatch: ARGS_COUNT = ceil(next_symbol_count / COUNT_TILE)
// source: bpe_pair_count_b, with the same table of 1024 slots and probing. Here a fifth binding
//   reports a global table that is full, where a pair would otherwise be lost, and the hash has a
//   key, so that nobody can choose pairs that collide.
//!include common/workgroup.wgsl
//!include common/hash.wgsl
//!include recount/iter_state.wgsl
//!include recount/symbols.wgsl

override LOCAL_TABLE_SIZE: u32 = 1024u; // a power of two
const LOCAL_PROBES: u32 = 16u;
const GLOBAL_PROBES: u32 = 32u; // in a table about 2/3 full, some pair needs more
const SPURIOUS_FAILURES: u32 = 64u; // further attempts: a weak exchange may fail for no reason

@group(0) @binding(0) var<storage, read> symbols: array<u32>;
@group(0) @binding(1) var<storage, read_write> pair_counts: array<atomic<u32>>;
@group(0) @binding(2) var<storage, read_write> pair_ids: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read> state: IterState;
@group(0) @binding(4) var<storage, read_write> table_status: array<atomic<u32>>;
@group(0) @binding(5) var<uniform> hash_key: vec4<u32>;

var<workgroup> local_ids: array<atomic<u32>, LOCAL_TABLE_SIZE>;
var<workgroup> local_counts: array<atomic<u32>, LOCAL_TABLE_SIZE>;

// Adds a count to a pair of the global table; sets table_status[0] if the pair gets no slot.
fn add_to_global(pair: u32, count: u32) {
    let mask = state.table_size - 1u;
    var slot = hash_number(pair) & mask;
    var probe = 0u;
    for (var attempt = 0u; attempt < GLOBAL_PROBES + SPURIOUS_FAILURES; attempt++) {
        var seen = atomicLoad(&pair_ids[slot]);
        if (seen == EMPTY_PAIR) {
            let swap = atomicCompareExchangeWeak(&pair_ids[slot], EMPTY_PAIR, pair);
            if (swap.exchanged) {
                atomicAdd(&table_status[1], 1u);
                seen = pair;
            } else {
                seen = swap.old_value;
            }
        }
        if (seen == pair) {
            atomicAdd(&pair_counts[slot], count);
            return;
        }
        if (seen != EMPTY_PAIR) {
            probe++;
            slot = (slot + probe) & mask; // steps of 1, 2, 3, ... reach every slot
        }
    }
    atomicStore(&table_status[0], 1u);
}

// Counts a pair once in the table of the workgroup; returns false if the pair gets no slot.
fn add_to_local(pair: u32) -> bool {
    let mask = LOCAL_TABLE_SIZE - 1u;
    var slot = hash_number(pair) & mask;
    var probe = 0u;
    for (var attempt = 0u; attempt < LOCAL_PROBES; attempt++) {
        var seen = atomicLoad(&local_ids[slot]);
        if (seen == EMPTY_PAIR) {
            let swap = atomicCompareExchangeWeak(&local_ids[slot], EMPTY_PAIR, pair);
            seen = select(swap.old_value, pair, swap.exchanged);
        }
        if (seen == pair) {
            atomicAdd(&local_counts[slot], 1u);
            return true;
        }
        if (seen != EMPTY_PAIR) {
            probe++;
            slot = (slot + probe) & mask;
        }
    }
    return false;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn bpe_pair_count_b(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    for (var slot = local_index; slot < LOCAL_TABLE_SIZE; slot += WORKGROUP_SIZE) {
        atomicStore(&local_ids[slot], EMPTY_PAIR);
        atomicStore(&local_counts[slot], 0u);
    }
    workgroupBarrier();

    let begin = flat_group(workgroup, workgroups) * COUNT_TILE;
    let pairs = max(state.next_symbol_count, 1u) - 1u; // no pair starts at the last symbol
    for (var k = local_index; k < COUNT_TILE; k += WORKGROUP_SIZE) {
        let i = begin + k;
        if (i < pairs) {
            let second = symbol(i + 1u);
            if ((second & WORD_START_BIT) == 0u) {
                let pair = ((symbol(i) & RANK_MASK) << 16u) | second;
                if (!add_to_local(pair)) {
                    add_to_global(pair, 1u);
                }
            }
        }
    }
    workgroupBarrier();

    for (var slot = local_index; slot < LOCAL_TABLE_SIZE; slot += WORKGROUP_SIZE) {
        let count = atomicLoad(&local_counts[slot]);
        if (count != 0u) {
            add_to_global(atomicLoad(&local_ids[slot]), count);
        }
    }
}
