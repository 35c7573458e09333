// batched_select_batch: selects the pairs of a batch, the longest prefix of the ranking that can be
// merged at once.
//
// Two pairs can't be merged at once if the left symbol of one is the right symbol of the other. A
// pair of two equal symbols is merged alone. The kernel finds up to CANDIDATES best pairs of the
// hot list digit by digit (see rank.wgsl), and sorts them by comparing each with all others. The
// batch ends before the first pair that can't be merged with the earlier pairs, and before the
// first pair for which a buffer has no room.
//
// binding 0  hot_list     read        (HOT_CAPACITY) slot, left symbol, right symbol, size of the
//                                     pair
// binding 1  pair_counts  read        (pair_capacity) by slot
// binding 2  pairs        read        (pair_capacity) by slot
// binding 3  lengths      read_write  (symbols) bytes of each symbol; out: also of the new symbols
// binding 4  merge_log    read_write  (merge_limit) left symbol, right symbol, count, and for equal
//                                     symbols the weight of the occurrences that were merged
// binding 5  state        read_write  BatchState
// dispatch: 1 workgroup, whose number of threads is CANDIDATES or a multiple
//!include batched/state.wgsl
//!include batched/crossing.wgsl

const CANDIDATES: u32 = 256u; // largest number of pairs that are sorted
const ENOUGH: u32 = 64u;      // candidates with which the search may end

@group(0) @binding(0) var<storage, read> hot_list: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> pair_counts: array<u32>;
@group(0) @binding(2) var<storage, read> pairs: array<Pair>;
@group(0) @binding(3) var<storage, read_write> lengths: array<u32>;
@group(0) @binding(4) var<storage, read_write> merge_log: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> state: BatchState;

var<workgroup> sh_bins: array<atomic<u32>, 1024>;
var<workgroup> sh_found: atomic<u32>; // number of candidates
var<workgroup> sh_pair: array<vec4<u32>, 256>; // candidates: slot, left, right, size
var<workgroup> sh_count: array<u32, 256>;
var<workgroup> sh_before: array<atomic<u32>, 256>; // number of candidates that rank higher
var<workgroup> sh_ranked: array<vec4<u32>, MAX_BATCH>; // the best candidates, the best first
var<workgroup> sh_ranked_count: array<u32, MAX_BATCH>;
var<workgroup> sh_length: atomic<u32>;         // number of pairs in the batch
var<workgroup> sh_stop: u32;

fn bin_value(bin: u32) -> u32 {
    return atomicLoad(&sh_bins[bin]);
}

fn hot_threshold() -> vec3<u32> {
    return vec3<u32>(state.threshold_count, state.threshold_left, state.threshold_right);
}

// Returns the rank of a pair of the hot list; zeros if the pair is below the threshold or too rare.
fn hot_rank(listed: vec4<u32>, threshold: vec3<u32>) -> vec3<u32> {
    let count = pair_counts[listed.x];
    let rank = rank_of(count, listed.y, listed.z);
    if (count < state.min_frequency || !at_least(rank, threshold)) { return vec3<u32>(0u); }
    return rank;
}

// Returns whether this dispatch selects a batch. Otherwise either the last batch is still being
// marked (state.resumed is 1), or state.status tells why the rest of the submission does nothing.
fn begin() -> bool {
    if (state.status == REFILL && state.digit_width == 0u) {
        state.status = RUNNING; // the refill has just ended
    }
    if (state.status != RUNNING) { return false; }
    state.resumed = select(0u, 1u, atomicLoad(&state.unfinished) != 0u);
    atomicStore(&state.unfinished, 0u);
    if (state.resumed != 0u) { return false; }
    let taken = atomicExchange(&state.taken, 0u);
    if (taken != 0u) {
        merge_log[state.merged - 1u].w = taken;
    }
    if (state.merged >= state.merge_limit) {
        state.status = FINISHED;
        return false;
    }
    if (atomicLoad(&state.hot_count) > HOT_CAPACITY) {
        ask_for_refill();
        return false;
    }
    return true;
}

fn ask_for_refill() {
    state.status = REFILL;
    state.digit_width = NONE;
}

// Returns a rank that at most CANDIDATES pairs of the hot list reach, and at least ENOUGH pairs if
// possible.
fn best_threshold(scan_input: ScanInput) -> vec3<u32> {
    let local_index = scan_input.local_index;
    let listed = atomicLoad(&state.hot_count);
    let threshold = hot_threshold();
    var digit = first_digit(state.last_count);
    var prefix = vec3<u32>(0u);
    var accepted = 0u;
    for (var step = 0u; step < MAX_DIGITS; step++) {
        for (var bin = local_index; bin < BINS; bin += WORKGROUP_SIZE) {
            atomicStore(&sh_bins[bin], 0u);
        }
        workgroupBarrier();
        for (var i = local_index; i < listed; i += WORKGROUP_SIZE) {
            let rank = hot_rank(hot_list[i], threshold);
            if (rank.x > 0u && in_prefix(rank, prefix, digit)) {
                atomicAdd(&sh_bins[digit_of(rank, digit)], 1u);
            }
        }
        workgroupBarrier();
        let crossing = find_crossing(CANDIDATES - accepted, scan_input);
        if (crossing.bin == NO_BIN) { break; }
        accepted += crossing.above;
        if (accepted >= ENOUGH) {
            prefix = with_digit(prefix, digit, crossing.bin + 1u);
            break;
        }
        prefix = with_digit(prefix, digit, crossing.bin);
        digit = next_digit(digit);
    }
    return prefix;
}

