// rms_norm_backward_weight: add up the parts of grad_weight that rms_norm_backward leaves.
//
// Each column has WORKGROUP_SIZE / COLUMNS threads, which stride over its partial sums; the threads'
// sums are then added in order.
//
// binding 0  partials     read        (P, C)
// binding 1  grad_weight  read_write  (C,), added to
// binding 2  dims         uniform     P, C
// dispatch: one workgroup for COLUMNS columns
//!include common/reduce.wgsl

@group(0) @binding(0) var<storage, read> partials: array<f32>;
@group(0) @binding(1) var<storage, read_write> grad_weight: array<f32>;
@group(0) @binding(2) var<uniform> dims: vec4<u32>;

override COLUMNS: u32 = 16u;

@compute @workgroup_size(WORKGROUP_SIZE)
fn rms_norm_backward_weight(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let column = flat_group(workgroup, workgroups) * COLUMNS + local_index % COLUMNS;
    var sum = 0.0;
    if (column < dims.y) {
        for (var p = local_index / COLUMNS; p < dims.x; p += WORKGROUP_SIZE / COLUMNS) {
            sum += partials[p * dims.y + column];
        }
    }
    sh_reduce[local_index] = sum;
    workgroupBarrier();
    if (local_index < COLUMNS && column < dims.y) {
        var total = 0.0;
        for (var k = local_index; k < WORKGROUP_SIZE; k += COLUMNS) {
            total += sh_reduce[k];
        }
        grad_weight[column] += total;
    }
}
