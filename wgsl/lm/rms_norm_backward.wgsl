// The gradients of rms_norm of rows of elements, which are numbers or vectors of them.
//
// A workgroup has the rows that start at its number times dims.z, and takes them in blocks of
// BLOCK_ROWS. WORKGROUP_SIZE / BLOCK_ROWS threads per row find d first; then each thread walks down a
// column of the block, so that one register holds the column's part of grad_weight.
//
// The kernel sets `number`, the type of an element, and `numbers` in it. It declares `dot_of`, the
// products of an element that d sums up, and `add_gradient`.

override BLOCK_ROWS: u32 = 8u;

var<workgroup> sh_rms: array<f32, BLOCK_ROWS>; // r of the block's rows
var<workgroup> sh_pull: array<f32, BLOCK_ROWS>; // r^3 d / C of them

fn norm_backward(group: u32, local_index: u32) {
    let first = group * dims.z;
    let last = min(first + dims.z, dims.x);
    for (var block = first; block < last; block += BLOCK_ROWS) {
        let rows = min(BLOCK_ROWS, last - block);
        prepare_block(block, rows, local_index);
        for (var c = local_index; c < dims.y; c += WORKGROUP_SIZE) {
            let sum = finish_column(block, rows, c);
            let place = (dims.w + group) * dims.y + c;
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
        dot += dot_of(base + c, c);
    }
    let d = run_sum(dot, local_index, threads);
    if (row < rows && local_index % threads == 0u) {
        let r = inverse_rms[block + row];
        sh_rms[row] = r;
        sh_pull[row] = r * r * r * d / f32({numbers}u * dims.y);
    }
    workgroupBarrier();
}

// Add to column c of grad_x in the block's rows; return the column's part of grad_weight.
fn finish_column(block: u32, rows: u32, c: u32) -> {number} {
    let scale = weight[c];
    var sum = {number}();
    for (var row = 0u; row < rows; row++) {
        let place = (block + row) * dims.y + c;
        let gradient = grad_out[place] * sh_rms[row];
        sum += gradient * x[place];
        add_gradient(place, gradient * scale - x[place] * sh_pull[row]);
    }
    return sum;
}
