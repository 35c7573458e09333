// batched_lower_threshold: finds the threshold of a refill, the lowest rank that a pair needs to
// enter the hot list.
//
// The kernel runs once at the start of a refill, where it resets the threshold, and once after each
// digit is counted. It then takes bins from the highest digit down, while the number of pairs taken
// stays at most MOST. There are three cases:
// - All bins fit: the threshold is final.
// - A bin does not fit, and LEAST pairs or more are taken: the threshold is the lowest rank above
//   this bin.
// - A bin does not fit, and fewer pairs are taken: the next dispatches split this bin by the next
//   digit.
//
// binding 0  bins   read_write  (BINS) number of pairs by digit; zeros afterwards
// binding 1  state  read_write  BatchState; the kernel changes it only if status is REFILL
// dispatch: 1 workgroup
//!include batched/state.wgsl
//!include batched/crossing.wgsl

const MOST: u32 = 2048u;  // largest number of pairs in a refill
const LEAST: u32 = 512u;  // a refill with this many pairs is large enough

@group(0) @binding(0) var<storage, read_write> bins: array<u32>;
@group(0) @binding(1) var<storage, read_write> state: BatchState;

fn bin_value(bin: u32) -> u32 {
    return bins[bin];
}

// Makes a digit the current digit.
fn look_at(digit: Digit) {
    state.digit_field = digit.field;
    state.digit_shift = digit.shift;
    state.digit_width = digit.width;
}

// Resets the threshold at the start of a refill.
fn begin() {
    state.threshold_count = 0u;
    state.threshold_left = 0u;
    state.threshold_right = 0u;
    state.accepted = 0u;
    atomicStore(&state.hot_count, 0u);
    look_at(first_digit(state.last_count));
}

// Lowers the threshold by the current digit, and chooses the next digit; width 0 ends the search.
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
