// Counts the tokens of the words that start in a segment of text. Uses params, start_bits, words
// and entries, which the kernel that includes this file binds.
//!include encode/params.wgsl

const SEGMENT: u32 = 32u; // bytes of a segment; its start bits are one u32

// Returns the start bits of a segment, without the bits from main_end on.
fn starts_in(segment: u32) -> u32 {
    let first = segment * SEGMENT;
    if (first >= params.main_end) { return 0u; }
    let left = params.main_end - first;
    return start_bits[segment] & select((1u << (left & 31u)) - 1u, 0xFFFFFFFFu, left >= SEGMENT);
}

// Returns the tokens of the word that starts at a position. A long word counts as one token.
fn tokens_at(position: u32) -> Tokens {
    let number = words[position];
    if (number == LONG_WORD) { return Tokens(0u, 1u); }
    return entries[number];
}

// Returns the number of tokens of the words that start at the bits `starts` of a segment.
fn count_tokens(segment: u32, starts: u32) -> u32 {
    var tokens = 0u;
    var left = starts;
    while (left != 0u) {
        tokens += tokens_at(segment * SEGMENT + countTrailingZeros(left)).count;
        left &= left - 1u;
    }
    return tokens;
}
