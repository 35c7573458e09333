// Computes exclusive prefix sums over a workgroup in workgroup memory, for adapters without
// subgroup operations.
//
// The distance d doubles from step to step. After the step with distance d, sh_scan[i] is the sum
// of thread i's value and the values of the 2d - 1 threads before it.
//!include common/workgroup.wgsl

struct ScanInput {
    @builtin(local_invocation_index) local_index: u32,
}

struct ScanResult {
    exclusive: u32, // sum over the threads before this thread
    total: u32,     // sum over the workgroup
}

var<workgroup> sh_scan: array<u32, WORKGROUP_SIZE>;

// All threads of the workgroup must call this function.
fn workgroup_scan(value: u32, input: ScanInput) -> ScanResult {
    let i = input.local_index;
    sh_scan[i] = value;
    workgroupBarrier();
    for (var distance = 1u; distance < WORKGROUP_SIZE; distance <<= 1u) {
        var before = 0u;
        if (i >= distance) {
            before = sh_scan[i - distance];
        }
        workgroupBarrier();
        sh_scan[i] += before;
        workgroupBarrier();
    }
    let result = ScanResult(sh_scan[i] - value, sh_scan[WORKGROUP_SIZE - 1u]);
    workgroupBarrier();
    return result;
}
