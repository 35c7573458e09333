// find_largest: the ids with the largest logits of each row, in no order.
//
// The order of the k-th largest is found digit by digit, from counts of the digits of all that begin with
// the digits found so far. All ids from there on are written, which are more than k where logits are
// equal. Counts are exact, and the ids that are written do not depend on the order of threads.
//
// binding 0  params  uniform     sizes
// binding 1  logits  read        (N, columns), of which the first `tokens` stand for tokens
// binding 2  found   read_write  (N, 1 + capacity) pairs: the number of ids; id and inverted order
// dispatch: one workgroup a row
//!include lm/order.wgsl

const BINS: u32 = 2048u; // of a digit

struct LargestParams {
    rows: u32, // N
    columns: u32,
    tokens: u32,
    k: u32, // no more than `tokens`
    capacity: u32,
}

@group(0) @binding(0) var<uniform> params: LargestParams;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read_write> found: array<vec2<u32>>;

var<workgroup> sh_bins: array<atomic<u32>, BINS>;
var<workgroup> sh_sums: array<u32, WORKGROUP_SIZE>;
var<workgroup> sh_digits: u32; // found so far
var<workgroup> sh_left: u32; // wanted of those that begin with them
var<workgroup> sh_count: atomic<u32>;

fn count_digits(row: u32, end: u32, shift: u32, bits: u32, local_index: u32) {
    for (var bin = local_index; bin < BINS; bin += WORKGROUP_SIZE) {
        atomicStore(&sh_bins[bin], 0u);
    }
    workgroupBarrier();
    let digits = sh_digits;
    for (var id = local_index; id < end; id += WORKGROUP_SIZE) {
        let order = order_of(logits[row * params.columns + id]);
        // A shift by all 32 bits is none in WGSL.
        if (shift + bits == 32u || order >> (shift + bits) == digits) {
            atomicAdd(&sh_bins[(order >> shift) & ((1u << bits) - 1u)], 1u);
        }
    }
    workgroupBarrier();
}

// The bin, counted from the largest, in which the wanted one is.
fn choose_digit(bits: u32, local_index: u32) {
    let run = BINS / WORKGROUP_SIZE;
    var sum = 0u;
    for (var k = 0u; k < run; k++) {
        sum += atomicLoad(&sh_bins[BINS - 1u - local_index * run - k]);
    }
    sh_sums[local_index] = sum;
    workgroupBarrier();
    if (local_index == 0u) {
        var left = sh_left;
        var thread = 0u;
        while (thread < WORKGROUP_SIZE - 1u && sh_sums[thread] < left) {
            left -= sh_sums[thread];
            thread++;
        }
        var bin = BINS - 1u - thread * run;
        for (var k = 1u; k < run && atomicLoad(&sh_bins[bin]) < left; k++) {
            left -= atomicLoad(&sh_bins[bin]);
            bin--;
        }
        sh_digits = (sh_digits << bits) | bin;
        sh_left = left;
    }
    workgroupBarrier();
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn find_largest(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let row = flat_group(workgroup, workgroups);
    let end = select(0u, params.tokens, row < params.rows); // all threads must reach the barriers
    if (local_index == 0u) {
        sh_digits = 0u;
        sh_left = params.k;
        atomicStore(&sh_count, 0u);
    }
    workgroupBarrier();
    count_digits(row, end, 21u, 11u, local_index);
    choose_digit(11u, local_index);
    count_digits(row, end, 10u, 11u, local_index);
    choose_digit(11u, local_index);
    count_digits(row, end, 0u, 10u, local_index);
    choose_digit(10u, local_index);
    let least = sh_digits;
    let first = row * (1u + params.capacity) + 1u;
    for (var id = local_index; id < end; id += WORKGROUP_SIZE) {
        let order = order_of(logits[row * params.columns + id]);
        if (order >= least) {
            let place = atomicAdd(&sh_count, 1u);
            if (place < params.capacity) {
                found[first + place] = vec2<u32>(id, ~order);
            }
        }
    }
    workgroupBarrier();
    let count = atomicLoad(&sh_count);
    if (row < params.rows) {
        if (local_index == 0u) {
            found[first - 1u] = vec2<u32>(count, 0u);
        }
        for (var k = count + local_index; k < params.capacity; k += WORKGROUP_SIZE) {
            found[first + k] = vec2<u32>(0xffffffffu, 0xffffffffu);
        }
    }
}
