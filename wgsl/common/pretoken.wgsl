// Where a pre-token starts: a rule on a byte and the byte before it.
//
// Pattern class, as an expression over bytes:
//   ` *[A-Za-z\x80-\xff]+| *[0-9]+| +|\n|[^\n A-Za-z0-9\x80-\xff]+`
// A start is at and after every newline, and where the class changes, except that a letter or a
// digit after a space continues. Pattern none starts nowhere but at documents.

const PATTERN_NONE: u32 = 0u;
const PATTERN_CLASS: u32 = 1u;
override PATTERN: u32 = 1u;

const LETTER: u32 = 0u;
const DIGIT: u32 = 1u;
const SPACE: u32 = 2u;
const PUNCTUATION: u32 = 3u;
const NEWLINE: u32 = 4u;

// tok - base <= range covers a range of bytes with one unsigned comparison.
fn char_class(tok: u32) -> u32 {
    if (tok == 0x0Au) { return NEWLINE; }
    if (tok == 0x20u) { return SPACE; }
    if (tok - 0x30u <= 9u) { return DIGIT; }
    if (tok >= 0x80u) { return LETTER; }
    if (tok - 0x61u <= 25u) { return LETTER; }
    if (tok - 0x41u <= 25u) { return LETTER; }
    return PUNCTUATION;
}

fn starts_pretoken(before: u32, byte: u32) -> bool {
    if (PATTERN == PATTERN_NONE) { return false; }
    let left = char_class(before);
    let right = char_class(byte);
    if (left == NEWLINE || right == NEWLINE) { return true; }
    return left != right && !(left == SPACE && right <= DIGIT);
}
