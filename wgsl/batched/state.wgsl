// Declares the structures of the batched trainer: positions, pairs, and the state of the loop.
//
// Every symbol of every word has a position, and a separator has a position between words. The
// symbols of a word are linked in both directions, so a merge changes only the neighbours of the
// merged symbols. Every pair of symbols that is frequent enough has a slot, its index in `pairs`
// and `pair_counts`. The buffer `slots` holds for every position the slot of the pair that starts
// there.
//
// The positions of a pair are a range of `position_list`. A pair gains occurrences only in the
// batch that makes the pair, so the range never grows. A position in the range is stale if
// slots[position] is a different slot: a later merge has destroyed this occurrence of the pair.
//
// The hot list holds the pairs of the highest ranks (rank.wgsl), from which batches are selected.
// If it has no pair left, it is refilled from all pairs.
//
// A batch is five dispatches: select, mark, count changes, make pairs, link. A step that reads the
// writes of other threads is a dispatch of its own.

struct Unit {
    symbol: u32,
    weight: u32, // number of occurrences of the word
}

struct Link {
    preceding: u32, // position of the symbol before, which may be a separator
    following: u32,
}

struct Pair {
    left: u32,
    right: u32,
    first: u32, // start of the pair's range in position_list
    size: u32,  // length of this range
}

// A pair that the current batch makes, in a hash table with open addressing. Before the first
// batch, entry i belongs to pair i of first_pairs, and has no key.
struct Entry {
    key: atomic<u32>,   // see entry_key; 0: the entry is free
    count: atomic<u32>, // occurrences so far, each times the weight of its word
    size: atomic<u32>,  // occurrences so far
    slot: u32,
    used: u32,          // entries[k].used is the index of the k-th entry in use
}

// A pair of the current batch.
struct Member {
    slot: u32,
    first: u32, // start of the pair's range in position_list
    start: u32, // sizes of the batch's pairs before this pair, added up
    new_symbol: u32,
}

const MAX_BATCH: u32 = 128u;

struct BatchState {
    status: u32,            // RUNNING, FINISHED, REFILL or FULL
    merged: u32,            // merges chosen so far
    merge_limit: u32,       // merges wanted
    min_frequency: u32,     // a rarer pair gets no slot
    first_symbol: u32,      // merge k makes symbol first_symbol + k
    max_length: u32,        // a pair with more bytes gets no slot
    last_count: u32,        // count of the last pair merged: no pair is more frequent
    pair_count: atomic<u32>,  // the next free slot
    list_length: atomic<u32>, // the next free index of position_list
    hot_count: atomic<u32>, // pairs of the hot list; above HOT_CAPACITY, some pairs are missing
    used: atomic<u32>,      // entries that the batch uses
    taken: atomic<u32>,     // weight of the merged occurrences, for a pair of equal symbols only
    unfinished: atomic<u32>, // 1: a run is too long for one dispatch, and the next one goes on
    resumed: u32,           // 1: this dispatch goes on marking the last batch
    used_before: u32,       // entries that the previous batch used
    candidates: u32,        // listed positions of the batch's pairs, stale positions included
    batch_size: u32,        // pairs of the batch
    equal_parts: u32,       // 1: the batch is one pair of two equal symbols
    threshold_count: u32,   // the hot list holds the pairs of this rank or a higher one
    threshold_left: u32,
    threshold_right: u32,
    digit_field: u32,       // refilling: the current digit, see rank.wgsl
    digit_shift: u32,
    digit_width: u32,       // 0: the threshold is final; NONE: the refill has not begun
    accepted: u32,          // refilling: pairs in the bins taken so far
    pair_capacity: u32,
    list_capacity: u32,
    entry_capacity: u32,    // a power of two
    candidate_capacity: u32,
    needed: u32,            // FULL: size of the pair to be merged next
    batches: u32,           // batches selected so far
    batch: array<Member, MAX_BATCH>,
}

// Numbers of words, positions and distinct pairs before any merge.
struct LayOutParams {
    words: u32,
    positions: u32,
    distinct_pairs: u32,
}

const RUNNING: u32 = 0u;
const FINISHED: u32 = 1u; // merge_limit reached, or no pair is frequent enough
const REFILL: u32 = 2u;   // the hot list needs a refill
const FULL: u32 = 3u;     // a buffer must grow first; nothing was merged

const SEPARATOR: u32 = 0xFFFFFFFFu; // symbol of a position between words
const NO_SLOT: u32 = 0u;            // no pair starts at the position, or a pair without a slot
const MARK: u32 = 0x80000000u;      // MARK | k in `slots`: pair k of the batch is merged here
const NONE: u32 = 0xFFFFFFFFu;      // no position
const HOT_CAPACITY: u32 = 4096u;

// The key of a new pair, which has a new symbol and another one: 7 bits for the index in the batch
// of the merge that makes the new symbol, 1 bit for the order of the two symbols, and 20 bits for
// the other symbol. The key is 1 more than these bits, because key 0 marks a free entry.
const LEFT_IS_NEW: u32 = 0u;
const RIGHT_IS_NEW: u32 = 1u;

fn entry_key(member: u32, side: u32, other: u32) -> u32 {
    return 1u + ((((member << 1u) | side) << 20u) | other);
}
