// Count the tokens of the words in a segment of text. Expects the globals params, start_bits, words
// and entries.
//!include encode/params.wgsl

const SEGMENT: u32 = 32u; // bytes, one u32 of start bits

// Where words start in a segment.
fn starts_in(segment: u32) -> u32 {
    let first = segment * SEGMENT;
    if (first >= params.main_end) { return 0u; }
    let left = params.main_end - first;
    return start_bits[segment] & select((1u << (left & 31u)) - 1u, 0xFFFFFFFFu, left >= SEGMENT);
}

// The tokens of the word that starts at a position; one stands for a long word.
fn tokens_at(position: u32) -> Tokens {
    let number = words[position];
    if (number == LONG_WORD) { return Tokens(0u, 1u); }
    return entries[number];
}

// Tokens of the words that start at these bits of a segment.
fn count_tokens(segment: u32, starts: u32) -> u32 {
    var tokens = 0u;
    var left = starts;
    while (left != 0u) {
        tokens += tokens_at(segment * SEGMENT + countTrailingZeros(left)).count;
        left &= left - 1u;
    }
    return tokens;
}
