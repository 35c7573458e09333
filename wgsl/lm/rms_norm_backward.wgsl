// Computes the gradients of rms_norm. An element of a row is a number or a vector of numbers.
//
// Workgroup g processes rows g * dims.z to (g + 1) * dims.z - 1 of x in blocks of BLOCK_ROWS rows.
// For each row of a block, WORKGROUP_SIZE / BLOCK_ROWS threads compute d, the sum of
// grad_out * weight * x over the row. Then each thread walks down columns of the block, so that a
// register holds the sum of grad_weight for a column of the block.
//
// The kernel sets `number`, the type of an element, and `numbers`, how many numbers an element
// holds. It declares dot_of(place, c), the term of d for element `place` in column c, and
// add_gradient(place, gradient), which adds to element `place` of grad_x.

override BLOCK_ROWS: u32 = 8u;

var<workgroup> sh_rms: array<f32, BLOCK_ROWS>; // r of each row of the block
var<workgroup> sh_pull: array<f32, BLOCK_ROWS>; // r^3 d / C of each row of the block

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

// Stores r and r^3 d / C of each row of the block in sh_rms and sh_pull.
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

// Adds to grad_x in column c of the block's rows. Returns the sum of grad_weight over these rows.
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
