// Sum and maximum of one f32 a thread over a workgroup, in workgroup memory.
//
// The order of additions is fixed, so results do not depend on the device's subgroups. WORKGROUP_SIZE
// is a power of two. Both are to be called by all threads of the workgroup; all get the result.
//!include common/workgroup.wgsl

var<workgroup> sh_reduce: array<f32, WORKGROUP_SIZE>;

fn workgroup_sum(value: f32, local_index: u32) -> f32 {
    sh_reduce[local_index] = value;
    workgroupBarrier();
    for (var half = WORKGROUP_SIZE / 2u; half > 0u; half >>= 1u) {
        if (local_index < half) {
            sh_reduce[local_index] += sh_reduce[local_index + half];
        }
        workgroupBarrier();
    }
    let total = sh_reduce[0];
    workgroupBarrier();
    return total;
}

fn workgroup_max(value: f32, local_index: u32) -> f32 {
    sh_reduce[local_index] = value;
    workgroupBarrier();
    for (var half = WORKGROUP_SIZE / 2u; half > 0u; half >>= 1u) {
        if (local_index < half) {
            sh_reduce[local_index] = max(sh_reduce[local_index], sh_reduce[local_index + half]);
        }
        workgroupBarrier();
    }
    let largest = sh_reduce[0];
    workgroupBarrier();
    return largest;
}
