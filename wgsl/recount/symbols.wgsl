// Reads symbols. A u32 holds two symbols, the first in its lower half, or one symbol.
//
// The low bits of a symbol are its rank, its number in the order that breaks ties
// (llmgpu/bpe/vocabulary/building.py). The bit above the rank, WORD_START_BIT, is set on the first
// symbol of a pre-token. Such a symbol is never the second symbol of a pair. A merged symbol takes
// the bit of its first symbol. A rank has 15 bits if a u32 holds two symbols, else 16.
//
// Uses `symbols`, which the kernel that includes this file binds.
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

// Returns symbol i.
fn symbol(i: u32) -> u32 {
    return (symbols[i / SYMBOLS_PER_WORD] >> (i % SYMBOLS_PER_WORD * SYMBOL_BITS)) & SYMBOL_MASK;
}
