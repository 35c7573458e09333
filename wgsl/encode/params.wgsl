// Constants and a structure that the encoding kernels share.

// LONG_WORD stands for the number and for the tokens of a long word, which the host encodes.
const LONG_WORD: u32 = 0xFFFFFFFEu;
const NO_TOKEN: u32 = 0xFFFFFFFFu; // token_id of a trie node at which no token ends

// The tokens of a word: ids[first] to ids[first + count - 1]. Before encode_store, `first` is the
// start of the word in the text.
struct Tokens {
    first: u32,
    count: u32,
}
