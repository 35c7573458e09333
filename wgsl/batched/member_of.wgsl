// Find the pair of the batch to which an occurrence belongs. Expects state among the bindings.
//!include batched/state.wgsl

var<workgroup> sh_starts: array<u32, MAX_BATCH>;
var<workgroup> sh_batch_size: u32;

// Call from all threads of a workgroup before member_of. A workgroup is at least 64 wide.
fn load_batch(local_index: u32, width: u32) {
    for (var k = local_index; k < state.batch_size; k += width) {
        sh_starts[k] = state.batch[k].start;
    }
    if (local_index == 0u) {
        sh_batch_size = state.batch_size;
    }
    workgroupBarrier();
}

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
