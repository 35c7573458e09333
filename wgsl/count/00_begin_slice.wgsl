// count_begin_slice: resets what is counted for a slice.
//
// binding 0  state  read_write  CountState
// dispatch: 1 workgroup of one thread
//!include count/state.wgsl

@group(0) @binding(0) var<storage, read_write> state: CountState;

@compute @workgroup_size(1)
fn count_begin_slice() {
    atomicStore(&state.fresh, 0u);
    atomicStore(&state.fresh_data, 0u);
    atomicStore(&state.pending, 0u);
    atomicStore(&state.long, 0u);
    atomicStore(&state.full, 0u);
}
