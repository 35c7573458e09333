// Symbols: a word of 32 bits has two, the first in the lower half, or one.
//
// A symbol is a rank (see the host's tie rules) and above it WORD_START_BIT, set on the first symbol of
// a pre-token. Such a symbol is never the second of a pair, and a merged symbol keeps the bit of its
// first part. A rank has 15 bits if a word has two symbols, else 16.
//
// Expects the global symbols.
//!override symbols_per_word = 2

const SYMBOLS_PER_WORD: u32 = {symbols_per_word}u;
//!if symbols_per_word == 2
const SYMBOL_BITS: u32 = 16u;
const SYMBOL_MASK: u32 = 0xFFFFu;
const WORD_START_BIT: u32 = 0x8000u;
//!else
const SYMBOL_BITS: u32 = 32u;
const SYMBOL_MASK: u32 = 0xFFFFFFFFu;
const WORD_START_BIT: u32 = 0x10000u;
//!end
const RANK_MASK: u32 = WORD_START_BIT - 1u;

fn symbol(i: u32) -> u32 {
    return (symbols[i / SYMBOLS_PER_WORD] >> (i % SYMBOLS_PER_WORD * SYMBOL_BITS)) & SYMBOL_MASK;
}
