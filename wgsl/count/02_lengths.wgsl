// count_lengths: writes the number of bytes of each word.
//
// binding 0  places     read        (word_capacity) index in word_data of each word
// binding 1  word_data  read        (data_capacity) for each word its length, then its bytes
// binding 2  lengths    read_write  (words) bytes of each word, by number
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
