// count_pack: the words' bytes, end to end without gaps.
//
// A thread makes four bytes, which may be of several words.
//
// binding 0  places     read        (word_capacity) where in word_data each word is
// binding 1  word_data  read        (data_capacity) words: length, then bytes
// binding 2  ends       read        (words) where each word ends in `packed`
// binding 3  packed     read_write  (bytes / 4, rounded up)
// binding 4  state      read_write  WordState
// dispatch: one thread for four bytes
//!include common/workgroup.wgsl
//!include words/state.wgsl

@group(0) @binding(0) var<storage, read> places: array<u32>;
@group(0) @binding(1) var<storage, read> word_data: array<u32>;
@group(0) @binding(2) var<storage, read> ends: array<u32>;
@group(0) @binding(3) var<storage, read_write> packed: array<u32>;
@group(0) @binding(4) var<storage, read_write> state: WordState;

// The first word that ends after a position.
fn word_at(position: u32, words: u32) -> u32 {
    var low = 0u;
    var high = words;
    while (low < high) {
        let middle = (low + high) / 2u;
        if (ends[middle] <= position) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
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
    var word = word_at(thread * 4u, words);
    var four = 0u;
    for (var i = 0u; i < 4u; i++) {
        let position = thread * 4u + i;
        if (position >= bytes) { break; }
        while (ends[word] <= position) { word += 1u; }
        let place = places[word];
        let offset = position - (ends[word] - word_data[place]);
        let value = word_data[place + 1u + offset / 4u] >> ((offset & 3u) * 8u);
        four |= (value & 0xFFu) << (i * 8u);
    }
    packed[thread] = four;
}
