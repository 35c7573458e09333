// Starts of pattern cl100k and its relatives in 32 bytes of plain ASCII at once, as sets of bytes
// that are bits of a u32; see llmgpu/bpe/pattern_runs.py for the rule on runs.
//
// Known are the 16 bytes before and the 16 behind, too. Runs that may reach further, characters
// beyond ASCII and ends of documents are left to the walk.
//!include pretoken/walk.wgsl

const BESIDE_WORDS: u32 = 4u; // words of text looked at on either side, of 8 in a segment
const BESIDE_BYTES: u32 = 16u;

struct Sets {
    letter: u32,
    number: u32,
    space: u32, // newlines too
    newline: u32,
    plain_space: u32,
    apostrophe: u32,
    wide: u32, // not 0: bytes beyond ASCII
}

// What is in some words of a segment.
fn sets_of(segment: u32, first_word: u32, end_word: u32) -> Sets {
    var sets = Sets();
    for (var w = first_word; w < end_word; w++) {
        var four = text[segment * 8u + w];
        sets.wide |= four & 0x80808080u;
        for (var i = 0u; i < 4u; i++) {
            let byte = four & 0xFFu;
            let bit = 1u << (w * 4u + i);
            sets.letter |= select(0u, bit, (byte | 0x20u) - 0x61u <= 25u);
            sets.number |= select(0u, bit, byte - 0x30u <= 9u);
            sets.space |= select(0u, bit, byte == PLAIN_SPACE || byte - 0x09u <= 4u);
            sets.newline |= select(0u, bit, is_newline(byte));
            sets.plain_space |= select(0u, bit, byte == PLAIN_SPACE);
            sets.apostrophe |= select(0u, bit, byte == APOSTROPHE);
            four >>= 8u;
        }
    }
    return sets;
}

fn others(sets: Sets) -> u32 {
    return ~(sets.letter | sets.number | sets.space);
}

// The set of bytes behind those of a set.
fn behind(before: u32, own: u32) -> u32 {
    return (own << 1u) | (before >> 31u);
}

// Runs of a set that begin at these of its members.
fn runs_from(members: u32, begins: u32) -> u32 {
    return members & ~(members + begins);
}

// Number starts: every DIGITS digits of a run, of which `before` are in front of the segment.
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

// Starts at letters behind contractions whose apostrophes are at these positions of a segment.
fn contraction_starts(apostrophes: u32, segment_first: i32, first: i32, letter: u32) -> u32 {
    var left = apostrophes;
    var ends = 0u;
    while (left != 0u) {
        let at = segment_first + i32(countTrailingZeros(left));
        let end = at + contraction_length(at) - first;
        if (end > at - first && end >= 0 && end < 32) { ends |= 1u << u32(end); }
        left &= left - 1u;
    }
    return ends & letter;
}

// White space: the starts in it. `newlines_taken` go with other characters before them.
fn space_starts(before: Sets, own: Sets, next: Sets) -> u32 {
    let newlines_before = countLeadingZeros(~before.newline);
    let taken_before = newlines_before > 0u
        && ((others(before) << newlines_before) & 0x80000000u) != 0u;
    let taken_begins = own.newline
        & (behind(others(before), others(own)) | select(0u, 1u, taken_before));
    let taken = runs_from(own.newline, taken_begins);
    let rest = own.space & ~taken;
    let rest_before = select(before.space, before.space & 0x7FFFFFFFu, taken_before);
    var starts = rest & ~behind(rest_before, rest);

    let other_space = own.space & ~own.newline;
    let solid = (~own.space >> 1u) | (~next.space << 31u);
    starts |= other_space & solid;

    // Behind the last newline of a run: none follows the other white space from there on.
    let next_space = next.space & ~next.newline;
    let newline_next = (next.newline >> countTrailingZeros(~next_space)) & 1u;
    let at_newline = other_space & ((own.newline >> 1u) | (newline_next << 31u));
    let joined = reverseBits(runs_from(reverseBits(other_space), reverseBits(at_newline)));
    return starts | (other_space & behind(before.newline, own.newline) & ~joined);
}

// Whether the bytes of a segment and those beside it are plain, in one document and in no long run.
fn is_quick(segment: u32, before: Sets, own: Sets, next: Sets) -> bool {
    if ((before.wide | own.wide | next.wide) != 0u) { return false; }
    let documents = document_word(segment - 1u) | document_word(segment)
        | document_word(segment + 1u);
    let long = max(
        countLeadingZeros(~before.number),
        max(countLeadingZeros(~before.newline), countTrailingZeros(~next.space)),
    );
    return documents == 0u && long < BESIDE_BYTES;
}

// Marks a segment, or gives false if it must be walked.
fn mark_quickly(segment: u32) -> bool {
    if (segment == 0u || (segment + 2u) * 32u > params.length) { return false; }
    let before = sets_of(segment - 1u, 8u - BESIDE_WORDS, 8u);
    let own = sets_of(segment, 0u, 8u);
    let next = sets_of(segment + 1u, 0u, BESIDE_WORDS);
    if (!is_quick(segment, before, own, next)) { return false; }
    let other_before = others(before);
    let other = others(own);
    let single_before = other_before & ~(other_before << 1u) & ~(before.plain_space << 1u);
    let single = other & ~behind(other_before, other) & ~behind(before.plain_space, own.plain_space);
    let not_joined = ~behind(before.letter, own.letter) & ~behind(single_before, single)
        & ~behind(before.space & ~before.newline, own.space & ~own.newline);
    var starts = single | (own.letter & not_joined);
    starts |= number_starts(own.number, countLeadingZeros(~before.number));
    starts |= space_starts(before, own, next);
    let first = i32(segment * 32u);
    let opened_before = single_before & before.apostrophe & 0xE0000000u;
    starts |= contraction_starts(single & own.apostrophe, first, first, own.letter);
    starts |= contraction_starts(opened_before, first - 32, first, own.letter);
    start_bits[segment] = starts;
    return true;
}
