// batched_count_ranks: counts the pairs by the current digit of their ranks (see rank.wgsl). A
// pair is counted only if its higher digits equal the higher digits of the threshold, which earlier
// dispatches have found.
//
// Most pairs fall into a few bins, so each workgroup first counts in workgroup memory.
//
// binding 0  pairs        read        (pair_capacity) by slot
// binding 1  pair_counts  read        (pair_capacity) by slot
// binding 2  bins         read_write  (BINS) number of pairs by digit
// binding 3  state        read_write  BatchState; the kernel counts only if status is REFILL
// dispatch: any number of workgroups
//!include common/workgroup.wgsl
//!include batched/state.wgsl
//!include batched/rank.wgsl

@group(0) @binding(0) var<storage, read> pairs: array<Pair>;
@group(0) @binding(1) var<storage, read> pair_counts: array<u32>;
@group(0) @binding(2) var<storage, read_write> bins: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read_write> state: BatchState;

var<workgroup> sh_bins: array<atomic<u32>, 1024>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn batched_count_ranks(
    @builtin(global_invocation_id) thread: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let wanted = state.status == REFILL && state.digit_width > 0u;
    for (var bin = local_index; bin < BINS; bin += WORKGROUP_SIZE) {
        atomicStore(&sh_bins[bin], 0u);
    }
    workgroupBarrier();
    if (wanted) {
        let prefix = vec3<u32>(state.threshold_count, state.threshold_left, state.threshold_right);
        let digit = Digit(state.digit_field, state.digit_shift, state.digit_width);
        let count = atomicLoad(&state.pair_count);
        for (var slot = thread.x; slot < count; slot += workgroups.x * WORKGROUP_SIZE) {
            let occurrences = pair_counts[slot];
            if (occurrences < state.min_frequency) { continue; }
            let rank = rank_of(occurrences, pairs[slot].left, pairs[slot].right);
            if (in_prefix(rank, prefix, digit)) {
                atomicAdd(&sh_bins[digit_of(rank, digit)], 1u);
            }
        }
    }
    workgroupBarrier();
    for (var bin = local_index; bin < BINS; bin += WORKGROUP_SIZE) {
        let value = atomicLoad(&sh_bins[bin]);
        if (value > 0u) {
            atomicAdd(&bins[bin], value);
        }
    }
}
