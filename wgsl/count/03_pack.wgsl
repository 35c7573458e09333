// count_pack: copies the bytes of all words end to end, without gaps.
//
// A thread writes four bytes, which may belong to several words. It searches for the word of each
// byte from the start. A nested loop that goes on from the word of the byte before takes fewer
// steps, but SwiftShader loses bytes in such a loop under wgpu.
//
// binding 0  places     read        (word_capacity) index in word_data of each word
// binding 1  word_data  read        (data_capacity) for each word its length, then its bytes
// binding 2  ends       read        (words) end of each word in `packed`
// binding 3  packed     read_write  (bytes / 4, rounded up)
// binding 4  state      read_write  WordState
// dispatch: one thread per four bytes
//!include common/workgroup.wgsl
//!include words/state.wgsl

@group(0) @binding(0) var<storage, read> places: array<u32>;
@group(0) @binding(1) var<storage, read> word_data: array<u32>;
@group(0) @binding(2) var<storage, read> ends: array<u32>;
@group(0) @binding(3) var<storage, read_write> packed: array<u32>;
@group(0) @binding(4) var<storage, read_write> state: WordState;

// Returns the byte at a position of `packed`; 0 after the last word.
fn byte_at(position: u32, words: u32) -> u32 {
    var low = 0u; // the first word that ends after the position
    var high = words;
    while (low < high) {
        let middle = (low + high) / 2u;
        if (ends[middle] <= position) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    if (low == words) { return 0u; }
    let place = places[low];
    let offset = position - (ends[low] - word_data[place]);
    return (word_data[place + 1u + offset / 4u] >> ((offset & 3u) * 8u)) & 0xFFu;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn count_pack(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let thread = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    let words = atomicLoad(&state.words);
    let bytes = ends[words - 1u];
    if (thread >= (bytes + 3u) / 4u) { return; }
    let first = thread * 4u;
    packed[thread] = byte_at(first, words)
        | (byte_at(first + 1u, words) << 8u)
        | (byte_at(first + 2u, words) << 16u)
        | (byte_at(first + 3u, words) << 24u);
}
