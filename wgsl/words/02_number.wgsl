// words_number: gives a number to each word that claimed a slot, in the order of arrival, and
// stores the word in the table.
//
// binding 0  text       read        (length) bytes, four per u32
// binding 1  fresh      read        (fresh_capacity) x, y, z: key; w: start of the word in the text
// binding 2  owners     read_write  (fresh_capacity) in: OWN | slot; out: OWN | number
// binding 3  slots      read_write  (slot_capacity) out: TAKEN
// binding 4  table      read_write  (slot_capacity) out: x, y, z: key; w: 1 + number of the word
// binding 5  word_data  read_write  (data_capacity) for each word its length, then its bytes
// binding 6  places     read_write  (word_capacity) index in word_data of each word
// binding 7  state      read_write  WordState
// dispatch: any number of workgroups
//!include common/workgroup.wgsl
//!include words/state.wgsl
//!include words/text.wgsl
//!include words/fresh.wgsl

@group(0) @binding(0) var<storage, read> text: array<u32>;
@group(0) @binding(1) var<storage, read> fresh: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> owners: array<u32>;
@group(0) @binding(3) var<storage, read_write> slots: array<u32>;
@group(0) @binding(4) var<storage, read_write> table: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> word_data: array<u32>;
@group(0) @binding(6) var<storage, read_write> places: array<u32>;
@group(0) @binding(7) var<storage, read_write> state: WordState;

@compute @workgroup_size(WORKGROUP_SIZE)
fn words_number(
    @builtin(global_invocation_id) thread: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let count = fresh_count();
    for (var i = thread.x; i < count; i += workgroups.x * WORKGROUP_SIZE) {
        let owner = owners[i];
        if (!is_new(owner)) { continue; }
        let slot = owner ^ OWN;
        let word = fresh[i];
        let length = length_of(word.xyz);
        let number = atomicAdd(&state.words, 1u);
        let place = atomicAdd(&state.data_used, 1u + (length + 3u) / 4u);
        word_data[place] = length;
        for (var done = 0u; done < length; done += 4u) {
            word_data[place + 1u + done / 4u] = first_bytes(four_bytes(word.w + done), length - done);
        }
        places[number] = place;
        slots[slot] = TAKEN;
        table[slot] = vec4<u32>(word.x, select(word.y, place, is_hashed(word.xyz)), word.z, number + 1u);
        owners[i] = OWN | number;
    }
}
