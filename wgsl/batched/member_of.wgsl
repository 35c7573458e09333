// Finds the pair of the batch to which a listed position belongs. The positions of all pairs of the
// batch are numbered from 0 to state.candidates - 1, stale positions included. Uses `state`, which
// the kernel that includes this file binds.
//!include batched/state.wgsl

var<workgroup> sh_starts: array<u32, MAX_BATCH>;
var<workgroup> sh_batch_size: u32;

// Copies the first number of each pair to workgroup memory. All threads of the workgroup must call
// this function before member_of. width: threads of the workgroup.
fn load_batch(local_index: u32, width: u32) {
    for (var k = local_index; k < state.batch_size; k += width) {
        sh_starts[k] = state.batch[k].start;
    }
    if (local_index == 0u) {
        sh_batch_size = state.batch_size;
    }
    workgroupBarrier();
}

// Returns the index in state.batch of the pair to which number `occurrence` belongs.
fn member_of(occurrence: u32) -> u32 {
    var low = 0u;
    var high = sh_batch_size;
    while (high - low > 1u) {
        let middle = (low + high) / 2u;
        if (sh_starts[middle] <= occurrence) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}
