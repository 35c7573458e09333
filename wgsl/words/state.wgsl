// The table of distinct words, which counting and encoding share, and the progress of a slice.
//
// A key has three u32s. A word of up to EXACT_BYTES bytes is its own key: its bytes and its length.
// The key of a longer word is a hash, and the bytes of words with equal keys are compared. The
// table is a hash table with open addressing, at most half full, and holds keys and word numbers.
// The buffer word_data holds the words' lengths and bytes. Words are looked up in one dispatch and
// inserted in later dispatches, so no thread reads memory that another thread is writing.
//
// If the list of fresh words or the table is full, the words that can't be inserted stay marked in
// `pending`. The host makes room, and runs the slice again for just these words.

struct WordState {
    words: atomic<u32>,      // distinct words in the table
    data_used: atomic<u32>,  // u32s of word_data in use
    fresh: atomic<u32>,      // words of the slice that the table lacks; may exceed the list
    fresh_data: atomic<u32>, // u32s of word_data for the fresh words if all differ
    pending: atomic<u32>,    // words left for another run
    long: atomic<u32>,       // words of more than MAX_WORD bytes, left to the host
    undecided: u32,          // not 0: start bits may be wrong, and no word is looked up
    full: atomic<u32>,       // 1: the table has no room for the fresh words
    ids_used: atomic<u32>,   // encoding: tokens of all words in the table
    tokens: u32,             // encoding: tokens of the slice
    word_capacity: u32,
    slot_capacity: u32,      // a power of two, twice word_capacity or more
    data_capacity: u32,
    fresh_capacity: u32,
    last_long: atomic<u32>,  // encoding: start of the long word that was found last
}

struct SliceParams {
    main_end: u32,  // bytes of text, to the end of the last word
    documents: u32, // encoding: documents that begin in the slice
}

const EXACT_BYTES: u32 = 11u;
const HASHED: u32 = 0xFF000000u; // highest byte of key.z of a hash; else this byte is the length
override MAX_WORD: u32 = 1024u;  // largest number of bytes of a word that the device handles
// The bits of hashes that are used. Tests set fewer bits, so that words collide.
override HASH_MASK: u32 = 0xFFFFFFFFu;
const TAKEN: u32 = 0xFFFFFFFFu;    // value of a slot that holds a word of the table
const MAX_PROBES: u32 = 32768u;  // bound of the loop over slots

fn is_hashed(key: vec3<u32>) -> bool {
    return key.z >= HASHED;
}
