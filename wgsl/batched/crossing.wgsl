// Adds up the bins of a digit from the highest bin down, and finds the bin at which the sum exceeds
// a limit.
//!include scan
//!include batched/rank.wgsl

const NO_BIN: u32 = 0xFFFFFFFFu;

struct Crossing {
    bin: u32,   // NO_BIN: the sum of all bins is within the limit
    above: u32, // sum of the bins above `bin`; 0 if bin is NO_BIN
}

var<workgroup> sh_crossing: Crossing;

// All threads of the workgroup must call this function. The kernel that includes this file defines
// bin_value(bin), the number of pairs in a bin. Each thread adds up BINS / WORKGROUP_SIZE
// neighbouring bins.
fn find_crossing(limit: u32, scan_input: ScanInput) -> Crossing {
    let share = BINS / WORKGROUP_SIZE;
    let first = scan_input.local_index * share;
    var own = 0u;
    for (var r = first; r < first + share; r++) {
        own += bin_value(BINS - 1u - r);
    }
    if (scan_input.local_index == 0u) {
        sh_crossing = Crossing(NO_BIN, 0u);
    }
    let scan = workgroup_scan(own, scan_input);
    var running = scan.exclusive;
    for (var r = first; r < first + share; r++) {
        let value = bin_value(BINS - 1u - r);
        if (running <= limit && running + value > limit) {
            sh_crossing = Crossing(BINS - 1u - r, running);
        }
        running += value;
    }
    return workgroupUniformLoad(&sh_crossing);
}
