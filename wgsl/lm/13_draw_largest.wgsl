// draw_largest: draws the next id of each row from the ids with the largest logits, and stores it
// at the row's next position.
//
// The kernel sorts the k ids with the largest logits: the rank of an id is the number of ids that
// come before it. Of equal logits, the smallest id comes first. An id has the weight
// exp((logit - largest) * inverse temperature). The kernel keeps the shortest head of the list
// whose weights sum up to at least top_p times the sum of all weights. It draws the first id whose
// running sum of weights is more than `uniform` times the sum of the kept weights. Sums are
// float32, so rounding may choose a neighbour of the id that exact sums would choose.
//
// The sequence of a row that is not in use starts at row `last` of the cache. The position of such
// a row does not change.
//
// binding 0  params  uniform     sizes
// binding 1  draws   read        (steps, N) vectors: uniform, inverse temperature, top_p, k
// binding 2  found   read_write  (N, 1 + capacity) pairs, as lm/13_find_largest.wgsl writes them;
//   out: the drawn id is y of pair 0
// binding 3  tokens  read_write  (N,) out: the drawn id
// binding 4  places  read_write  (2, N), positions and the rows of the cache where sequences start
// dispatch: one workgroup per row
//!include lm/order.wgsl

const MOST: u32 = 1024u; // largest k

struct DrawParams {
    rows: u32, // N
    capacity: u32,
    step: u32,
    last: u32, // row of the cache at which the sequences of unused rows start
}

@group(0) @binding(0) var<uniform> params: DrawParams;
@group(0) @binding(1) var<storage, read> draws: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> found: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(4) var<storage, read_write> places: array<u32>;

var<workgroup> sh_ids: array<u32, MOST>;
var<workgroup> sh_inverted: array<u32, MOST>;
var<workgroup> sh_ends: array<f32, MOST>; // weights, later their running sums
var<workgroup> sh_sums: array<f32, WORKGROUP_SIZE>;
var<workgroup> sh_below: array<atomic<u32>, 2>;

// Returns the number of pairs of a row that come before the pair `own`.
fn rank_of(own: vec2<u32>, first: u32, listed: u32) -> u32 {
    var rank = 0u;
    for (var j = 0u; j < listed; j++) {
        let other = found[first + j];
        rank += u32(other.y < own.y || (other.y == own.y && other.x < own.x));
    }
    return rank;
}

// Returns the logit with this inverted order. An inverted order is the bitwise complement of
// order_of(logit), see lm/order.wgsl.
fn logit_of(inverted: u32) -> f32 {
    let order = ~inverted;
    return bitcast<f32>(order ^ select(0xffffffffu, 0x80000000u, (order >> 31u) == 1u));
}

// Replaces the first `count` numbers of sh_ends by their running sums. Each thread adds up a run of
// numbers, and then adds the sums of the runs of all threads before it.
fn sum_up(count: u32, local_index: u32) {
    let run = MOST / WORKGROUP_SIZE;
    let start = local_index * run;
    var sum = 0.0;
    for (var k = start; k < min(start + run, count); k++) {
        sum += sh_ends[k];
        sh_ends[k] = sum;
    }
    sh_sums[local_index] = sum;
    workgroupBarrier();
    var before = 0.0;
    if (start < count) {
        for (var thread = 0u; thread < local_index; thread++) {
            before += sh_sums[thread];
        }
        for (var k = start; k < min(start + run, count); k++) {
            sh_ends[k] += before;
        }
    }
    workgroupBarrier();
}

// Returns how many of the first `count` running sums are below `bound`, or, if `at` is true, equal
// to it or below. The threads count in sh_below[slot], which must be 0.
fn count_below(bound: f32, at: bool, count: u32, slot: u32, local_index: u32) -> u32 {
    for (var k = local_index; k < count; k += WORKGROUP_SIZE) {
        if (sh_ends[k] < bound || (at && sh_ends[k] == bound)) {
            atomicAdd(&sh_below[slot], 1u);
        }
    }
    workgroupBarrier();
    return atomicLoad(&sh_below[slot]);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn draw_largest(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let group = flat_group(workgroup, workgroups);
    let row = min(group, params.rows - 1u); // all threads must reach the barriers
    let first = row * (1u + params.capacity) + 1u;
    let listed = min(found[first - 1u].x, params.capacity);
    let draw = draws[params.step * params.rows + row];
    let count = max(1u, min(u32(draw.w), min(listed, MOST)));
    if (local_index < 2u) {
        atomicStore(&sh_below[local_index], 0u);
    }
    for (var k = local_index; k < listed; k += WORKGROUP_SIZE) {
        let own = found[first + k];
        let rank = rank_of(own, first, listed);
        if (rank < count) {
            sh_ids[rank] = own.x;
            sh_inverted[rank] = own.y;
        }
    }
    workgroupBarrier();
    let largest = logit_of(sh_inverted[0]);
    for (var k = local_index; k < count; k += WORKGROUP_SIZE) {
        sh_ends[k] = exp((logit_of(sh_inverted[k]) - largest) * draw.y);
    }
    workgroupBarrier();
    sum_up(count, local_index);
    let below = count_below(draw.z * sh_ends[count - 1u], false, count, 0u, local_index);
    let kept = min(below + 1u, count);
    let place = count_below(draw.x * sh_ends[kept - 1u], true, kept, 1u, local_index);
    if (group < params.rows && local_index == 0u) {
        let id = sh_ids[min(place, kept - 1u)];
        tokens[row] = id;
        found[first - 1u].y = id;
        if (places[params.rows + row] < params.last) {
            places[row] += 1u;
        }
    }
}
