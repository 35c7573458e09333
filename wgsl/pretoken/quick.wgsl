// Finds the starts of pre-tokens in a segment of ASCII text with operations on sets. A set is a u32
// with a bit for each of the 32 bytes of a segment. llmgpu/bpe/pretokens/names.py states the rule
// that the sets apply: where a pre-token starts in runs of letters, numbers, white space and other
// characters.
//
// A thread also reads the 16 bytes before its segment and the 16 bytes after it, or 32 bytes after
// it if the segment ends in a longer run of spaces. It leaves a segment to walk.wgsl if a run may
// reach further, if a byte is not ASCII, or if a document begins in these three segments.
//
// The kernel that includes this file defines two functions:
//   fn with_contractions(runs: u32, segment: u32, near: Near) -> u32
//     returns all starts in a segment. runs: the starts as if there were no contractions.
//   fn is_special(near: Near) -> bool
//     returns whether a segment must be walked for another reason.
//!include pretoken/walk.wgsl

override DIGITS: u32 = 3u; // largest number of digits in a pre-token

const BESIDE_WORDS: u32 = 4u; // u32s of text read before and after a segment, which has 8
const BESIDE_BYTES: u32 = 16u;
const LAST_BITS: u32 = 0xE0000000u; // a contraction that begins here may reach the next segment

// The bytes of a segment by kind.
struct Sets {
    letter: u32,
    capital: u32,
    number: u32,
    space: u32, // newlines included
    newline: u32,
    plain_space: u32,
    apostrophe: u32,
    slash: u32,
    wide: u32, // not a set: 0 if all bytes are ASCII
}

// The sets of a segment, and of the segments before and after it.
struct Near {
    before: Sets, // only the last BESIDE_BYTES bytes
    own: Sets,
    next: Sets, // only the first BESIDE_BYTES bytes, or all bytes
}

// Returns the sets of a segment, from its u32s first_word to end_word - 1.
fn sets_of(segment: u32, first_word: u32, end_word: u32) -> Sets {
    var sets = Sets();
    for (var w = first_word; w < end_word; w++) {
        var four = text[segment * 8u + w];
        sets.wide |= four & 0x80808080u;
        for (var i = 0u; i < 4u; i++) {
            let byte = four & 0xFFu;
            let bit = 1u << (w * 4u + i);
            sets.letter |= select(0u, bit, (byte | 0x20u) - 0x61u <= 25u);
            sets.capital |= select(0u, bit, byte - 0x41u <= 25u);
            sets.number |= select(0u, bit, byte - 0x30u <= 9u);
            sets.space |= select(0u, bit, byte == PLAIN_SPACE || byte - 0x09u <= 4u);
            sets.newline |= select(0u, bit, is_newline(byte));
            sets.plain_space |= select(0u, bit, byte == PLAIN_SPACE);
            sets.apostrophe |= select(0u, bit, byte == APOSTROPHE);
            sets.slash |= select(0u, bit, byte == SLASH);
            four >>= 8u;
        }
    }
    return sets;
}

// Returns the bytes that are neither letter, number nor white space.
fn others(sets: Sets) -> u32 {
    return ~(sets.letter | sets.number | sets.space);
}

// Returns the bytes of a segment that follow a byte of a set. own, before: the bytes of this segment
// and of the previous segment that are in the set.
fn after(before: u32, own: u32) -> u32 {
    return (own << 1u) | (before >> 31u);
}

// Returns the runs of `members` that begin at the bits `begins`: the carry of the addition clears
// each run.
fn runs_from(members: u32, begins: u32) -> u32 {
    return members & ~(members + begins);
}

// Returns the starts in numbers: a pre-token starts every DIGITS digits of a run. before: digits
// directly before the segment.
fn number_starts(number: u32, before: u32) -> u32 {
    let from_before = (DIGITS - before % DIGITS) % DIGITS;
    var begins = number & ~(number << 1u);
    var together = number;
    for (var k = 1u; k <= DIGITS; k++) {
        together &= number << k;
    }
    if (before > 0u && (number & 1u) != 0u) {
        begins &= ~1u;
        if (countTrailingZeros(~number) > from_before) { begins |= 1u << from_before; }
    }
    var starts = begins;
    loop {
        begins = (begins << DIGITS) & together;
        if (begins == 0u) { break; }
        starts |= begins;
    }
    return starts;
}

