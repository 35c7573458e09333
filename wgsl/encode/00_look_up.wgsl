// encode_look_up: writes the numbers of the words that are in the table, and lists the other words
// as fresh.
//
// Each thread handles the words that start in 32 bytes of text, which have one u32 of start bits.
//
// binding 0  params      uniform     SliceParams
// binding 1  text        read        (length) bytes, four per u32
// binding 2  start_bits  read        (length bits) 1 where a word starts
// binding 3  pending     read_write  (length bits) in: 1 for a word to look up; out: 1 for a word
//                                    that needs another run
// binding 4  table       read        (slot_capacity) x, y, z: key; w: 1 + number of the word, 0 if
//                                    free
// binding 5  word_data   read        (data_capacity) for each word its length, then its bytes
// binding 6  words       read_write  (length) out: at the start of a word its number, or LONG_WORD.
//                                    The element after LONG_WORD is the next word in the list of
//                                    long words
// binding 7  fresh       read_write  (fresh_capacity) x, y, z: key; w: start of the word in the
//                                    text
// binding 8  state       read_write  WordState
// binding 9  hash_key    uniform     four numbers, see common/hash.wgsl
// dispatch: one thread per 32 bytes of text
//!include words/look_up.wgsl
//!include encode/params.wgsl

@group(0) @binding(0) var<uniform> params: SliceParams;
@group(0) @binding(1) var<storage, read> text: array<u32>;
@group(0) @binding(2) var<storage, read> start_bits: array<u32>;
@group(0) @binding(3) var<storage, read_write> pending: array<u32>;
@group(0) @binding(4) var<storage, read> table: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> word_data: array<u32>;
@group(0) @binding(6) var<storage, read_write> words: array<u32>;
@group(0) @binding(7) var<storage, read_write> fresh: array<vec4<u32>>;
@group(0) @binding(8) var<storage, read_write> state: WordState;
@group(0) @binding(9) var<uniform> hash_key: vec4<u32>;

fn found(start: u32, number: u32) {
    words[start] = number;
}

// Adds a long word to the linked list that begins at state.last_long.
fn too_long(start: u32) {
    words[start] = LONG_WORD;
    words[start + 1u] = atomicExchange(&state.last_long, start); // the next word of the list
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn encode_look_up(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    take_segment(flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index);
}
