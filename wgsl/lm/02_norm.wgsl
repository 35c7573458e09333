// Root-mean-square normalisation of rows, and its gradients.
//
//   forward:   r = 1 / sqrt(mean(x^2) + epsilon),  out = x * r * weight
//   backward:  with d = sum over the row of grad_out * weight * x:
//              grad_x += r * (grad_out * weight - x * r^2 * d / C)
//              grad_weight += sum over all rows of grad_out * x * r
//
// Shapes: x, out and their gradients (N, C), weight (C,), r (N,). Sums are f32; squares of elements
// beyond 1e19 overflow. Memory-bound: a row comes from memory once, and again from the caches.
//!include common/reduce.wgsl

// rms_norm
// binding 0  x            read        (N, C)
// binding 1  weight       read        (C,)
// binding 2  out          read_write  (N, C)
// binding 3  inverse_rms  read_write  (N,)
// binding 4  dims         uniform     N, C
// binding 5  params       uniform     epsilon
// dispatch: one workgroup for WORKGROUP_SIZE / ROW_THREADS rows, each of which has ROW_THREADS
// threads, a power of two
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<storage, read_write> inverse_rms: array<f32>;
@group(0) @binding(4) var<uniform> dims: vec4<u32>;
@group(0) @binding(5) var<uniform> params: vec4<f32>;

override ROW_THREADS: u32 = 256u;

@compute @workgroup_size(WORKGROUP_SIZE)
fn rms_norm(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let first_row = flat_group(workgroup, workgroups) * (WORKGROUP_SIZE / ROW_THREADS);
    let row = first_row + local_index / ROW_THREADS;
    let thread = local_index % ROW_THREADS;
    let width = select(0u, dims.y, row < dims.x);  // threads without a row must reach the barriers
    let base = row * dims.y;
    var squares = 0.0;
    for (var c = thread; c < width; c += ROW_THREADS) {
        squares += x[base + c] * x[base + c];
    }
    let mean = run_sum(squares, local_index, ROW_THREADS) / f32(dims.y);
    let r = 1.0 / sqrt(mean + params.x);
    for (var c = thread; c < width; c += ROW_THREADS) {
        out[base + c] = x[base + c] * r * weight[c];
    }
    if (row < dims.x && thread == 0u) {
        inverse_rms[row] = r;
    }
}

// rms_norm_backward
// binding 0  x             read        (N, C)
// binding 1  weight        read        (C,)
// binding 2  row_rms       read        (N,), what the forward kernel stored as inverse_rms
// binding 3  grad_out      read        (N, C)
// binding 4  grad_x        read_write  (N, C), added to
// binding 5  partial_sums  read_write  (P, C), a workgroup's part of grad_weight
// binding 6  block_dims    uniform     N, C, rows of a workgroup
// dispatch: P workgroups, each with the rows beginning at its number times block_dims.z, which it
// takes in blocks of BLOCK_ROWS: first WORKGROUP_SIZE / BLOCK_ROWS threads a row for d, then a thread
// a column over the rows of the block, so that one register holds the column's part of grad_weight
@group(0) @binding(2) var<storage, read> row_rms: array<f32>;
@group(0) @binding(3) var<storage, read> grad_out: array<f32>;
@group(0) @binding(4) var<storage, read_write> grad_x: array<f32>;
@group(0) @binding(5) var<storage, read_write> partial_sums: array<f32>;
@group(0) @binding(6) var<uniform> block_dims: vec4<u32>;

override BLOCK_ROWS: u32 = 8u;

var<workgroup> sh_rms: array<f32, BLOCK_ROWS>;  // r of the block's rows
var<workgroup> sh_pull: array<f32, BLOCK_ROWS>;  // r^3 d / C of them

@compute @workgroup_size(WORKGROUP_SIZE)
fn rms_norm_backward(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let group = flat_group(workgroup, workgroups);
    let first = group * block_dims.z;
    let last = min(first + block_dims.z, block_dims.x);
    for (var block = first; block < last; block += BLOCK_ROWS) {
        let rows = min(BLOCK_ROWS, last - block);
        prepare_block(block, rows, local_index);
        for (var c = local_index; c < block_dims.y; c += WORKGROUP_SIZE) {
            let sum = finish_column(block, rows, c);
            let place = group * block_dims.y + c;
            if (block == first) {
                partial_sums[place] = sum;
            } else {
                partial_sums[place] += sum;
            }
        }
        workgroupBarrier();
    }
}

// Leave r and r^3 d / C of the block's rows in workgroup memory.
fn prepare_block(block: u32, rows: u32, local_index: u32) {
    let threads = WORKGROUP_SIZE / BLOCK_ROWS;
    let row = local_index / threads;
    let width = select(0u, block_dims.y, row < rows);
    let base = (block + row) * block_dims.y;
    var dot = 0.0;
    for (var c = local_index % threads; c < width; c += threads) {
        dot += grad_out[base + c] * weight[c] * x[base + c];
    }
    let d = run_sum(dot, local_index, threads);
    if (row < rows && local_index % threads == 0u) {
        let r = row_rms[block + row];
        sh_rms[row] = r;
        sh_pull[row] = r * r * r * d / f32(block_dims.y);
    }
    workgroupBarrier();
}

// Add to column c of grad_x in the block's rows; return the column's part of grad_weight.
fn finish_column(block: u32, rows: u32, c: u32) -> f32 {
    let scale = weight[c];
    var sum = 0.0;
    for (var row = 0u; row < rows; row++) {
        let place = (block + row) * block_dims.y + c;
        let gradient = grad_out[place] * sh_rms[row];
        sum += gradient * x[place];
        grad_x[place] += gradient * scale - x[place] * sh_pull[row];
    }
    return sum;
}

// rms_norm_backward_weight
// binding 0  partials      read        (P, C)
// binding 1  grad_weight   read_write  (C,), added to
// binding 2  partial_dims  uniform     P, C
// dispatch: one workgroup for COLUMNS columns; WORKGROUP_SIZE / COLUMNS threads a column, each with
// every so manyth of the partial sums, whose sums are then added in order
@group(0) @binding(0) var<storage, read> partials: array<f32>;
@group(0) @binding(1) var<storage, read_write> grad_weight: array<f32>;
@group(0) @binding(2) var<uniform> partial_dims: vec4<u32>;

override COLUMNS: u32 = 16u;

@compute @workgroup_size(WORKGROUP_SIZE)
fn rms_norm_backward_weight(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let column = flat_group(workgroup, workgroups) * COLUMNS + local_index % COLUMNS;
    var sum = 0.0;
    if (column < partial_dims.y) {
        for (var p = local_index / COLUMNS; p < partial_dims.x; p += WORKGROUP_SIZE / COLUMNS) {
            sum += partials[p * partial_dims.y + column];
        }
    }
    sh_reduce[local_index] = sum;
    workgroupBarrier();
    if (local_index < COLUMNS && column < partial_dims.y) {
        var total = 0.0;
        for (var k = local_index; k < WORKGROUP_SIZE; k += COLUMNS) {
            total += sh_reduce[k];
        }
        grad_weight[column] += total;
    }
}
