// Defines the order in which pairs are merged: the highest count first, and of equal counts the
// lowest left symbol, then the lowest right symbol.
//
// A rank is (count, LAST_SYMBOL - left, LAST_SYMBOL - right). Ranks are compared component by
// component, and the pair with the highest rank is merged first. The kernels find the best n of
// many pairs without sorting. A rank is a series of digits of up to 10 bits. Beginning with the
// highest digit, a kernel counts the pairs in bins by digit, takes the highest bins that together
// have at most n pairs, and splits the next bin by the next digit.

const LAST_SYMBOL: u32 = 0xFFFFFu;
const SYMBOL_BITS: u32 = 20u;
const DIGIT_BITS: u32 = 10u;
const BINS: u32 = 1024u; // 1 << DIGIT_BITS
const MAX_DIGITS: u32 = 8u; // 4 for a count of 32 bits, 2 for each symbol

fn rank_of(count: u32, left: u32, right: u32) -> vec3<u32> {
    return vec3<u32>(count, LAST_SYMBOL - left, LAST_SYMBOL - right);
}

// Returns whether rank a equals rank b or is higher.
fn at_least(a: vec3<u32>, b: vec3<u32>) -> bool {
    if (a.x != b.x) { return a.x > b.x; }
    if (a.y != b.y) { return a.y > b.y; }
    return a.z >= b.z;
}

// Bits shift to shift + width - 1 of component `field` of a rank: 0 count, 1 left, 2 right.
struct Digit {
    field: u32,
    shift: u32,
    width: u32,
}

// Returns the highest digit of a rank if no count is above `most`.
fn first_digit(most: u32) -> Digit {
    let bits = 32u - countLeadingZeros(most);
    let shift = bits - min(bits, DIGIT_BITS);
    return Digit(0u, shift, DIGIT_BITS);
}

fn next_digit(digit: Digit) -> Digit {
    if (digit.shift > 0u) {
        let width = min(digit.shift, DIGIT_BITS);
        return Digit(digit.field, digit.shift - width, width);
    }
    return Digit(digit.field + 1u, SYMBOL_BITS - DIGIT_BITS, DIGIT_BITS);
}

fn component(rank: vec3<u32>, field: u32) -> u32 {
    if (field == 0u) { return rank.x; }
    if (field == 1u) { return rank.y; }
    return rank.z;
}

// Returns the bits of a component above a digit.
fn above_digit(value: u32, digit: Digit) -> u32 {
    let end = digit.shift + digit.width;
    if (end >= 32u) { return 0u; }
    return value >> end;
}

// Returns whether a rank equals `prefix` in all digits that are higher than `digit`.
fn in_prefix(rank: vec3<u32>, prefix: vec3<u32>, digit: Digit) -> bool {
    if (digit.field > 0u && rank.x != prefix.x) { return false; }
    if (digit.field > 1u && rank.y != prefix.y) { return false; }
    let own = component(rank, digit.field);
    return above_digit(own, digit) == above_digit(component(prefix, digit.field), digit);
}

fn digit_of(rank: vec3<u32>, digit: Digit) -> u32 {
    return (component(rank, digit.field) >> digit.shift) & ((1u << digit.width) - 1u);
}

// Returns `prefix` with `value` in this digit. The digit is 0 in `prefix`.
fn with_digit(prefix: vec3<u32>, digit: Digit, value: u32) -> vec3<u32> {
    let bits = value << digit.shift;
    if (digit.field == 0u) { return vec3<u32>(prefix.x | bits, prefix.y, prefix.z); }
    if (digit.field == 1u) { return vec3<u32>(prefix.x, prefix.y | bits, prefix.z); }
    return vec3<u32>(prefix.x, prefix.y, prefix.z | bits);
}
