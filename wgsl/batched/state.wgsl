// Shared by the batched trainer's kernels: positions, pairs, and the state of the loop.
//
// Every symbol of every word has a position. There is a separator between words. The symbols of a
// word are linked in both directions, so a merge changes only the neighbours of the merged symbols.
// Every pair of symbols that is frequent enough has a slot, every position has the slot of the pair
// that starts there, and a pair's positions are a range of one list. A pair gains occurrences only
// in the batch that makes it, so the range never grows; positions in it that have a different slot
// by now are stale.
//
// A batch is five dispatches: select, mark, count changes, make pairs, link. Work that needs the
// writes of other threads is done in the next dispatch.

struct Unit {
    symbol: u32,
    weight: u32, // how often the word occurs
}

struct Link {
    preceding: u32, // position of the symbol before, which may be a separator
    following: u32,
}

struct Pair {
    left: u32,
    right: u32,
    first: u32, // of its range in the position list
    size: u32,
}

// A pair that the current batch makes. The table is open-addressing; key 0 is free.
struct Entry {
    key: atomic<u32>,   // 1 + (new symbol's number in the batch, side, other symbol)
    count: atomic<u32>, // weighted
    size: atomic<u32>,  // occurrences so far
    slot: u32,
    used: u32,          // entry k holds the place of the k-th entry in use; unrelated to the other fields
}

struct Member {
    slot: u32,
    first: u32, // of its range in the position list
    start: u32, // occurrences, stale ones included, of the members before it
    new_symbol: u32,
}

const MAX_BATCH: u32 = 128u;

struct BatchState {
    status: u32,
    merged: u32,            // merges chosen so far
    merge_limit: u32,       // merges wanted
    min_frequency: u32,     // a rarer pair gets no slot
    first_symbol: u32,      // merge k makes symbol first_symbol + k
    max_length: u32,        // a pair with more bytes gets no slot
    last_count: u32,        // count of the last pair merged: no pair is more frequent
    pair_count: atomic<u32>,
    list_length: atomic<u32>,
    hot_count: atomic<u32>, // may pass HOT_CAPACITY: then pairs are missing from the hot list
    used: atomic<u32>,      // entries in use
    taken: atomic<u32>,     // weighted occurrences merged, for a pair of equal symbols only
    unfinished: atomic<u32>, // a run was too long for one dispatch; marking continues in the next
    resumed: u32,           // this batch continues marking
    used_before: u32,       // entries that the previous batch used
    candidates: u32,        // occurrences of the batch, stale ones included
    batch_size: u32,
    equal_parts: u32,       // the batch is one pair of equal symbols
    threshold_count: u32,   // pairs that rank here or higher are in the hot list, see rank.wgsl
    threshold_left: u32,
    threshold_right: u32,
    digit_field: u32,       // refilling: the current digit, see rank.wgsl
    digit_shift: u32,
    digit_width: u32,
    accepted: u32,          // pairs above the current prefix
    pair_capacity: u32,
    list_capacity: u32,
    entry_capacity: u32,    // a power of two
    candidate_capacity: u32,
    needed: u32,            // FULL: occurrences of the pair to be merged next
    batches: u32,
    batch: array<Member, MAX_BATCH>,
}

// Sizes of the words before any merge.
struct LayOutParams {
    words: u32,
    positions: u32,
    distinct_pairs: u32,
}

const RUNNING: u32 = 0u;
const FINISHED: u32 = 1u; // merge_limit reached, or no pair is frequent enough
const REFILL: u32 = 2u;   // the hot list is used up
const FULL: u32 = 3u;     // a buffer must grow first; nothing was merged

const SEPARATOR: u32 = 0xFFFFFFFFu; // symbol between words
const NO_SLOT: u32 = 0u;            // no pair starts here, or only one that is too rare
const MARK: u32 = 0x80000000u;      // slot of a position that member k of the batch merges: MARK | k
const NONE: u32 = 0xFFFFFFFFu;
const HOT_CAPACITY: u32 = 4096u;

// Pairs of up to 20 bits per symbol, in a batch of 128: 1 + 28 bits.
const LEFT_IS_NEW: u32 = 0u;
const RIGHT_IS_NEW: u32 = 1u;

fn entry_key(member: u32, side: u32, other: u32) -> u32 {
    return 1u + ((((member << 1u) | side) << 20u) | other);
}
