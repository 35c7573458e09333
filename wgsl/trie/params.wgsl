// Shared by the tokenizing kernels: parameters, and the slice's place in the text.
//
// A slice is tokenized in chunks of chunk_size bytes. A chunk emits the tokens that start in it, so
// it never emits more than chunk_size of them, and tokens may end in the next chunk or beyond. A
// slice emits the tokens that start before main_end; the bytes after main_end are read only to
// complete matches.

struct TrieParams {
    input_length: u32,         // bytes in the input, those after main_end included
    chunk_size: u32,
    max_tokens_per_chunk: u32, // room for a chunk's tokens: chunk_size
    main_end: u32,
    unknown_token: u32,        // for a byte that no token begins with; NO_TOKEN: an error
    chunk_count: u32,
}

const NO_TOKEN: u32 = 0xFFFFFFFFu;
const NO_BYTE: u32 = 0xFFFFFFFFu;
const NO_NODE: u32 = 0xFFFFFFFFu;
const UNKNOWN_ENTRY: u32 = 0xFFFFFFFFu; // it is not known yet where the first token of a chunk starts

const STATE_CARRY: u32 = 0u;     // position of the first token, later that in the next slice
const STATE_TOTAL: u32 = 1u;     // tokens of the slice
const STATE_UNMATCHED: u32 = 2u; // position of the first byte without a token, NO_BYTE if none
const STATE_UNMATCHED_BYTE: u32 = 3u; // that byte