// Returns the starts in white space. Newlines directly after other characters (`taken`) belong to
// the pre-token of those characters, so no pre-token starts at them.
fn space_starts(near: Near) -> u32 {
    let before = near.before;
    let own = near.own;
    let next = near.next;
    let newlines_before = countLeadingZeros(~before.newline);
    let taken_before = newlines_before > 0u
        && ((others(before) << newlines_before) & 0x80000000u) != 0u;
    let taken_begins = own.newline
        & (after(others(before), others(own)) | select(0u, 1u, taken_before));
    let taken = runs_from(own.newline, taken_begins);
    let rest = own.space & ~taken;
    let rest_before = select(before.space, before.space & 0x7FFFFFFFu, taken_before);
    var starts = rest & ~after(rest_before, rest);

    // The last white space before another class starts a pre-token.
    let other_space = own.space & ~own.newline;
    let solid = (~own.space >> 1u) | (~next.space << 31u);
    starts |= other_space & solid;

    // White space after the last newline of a run starts a pre-token. `joined` is the white space
    // before a further newline of the run.
    let next_space = next.space & ~next.newline;
    let newline_next = (next.newline >> countTrailingZeros(~next_space)) & 1u;
    let at_newline = other_space & ((own.newline >> 1u) | (newline_next << 31u));
    let joined = reverseBits(runs_from(reverseBits(other_space), reverseBits(at_newline)));
    return starts | (other_space & after(before.newline, own.newline) & ~joined);
}

// Returns the characters of class other at which a pre-token starts: y for this segment, and x for
// the segment before, of which only the last few bits are valid.
fn other_starts(near: Near) -> vec2<u32> {
    let before = others(near.before);
    let own = others(near.own);
    return vec2<u32>(
        before & ~((before | near.before.plain_space) << 1u),
        own & ~after(before | near.before.plain_space, own | near.own.plain_space),
    );
}

// Returns the starts of pre-tokens as if there were no contractions.
fn run_starts(near: Near) -> u32 {
    let before = near.before;
    let own = near.own;
    let other = other_starts(near);
    let joined = after(
        before.letter | other.x | (before.space & ~before.newline),
        own.letter | other.y | (own.space & ~own.newline),
    );
    let numbers = number_starts(own.number, countLeadingZeros(~before.number));
    return other.y | (own.letter & ~joined) | numbers | space_starts(near);
}

// Returns whether a segment ends in white space and at least `bytes` bytes after it are white
// space, too.
fn spaces_go_on(own: Sets, next: Sets, bytes: u32) -> bool {
    let ends_in_space = ((own.space & ~own.newline) >> 31u) != 0u;
    return ends_in_space && countTrailingZeros(~next.space) >= bytes;
}

// Returns whether a segment can be marked without a walk: all bytes read are ASCII and of one
// document, and no run is too long.
fn is_quick(segment: u32, near: Near) -> bool {
    if ((near.before.wide | near.own.wide | near.next.wide) != 0u) { return false; }
    let documents = document_word(segment - 1u) | document_word(segment)
        | document_word(segment + 1u);
    let number_goes_on = (near.own.number & 1u) != 0u;
    let long = max(
        select(0u, countLeadingZeros(~near.before.number), number_goes_on),
        countLeadingZeros(~near.before.newline),
    );
    return documents == 0u && long < BESIDE_BYTES && !spaces_go_on(near.own, near.next, 32u)
        && !is_special(near);
}

// Marks the starts in a segment and returns true, or returns false if the segment must be walked.
fn mark_quickly(segment: u32) -> bool {
    if (segment == 0u || (segment + 2u) * 32u > params.length) { return false; }
    let own = sets_of(segment, 0u, 8u);
    var next = sets_of(segment + 1u, 0u, BESIDE_WORDS);
    if (spaces_go_on(own, next, BESIDE_BYTES)) { next = sets_of(segment + 1u, 0u, 8u); }
    let near = Near(sets_of(segment - 1u, 8u - BESIDE_WORDS, 8u), own, next);
    if (!is_quick(segment, near)) { return false; }
    start_bits[segment] = with_contractions(run_starts(near), segment, near);
    return true;
}