// Collects the pairs of rank `best` or higher as candidates.
fn collect(scan_input: ScanInput, best: vec3<u32>) {
    let threshold = hot_threshold();
    let listed = atomicLoad(&state.hot_count);
    for (var i = scan_input.local_index; i < listed; i += WORKGROUP_SIZE) {
        let pair = hot_list[i];
        let rank = hot_rank(pair, threshold);
        if (rank.x > 0u && at_least(rank, best)) {
            let place = atomicAdd(&sh_found, 1u);
            sh_pair[place] = pair;
            sh_count[place] = rank.x;
        }
    }
}

fn candidate_rank(i: u32) -> vec3<u32> {
    return rank_of(sh_count[i], sh_pair[i].y, sh_pair[i].z);
}

// Writes the best MAX_BATCH candidates to sh_ranked in order. WORKGROUP_SIZE / CANDIDATES threads
// share the comparisons of one candidate.
fn rank_candidates(local_index: u32, found: u32) {
    if (local_index < CANDIDATES) {
        atomicStore(&sh_before[local_index], 0u);
    }
    workgroupBarrier();
    let own = local_index % CANDIDATES;
    if (own < found) {
        let rank = candidate_rank(own);
        var before = 0u;
        for (var j = local_index / CANDIDATES; j < found; j += WORKGROUP_SIZE / CANDIDATES) {
            before += select(0u, 1u, j != own && at_least(candidate_rank(j), rank));
        }
        atomicAdd(&sh_before[own], before);
    }
    workgroupBarrier();
    if (local_index < found) {
        let place = atomicLoad(&sh_before[local_index]);
        if (place < MAX_BATCH) {
            sh_ranked[place] = sh_pair[local_index];
            sh_ranked_count[place] = sh_count[local_index];
        }
    }
    workgroupBarrier();
}

// Returns whether pair r of sh_ranked can't be merged at once with an earlier pair. Thread `share`
// of `shares` threads compares pair r with every `shares`-th earlier pair.
fn chains(r: u32, share: u32, shares: u32) -> bool {
    let own = sh_ranked[r];
    if (own.y == own.z && r > 0u) { return true; }
    for (var j = share; j < r; j += shares) {
        let other = sh_ranked[j];
        if (other.y == own.z || other.z == own.y || other.y == other.z) { return true; }
    }
    return false;
}

// Returns whether the buffers have room for a batch of `members` pairs with `occurrences` listed
// positions. Each occurrence makes at most two new occurrences of pairs.
fn has_room(members: u32, occurrences: u32) -> bool {
    if (occurrences > state.candidate_capacity) { return false; }
    let symbols = state.first_symbol + state.merged + MAX_BATCH;
    let changes = 2u * occurrences;
    let new_pairs = min(changes, 2u * members * symbols);
    return new_pairs <= state.entry_capacity / 2u
        && atomicLoad(&state.pair_count) + new_pairs <= state.pair_capacity
        && atomicLoad(&state.list_length) + changes <= state.list_capacity;
}

// Writes pair r of sh_ranked to the batch. start: listed positions of the pairs before it.
fn write_member(r: u32, start: u32) {
    let pair = sh_ranked[r];
    let merge = state.merged + r;
    let symbol = state.first_symbol + merge;
    state.batch[r] = Member(pair.x, pairs[pair.x].first, start, symbol);
    lengths[symbol] = lengths[pair.y] + lengths[pair.z];
    merge_log[merge] = vec4<u32>(pair.y, pair.z, sh_ranked_count[r], 0u);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn batched_select_batch(scan_input: ScanInput) {
    let local_index = scan_input.local_index;
    if (local_index == 0u) {
        sh_stop = select(1u, 0u, begin());
        atomicStore(&sh_found, 0u);
    }
    storageBarrier();
    if (workgroupUniformLoad(&sh_stop) != 0u) { return; }

    let best = best_threshold(scan_input);
    collect(scan_input, best);
    workgroupBarrier();
    let found = atomicLoad(&sh_found);
    rank_candidates(local_index, found);
    let most = min(min(found, MAX_BATCH), state.merge_limit - state.merged);
    if (local_index == 0u) {
        atomicStore(&sh_length, most);
    }
    var size = 0u;
    if (local_index < most) {
        size = sh_ranked[local_index].w;
    }
    // The pairs' ranges of the position list don't overlap, so the sum of their sizes fits into a
    // u32.
    let start = workgroup_scan(size, scan_input).exclusive;
    let member = local_index % MAX_BATCH;
    let misfit = member < most
        && (chains(member, local_index / MAX_BATCH, WORKGROUP_SIZE / MAX_BATCH)
            || (member == local_index && !has_room(member + 1u, start + size)));
    if (misfit) {
        atomicMin(&sh_length, member);
    }
    workgroupBarrier();
    let length = atomicLoad(&sh_length);
    if (local_index < length) {
        write_member(local_index, start);
    }
    if (length > 0u && local_index == length - 1u) {
        state.candidates = start + size;
    }
    workgroupBarrier(); // all threads have read the values that the first thread changes
    if (local_index != 0u) { return; }
    if (found == 0u) {
        if (all(hot_threshold() == vec3<u32>(0u))) {
            state.status = FINISHED; // the hot list has all pairs, and all are too rare
        } else {
            ask_for_refill();
        }
    } else if (length == 0u) {
        state.status = FULL;
        state.needed = sh_ranked[0].w;
    } else {
        let last = sh_ranked[length - 1u];
        state.last_count = sh_ranked_count[length - 1u];
        state.batch_size = length;
        state.equal_parts = select(0u, 1u, last.y == last.z);
        state.merged += length;
        state.batches += 1u;
        state.used_before = atomicExchange(&state.used, 0u);
    }
}
