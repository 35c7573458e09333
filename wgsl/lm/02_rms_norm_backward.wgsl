// rms_norm_backward: the gradients of rms_norm: of its input, and a part of the weight's gradient.
//
//   with d = sum over the row of grad_out * weight * x:
//   grad_x += r * (grad_out * weight - x * r^2 * d / C)
//   grad_weight += sum over all rows of grad_out * x * r
//
// A workgroup has the rows that start at its number times dims.z, and takes them in blocks of
// BLOCK_ROWS. WORKGROUP_SIZE / BLOCK_ROWS threads per row find d first; then each thread walks down a
// column of the block, so that one register holds the column's part of grad_weight.
//
// binding 0  x            read        (N, C)
// binding 1  weight       read        (C,)
// binding 2  inverse_rms  read        (N,) r, as rms_norm stores it
// binding 3  grad_out     read        (N, C)
// binding 4  grad_x       read_write  (N, C), added to
// binding 5  partials     read_write  (P, C), a workgroup's part of grad_weight
// binding 6  dims         uniform     N, C, rows of a workgroup
// dispatch: P workgroups
//!include common/reduce.wgsl

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> inverse_rms: array<f32>;
@group(0) @binding(3) var<storage, read> grad_out: array<f32>;
@group(0) @binding(4) var<storage, read_write> grad_x: array<f32>;
@group(0) @binding(5) var<storage, read_write> partials: array<f32>;
@group(0) @binding(6) var<uniform> dims: vec4<u32>;

override BLOCK_ROWS: u32 = 8u;

var<workgroup> sh_rms: array<f32, BLOCK_ROWS>; // r of the block's rows
var<workgroup> sh_pull: array<f32, BLOCK_ROWS>; // r^3 d / C of them

@compute @workgroup_size(WORKGROUP_SIZE)
fn rms_norm_backward(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let group = flat_group(workgroup, workgroups);
    let first = group * dims.z;
    let last = min(first + dims.z, dims.x);
    for (var block = first; block < last; block += BLOCK_ROWS) {
        let rows = min(BLOCK_ROWS, last - block);
        prepare_block(block, rows, local_index);
        for (var c = local_index; c < dims.y; c += WORKGROUP_SIZE) {
            let sum = finish_column(block, rows, c);
            let place = group * dims.y + c;
            if (block == first) {
                partials[place] = sum;
            } else {
                partials[place] += sum;
            }
        }
        workgroupBarrier();
    }
}

// Leave r and r^3 d / C of the block's rows in workgroup memory.
fn prepare_block(block: u32, rows: u32, local_index: u32) {
    let threads = WORKGROUP_SIZE / BLOCK_ROWS;
    let row = local_index / threads;
    let width = select(0u, dims.y, row < rows);
    let base = (block + row) * dims.y;
    var dot = 0.0;
    for (var c = local_index % threads; c < width; c += threads) {
        dot += grad_out[base + c] * weight[c] * x[base + c];
    }
    let d = run_sum(dot, local_index, threads);
    if (row < rows && local_index % threads == 0u) {
        let r = inverse_rms[block + row];
        sh_rms[row] = r;
        sh_pull[row] = r * r * r * d / f32(dims.y);
    }
    workgroupBarrier();
}

// Add to column c of grad_x in the block's rows; return the column's part of grad_weight.
fn finish_column(block: u32, rows: u32, c: u32) -> f32 {
    let scale = weight[c];
    var sum = 0.0;
    for (var row = 0u; row < rows; row++) {
        let place = (block + row) * dims.y + c;
        let gradient = grad_out[place] * sh_rms[row];
        sum += gradient * x[place];
        grad_x[place] += gradient * scale - x[place] * sh_pull[row];
    }
    return sum;
}
