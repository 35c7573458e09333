// bpe_find_max_final_det: finds the best pair of all parts of the table.
//
// binding 0  candidates  read        (ceil(table_size / (4 * WORKGROUP_SIZE)))
// binding 1  best_pair   read_write  (1) count and packed pair
// binding 2  state       read        IterState
// dispatch: 1 workgroup
// source: find_max_final_det.
//!include recount/best_pair.wgsl
//!include recount/iter_state.wgsl

@group(0) @binding(0) var<storage, read> candidates: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> best_pair: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> state: IterState;

@compute @workgroup_size(WORKGROUP_SIZE)
fn bpe_find_max_final_det(@builtin(local_invocation_index) local_index: u32) {
    let tile = 4u * WORKGROUP_SIZE;
    let count = (state.table_size + tile - 1u) / tile;
    var best = vec2<u32>(0u, EMPTY_PAIR);
    for (var i = local_index; i < count; i += WORKGROUP_SIZE) {
        best = better(best, candidates[i]);
    }
    best = workgroup_best(best, local_index);
    if (local_index == 0u) {
        best_pair[0] = best;
    }
}
