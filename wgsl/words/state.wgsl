// Shared by counting and encoding: the table of distinct words, and the progress of a slice.
//
// A word of up to EXACT_BYTES bytes is its own key: bytes and length fit into 96 bits. A longer
// one's key is a hash, and on equal keys the bytes are compared. The table is open-addressing, at
// most half full, and holds keys and word numbers; the words' bytes are elsewhere, each word after
// its length. Words are looked up in one dispatch and inserted in later dispatches, so no thread
// reads memory that another thread is writing.
//
// Words that can't be inserted, because a list or the table is full, stay marked in `pending`; the
// host makes room and runs the slice again for just those words.

struct WordState {
    words: atomic<u32>,      // distinct words in the table
    data_used: atomic<u32>,  // u32s of their bytes
    fresh: atomic<u32>,      // words of this slice that are not in the table; may exceed the list
    fresh_data: atomic<u32>, // u32s that they would take if all differed
    pending: atomic<u32>,    // words left for another run
    long: atomic<u32>,       // words of more than MAX_WORD bytes, left to the host
    undecided: u32,          // the start bits are wrong: nothing was done
    full: atomic<u32>,       // the table has no room for the fresh words
    ids_used: atomic<u32>,   // encoding: tokens of all words in the table
    tokens: u32,             // encoding: tokens of the slice
    word_capacity: u32,
    slot_capacity: u32,      // a power of two, twice word_capacity or more
    data_capacity: u32,
    fresh_capacity: u32,
    last_long: atomic<u32>,  // encoding: where one of the long words starts
}

struct SliceParams {
    main_end: u32,  // bytes of text, to the end of the last word
    documents: u32, // encoding: documents that begin in the slice
}

const EXACT_BYTES: u32 = 11u;
const HASHED: u32 = 0xFF000000u; // highest byte of a hashed key's third part; elsewhere the length
override MAX_WORD: u32 = 1024u;  // bytes
override HASH_MASK: u32 = 0xFFFFFFFFu; // bits of all hashes that count: with fewer, words collide
const TAKEN: u32 = 0xFFFFFFFFu;    // slot of a word in the table
const MAX_PROBES: u32 = 32768u;  // only bounds the loop

fn is_hashed(key: vec3<u32>) -> bool {
    return key.z >= HASHED;
}
