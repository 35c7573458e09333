// batched_first_pairs: gives a slot to each pair that occurs in the words before any merge, unless
// the pair is too rare or too long.
//
// binding 0  first_pairs  read        (distinct pairs) left and right symbol
// binding 1  entries      read_write  (distinct pairs) in: count and size; out: slot
// binding 2  pairs        read_write  (pair_capacity) by slot
// binding 3  pair_counts  read_write  (pair_capacity) by slot
// binding 4  lengths      read        (symbols) bytes of each symbol
// binding 5  state        read_write  BatchState
// binding 6  params       uniform     LayOutParams
// dispatch: one thread per distinct pair
//!include common/workgroup.wgsl
//!include batched/make_pair.wgsl

@group(0) @binding(0) var<storage, read> first_pairs: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> entries: array<Entry>;
@group(0) @binding(2) var<storage, read_write> pairs: array<Pair>;
@group(0) @binding(3) var<storage, read_write> pair_counts: array<atomic<u32>>;
@group(0) @binding(4) var<storage, read> lengths: array<u32>;
@group(0) @binding(5) var<storage, read_write> state: BatchState;
@group(0) @binding(6) var<uniform> params: LayOutParams;

@compute @workgroup_size(WORKGROUP_SIZE)
fn batched_first_pairs(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    if (i >= params.distinct_pairs) { return; }
    let size = atomicLoad(&entries[i].size);
    if (size == 0u) { return; }
    let pair = first_pairs[i];
    entries[i].slot = make_pair(pair.x, pair.y, atomicLoad(&entries[i].count), size);
}
