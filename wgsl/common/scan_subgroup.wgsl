// Exclusive sum over a workgroup with subgroup operations, for any subgroup size from 4 to 128.
//
// It has two barriers: one before the subgroups' sums are read, and one before they may be written
// again. Each thread adds up the subgroups' sums. The source scans these sums with a second
// subgroup operation, which needs as many lanes as there are subgroups: 256 threads with 4 lanes
// per subgroup are 64 subgroups. Lanes must be numbered so that local_index = subgroup * width +
// lane (the host probes that).
//!include common/workgroup.wgsl

struct ScanInput {
    @builtin(local_invocation_index) local_index: u32,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) width: u32,
}

struct ScanResult {
    exclusive: u32,
    total: u32,
}

// A quarter would suffice, but an expression here makes naga abort if another override follows.
var<workgroup> sh_subgroup_sums: array<u32, WORKGROUP_SIZE>;

// Call from all threads of the workgroup.
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
