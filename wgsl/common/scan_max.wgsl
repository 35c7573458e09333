// Computes prefix maxima over a workgroup in workgroup memory, for values of 0 or more.
//!include common/workgroup.wgsl

struct MaxScanResult {
    inclusive: u32, // maximum over this thread and the threads before it
    exclusive: u32, // maximum over the threads before it; 0 for the first thread
    total: u32,     // maximum over the workgroup
}

var<workgroup> sh_max: array<u32, WORKGROUP_SIZE>;

// All threads of the workgroup must call this function.
fn workgroup_max_scan(value: u32, local_index: u32) -> MaxScanResult {
    sh_max[local_index] = value;
    workgroupBarrier();
    for (var distance = 1u; distance < WORKGROUP_SIZE; distance <<= 1u) {
        var before = 0u;
        if (local_index >= distance) {
            before = sh_max[local_index - distance];
        }
        workgroupBarrier();
        sh_max[local_index] = max(sh_max[local_index], before);
        workgroupBarrier();
    }
    var result = MaxScanResult(sh_max[local_index], 0u, sh_max[WORKGROUP_SIZE - 1u]);
    if (local_index > 0u) {
        result.exclusive = sh_max[local_index - 1u];
    }
    workgroupBarrier();
    return result;
}
