// find_largest: finds the ids with the largest logits of each row, in no particular order.
//
// The kernel compares logits by their order, a u32 (order.wgsl). It finds the order of the k-th
// largest logit digit by digit: it counts how often each value of the next digit occurs among the
// logits whose order begins with the known digits. It then writes the ids of all logits of this
// order or a higher one. If logits are equal, it may write more than k ids. Counts are exact, and
// the set of written ids does not depend on the order of threads. A thread loads four vectors at a
// time, because a single workgroup must keep enough loads in flight.
//
// binding 0  params  uniform     sizes
// binding 1  logits  read        (N, columns), four per element; the first `tokens` stand for tokens
// binding 2  found   read_write  (N, 1 + capacity) pairs; pair 0: number of ids, 0; other pairs:
//   id, bitwise complement of its order
// dispatch: one workgroup per row
//!include lm/order.wgsl

const BINS: u32 = 2048u; // values of a digit
const LOADS: u32 = 4u; // vectors that a thread loads at a time

struct LargestParams {
    rows: u32, // N
    columns: u32, // a multiple of 4
    tokens: u32,
    k: u32, // no more than `tokens`
    capacity: u32,
}

@group(0) @binding(0) var<uniform> params: LargestParams;
@group(0) @binding(1) var<storage, read> logits: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> found: array<vec2<u32>>;

var<workgroup> sh_bins: array<atomic<u32>, BINS>;
var<workgroup> sh_sums: array<u32, WORKGROUP_SIZE>;
var<workgroup> sh_digits: u32; // the digits of the k-th largest order that were found so far
var<workgroup> sh_left: u32; // number of ids still wanted among orders that begin with sh_digits
var<workgroup> sh_count: atomic<u32>;

// Returns the orders (order.wgsl) of four logits of a row, and 0 for columns from `end` on.
fn four_orders(row: u32, quad: u32, end: u32) -> vec4<u32> {
    let first = 4u * quad;
    if (first >= end) {
        return vec4<u32>(0u);
    }
    let four = logits[row * (params.columns / 4u) + quad];
    let orders =
        vec4<u32>(order_of(four.x), order_of(four.y), order_of(four.z), order_of(four.w));
    return select(vec4<u32>(0u), orders, first + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(end));
}

// Takes the digit of `bits` bits that begins at bit `shift` of the order of a logit (order.wgsl).
// Counts this digit in sh_bins if the bits above it are `digits`.
fn count_digit(order: u32, digits: u32, shift: u32, bits: u32) {
    // The first digit has no digits before it to compare, and a shift by 32 bits would not shift in
    // WGSL. Order 0 stands for no logit.
    if (order != 0u && (shift + bits == 32u || order >> (shift + bits) == digits)) {
        atomicAdd(&sh_bins[(order >> shift) & ((1u << bits) - 1u)], 1u);
    }
}

// Counts a digit of all orders of a row that begin with sh_digits.
fn count_digits(row: u32, end: u32, shift: u32, bits: u32, local_index: u32) {
    for (var bin = local_index; bin < BINS; bin += WORKGROUP_SIZE) {
        atomicStore(&sh_bins[bin], 0u);
    }
    workgroupBarrier();
    let digits = sh_digits;
    for (var quad = local_index; 4u * quad < end; quad += LOADS * WORKGROUP_SIZE) {
        var orders: array<vec4<u32>, LOADS>;
        for (var k = 0u; k < LOADS; k++) {
            orders[k] = four_orders(row, quad + k * WORKGROUP_SIZE, end);
        }
        for (var k = 0u; k < LOADS; k++) {
            count_digit(orders[k].x, digits, shift, bits);
            count_digit(orders[k].y, digits, shift, bits);
            count_digit(orders[k].z, digits, shift, bits);
            count_digit(orders[k].w, digits, shift, bits);
        }
    }
    workgroupBarrier();
}

// Appends a digit of the k-th largest order to sh_digits: the bin in which the count of orders,
// from the largest bin down, reaches sh_left. The orders in larger bins are subtracted from
// sh_left.
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
    for (var quad = local_index; 4u * quad < end; quad += WORKGROUP_SIZE) {
        let orders = four_orders(row, quad, end);
        for (var k = 0u; k < 4u; k++) {
            if (orders[k] >= least) {
                let place = atomicAdd(&sh_count, 1u);
                if (place < params.capacity) {
                    found[first + place] = vec2<u32>(4u * quad + k, ~orders[k]);
                }
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
