// Computes exclusive prefix sums over a workgroup with subgroup operations, for any subgroup size
// from 4 to 128.
//
// Each subgroup writes its sum to workgroup memory, and each thread adds up the sums of the
// subgroups before its own. This takes two barriers: one before the sums are read, and one before
// the next call may overwrite them. The documents' kernels (docs/credits.md) scan the sums with a
// second subgroup operation, which needs at least as many lanes as there are subgroups: with 4
// lanes per subgroup, 256 threads are 64 subgroups. Lanes must be numbered so that local_index =
// subgroup * width + lane; the host checks this with probe_subgroups.
//!include common/workgroup.wgsl

struct ScanInput {
    @builtin(local_invocation_index) local_index: u32,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) width: u32,
}

struct ScanResult {
    exclusive: u32, // sum over the threads before this thread
    total: u32,     // sum over the workgroup
}

// A quarter of this size would suffice. But naga aborts if the size is an expression and another
// override follows.
var<workgroup> sh_subgroup_sums: array<u32, WORKGROUP_SIZE>;

// All threads of the workgroup must call this function.
fn workgroup_scan(value: u32, input: ScanInput) -> ScanResult {
    let within = subgroupExclusiveAdd(value);
    let sum = subgroupAdd(value);
    if (input.lane == 0u) {
        sh_subgroup_sums[input.subgroup] = sum;
    }
    workgroupBarrier();
    var result = ScanResult(within, 0u);
    let subgroups = (WORKGROUP_SIZE + input.width - 1u) / input.width;
    for (var s = 0u; s < subgroups; s++) {
        let other = sh_subgroup_sums[s];
        result.exclusive += select(0u, other, s < input.subgroup);
        result.total += other;
    }
    workgroupBarrier();
    return result;
}
