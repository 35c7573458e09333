// Computes the sum or the maximum of one f32 per thread over a workgroup, or the sum over runs of
// neighbouring threads, in workgroup memory.
//
// The order of additions is fixed, so results do not depend on the device's subgroups.
// WORKGROUP_SIZE is a power of two. All threads of the workgroup must call these functions, and all
// get the result.
//!include common/workgroup.wgsl

var<workgroup> sh_reduce: array<f32, WORKGROUP_SIZE>;

fn workgroup_sum(value: f32, local_index: u32) -> f32 {
    return run_sum(value, local_index, WORKGROUP_SIZE);
}

// Returns the sum over the thread's run. Run k is threads k * length to (k + 1) * length - 1;
// length is a power of two, and the same for all threads.
fn run_sum(value: f32, local_index: u32, length: u32) -> f32 {
    let place = local_index % length;
    sh_reduce[local_index] = value;
    workgroupBarrier();
    for (var half = length / 2u; half > 0u; half >>= 1u) {
        if (place < half) {
            sh_reduce[local_index] += sh_reduce[local_index + half];
        }
        workgroupBarrier();
    }
    let total = sh_reduce[local_index - place];
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
