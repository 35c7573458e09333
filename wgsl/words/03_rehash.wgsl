// words_rehash: inserts the words of a table into a larger table.
//
// binding 0  old_table  read        (old slot_capacity) x, y, z: key; w: 1 + number of the word, 0
//                                   if free
// binding 1  slots      read_write  (slot_capacity) in: 0; out: TAKEN where a word is
// binding 2  table      read_write  (slot_capacity) in: 0; out: as old_table
// binding 3  state      read_write  WordState, with the slot_capacity of the new table
// binding 4  hash_key   uniform     four numbers, see common/hash.wgsl
// dispatch: any number of workgroups
//!include common/workgroup.wgsl
//!include words/home.wgsl

@group(0) @binding(0) var<storage, read> old_table: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> slots: array<atomic<u32>>;
@group(0) @binding(2) var<storage, read_write> table: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> state: WordState;
@group(0) @binding(4) var<uniform> hash_key: vec4<u32>;

// Inserts an entry of the old table into the new table.
fn enter(entry: vec4<u32>) {
    let mask = state.slot_capacity - 1u;
    var slot = home_of(entry.xyz) & mask;
    for (var probe = 0u; probe < MAX_PROBES; probe++) {
        let claim = atomicCompareExchangeWeak(&slots[slot], 0u, TAKEN);
        if (claim.exchanged) {
            table[slot] = entry;
            return;
        }
        if (claim.old_value != 0u) {
            slot = (slot + 1u) & mask;
        }
    }
    atomicStore(&state.full, 1u); // the word got no slot: the host raises an error
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn words_rehash(
    @builtin(global_invocation_id) thread: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let slots_before = arrayLength(&old_table);
    for (var slot = thread.x; slot < slots_before; slot += workgroups.x * WORKGROUP_SIZE) {
        let entry = old_table[slot];
        if (entry.w != 0u) {
            enter(entry);
        }
    }
}
