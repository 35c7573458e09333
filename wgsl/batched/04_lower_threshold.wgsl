// batched_lower_threshold: finds the lowest rank such that all pairs down to it fit into the hot list.
//
// It runs once before the first digit is counted, to begin a refill, and then after each digit. If
// not all bins of a digit fit, and the bins above the first one that does not fit have enough
// pairs, the threshold is above that bin. Otherwise that bin is split by the next digit.
//
// binding 0  bins   read_write  (BINS) left at zero
// binding 1  state  read_write  BatchState: nothing is done unless status is REFILL
// dispatch: 1 workgroup
//!include batched/state.wgsl
//!include batched/crossing.wgsl

const MOST: u32 = 2048u;  // most pairs of a refill
const LEAST: u32 = 512u;  // and how many suffice

@group(0) @binding(0) var<storage, read_write> bins: array<u32>;
@group(0) @binding(1) var<storage, read_write> state: BatchState;

fn bin_value(bin: u32) -> u32 {
    return bins[bin];
}

fn look_at(digit: Digit) {
    state.digit_field = digit.field;
    state.digit_shift = digit.shift;
    state.digit_width = digit.width;
}

fn begin() {
    state.threshold_count = 0u;
    state.threshold_left = 0u;
    state.threshold_right = 0u;
    state.accepted = 0u;
    atomicStore(&state.hot_count, 0u);
    look_at(first_digit(state.last_count));
}

fn decide(crossing: Crossing) {
    if (crossing.bin == NO_BIN) {
        state.digit_width = 0u;
        return;
    }
    let digit = Digit(state.digit_field, state.digit_shift, state.digit_width);
    let prefix = vec3<u32>(state.threshold_count, state.threshold_left, state.threshold_right);
    state.accepted += crossing.above;
    let enough = state.accepted >= LEAST;
    let threshold = with_digit(prefix, digit, crossing.bin + select(0u, 1u, enough));
    state.threshold_count = threshold.x;
    state.threshold_left = threshold.y;
    state.threshold_right = threshold.z;
    if (enough) {
        state.digit_width = 0u;
    } else {
        look_at(next_digit(digit));
    }
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn batched_lower_threshold(scan_input: ScanInput) {
    let local_index = scan_input.local_index;
    let refilling = state.status == REFILL;
    let begins = state.digit_width == NONE;
    let undecided = refilling && !begins && state.digit_width > 0u;
    let limit = MOST - min(state.accepted, MOST);
    workgroupBarrier();
    let crossing = find_crossing(limit, scan_input);
    for (var bin = local_index; bin < BINS; bin += WORKGROUP_SIZE) {
        bins[bin] = 0u;
    }
    if (local_index == 0u) {
        if (refilling && begins) {
            begin();
        } else if (undecided) {
            decide(crossing);
        }
    }
}
