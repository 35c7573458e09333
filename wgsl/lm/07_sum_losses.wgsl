// sum_losses: adds up the losses of all rows.
//
// binding 0  losses   read        (N,)
// binding 1  out_sum  read_write  (1,)
// binding 2  n        uniform     N
// dispatch: one workgroup, which fixes the order of additions
// source: sum_losses.
//!include common/reduce.wgsl

@group(0) @binding(0) var<storage, read> losses: array<f32>;
@group(0) @binding(1) var<storage, read_write> out_sum: array<f32>;
@group(0) @binding(2) var<uniform> n: u32;

@compute @workgroup_size(WORKGROUP_SIZE)
fn sum_losses(@builtin(local_invocation_index) local_index: u32) {
    var sum = 0.0;
    for (var i = local_index; i < n; i += WORKGROUP_SIZE) {
        sum += losses[i];
    }
    let total = workgroup_sum(sum, local_index);
    if (local_index == 0u) {
        out_sum[0] = total;
    }
}
