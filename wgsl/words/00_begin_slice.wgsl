// words_begin_slice: resets the counters of WordState for a slice.
//
// If start bits of the slice may be wrong, all words of the slice stay pending, and none is looked
// up.
//
// binding 0  undecided  read        (1) number of segments whose start bits may be wrong
// binding 1  state      read_write  WordState
// dispatch: 1 workgroup of one thread
//!include words/state.wgsl

@group(0) @binding(0) var<storage, read> undecided: array<u32>;
@group(0) @binding(1) var<storage, read_write> state: WordState;

@compute @workgroup_size(1)
fn words_begin_slice() {
    atomicStore(&state.fresh, 0u);
    atomicStore(&state.fresh_data, 0u);
    atomicStore(&state.pending, undecided[0]);
    atomicStore(&state.long, 0u);
    atomicStore(&state.full, 0u);
    state.undecided = undecided[0];
    state.tokens = 0u;
}
