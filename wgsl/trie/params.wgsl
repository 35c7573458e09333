// Parameters and constants of the tokenizing kernels.
//
// A slice of text is tokenized in chunks of chunk_size bytes. A token belongs to the chunk in which
// it starts, so a chunk has at most chunk_size tokens, and its last token may end in a later chunk.
// A token belongs to the slice if it starts before main_end. The kernels read the bytes after
// main_end only to complete matches.

struct TrieParams {
    input_length: u32,         // bytes of the input, bytes after main_end included
    chunk_size: u32,
    max_tokens_per_chunk: u32, // room for the tokens of a chunk: chunk_size
    main_end: u32,
    unknown_token: u32,        // id of a byte at which no token matches; NO_TOKEN: an error
    chunk_count: u32,
}

const NO_TOKEN: u32 = 0xFFFFFFFFu;
const NO_BYTE: u32 = 0xFFFFFFFFu;
const NO_NODE: u32 = 0xFFFFFFFFu;
const UNKNOWN_ENTRY: u32 = 0xFFFFFFFFu; // a chunk's entry that is not known yet

const STATE_CARRY: u32 = 0u;     // in: start of the first token; out: that of the next slice
const STATE_TOTAL: u32 = 1u;     // tokens of the slice
const STATE_UNMATCHED: u32 = 2u; // position of the first byte without a token, or NO_BYTE
const STATE_UNMATCHED_BYTE: u32 = 3u; // that byte
