// words_begin_slice: resets what is known of a slice.
//
// binding 0  state  read_write  WordState
// dispatch: 1 workgroup of one thread
//!include words/state.wgsl

@group(0) @binding(0) var<storage, read_write> state: WordState;

@compute @workgroup_size(1)
fn words_begin_slice() {
    atomicStore(&state.fresh, 0u);
    atomicStore(&state.fresh_data, 0u);
    atomicStore(&state.pending, 0u);
    atomicStore(&state.long, 0u);
    atomicStore(&state.full, 0u);
    state.tokens = 0u;
}
