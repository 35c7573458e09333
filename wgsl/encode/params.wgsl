// The parameters of a slice, which the encoding kernels share.

const LONG_WORD: u32 = 0xFFFFFFFEu; // number and token of a word that the host encodes
const NO_TOKEN: u32 = 0xFFFFFFFFu;  // of a byte that has none

// The tokens of a word: where they are in `ids`, and how many.
struct Tokens {
    first: u32,
    count: u32,
}
