// count_lengths: writes the number of bytes of each word.
//
// binding 0  places     read        (word_capacity) where in word_data each word is
// binding 1  word_data  read        (data_capacity) words: length, then bytes
// binding 2  lengths    read_write  (words)
// binding 3  state      read_write  WordState
// dispatch: any number of workgroups
//!include common/workgroup.wgsl
//!include words/state.wgsl

@group(0) @binding(0) var<storage, read> places: array<u32>;
@group(0) @binding(1) var<storage, read> word_data: array<u32>;
@group(0) @binding(2) var<storage, read_write> lengths: array<u32>;
@group(0) @binding(3) var<storage, read_write> state: WordState;

@compute @workgroup_size(WORKGROUP_SIZE)
fn count_lengths(
    @builtin(global_invocation_id) thread: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let words = atomicLoad(&state.words);
    for (var i = thread.x; i < words; i += workgroups.x * WORKGROUP_SIZE) {
        lengths[i] = word_data[places[i]];
    }
}
