// count_count_fresh: counts the fresh words, which count_look_up did not find in the table, after
// words_number has given them numbers.
//
// binding 0  owners  read        (fresh_capacity) OWN | number, index of an equal fresh word, or
//                                NOBODY
// binding 1  counts  read_write  (word_capacity) occurrences of each word, by number
// binding 2  state   read_write  WordState
// dispatch: any number of workgroups
//!include common/workgroup.wgsl
//!include words/state.wgsl
//!include words/fresh.wgsl

@group(0) @binding(0) var<storage, read> owners: array<u32>;
@group(0) @binding(1) var<storage, read_write> counts: array<atomic<u32>>;
@group(0) @binding(2) var<storage, read_write> state: WordState;

@compute @workgroup_size(WORKGROUP_SIZE)
fn count_count_fresh(
    @builtin(global_invocation_id) thread: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let count = fresh_count();
    for (var i = thread.x; i < count; i += workgroups.x * WORKGROUP_SIZE) {
        var owner = owners[i];
        if (owner == NOBODY) { continue; }
        if ((owner & OWN) == 0u) {
            owner = owners[owner];
        }
        atomicAdd(&counts[owner ^ OWN], 1u);
    }
}
