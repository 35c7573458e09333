// Functions of the kernels that walk a text pre-token by pre-token. A thread finds a position at or
// before the start of its segment at which a pre-token certainly starts, and matches the expression
// from there on.
//
// The kernel that includes this file defines two functions:
//   fn match_end(start: i32) -> i32
//     returns the end of the pre-token that starts at a position; if the end is at `stop` or later,
//     any number from `stop` on.
//   fn is_sign(category: u32) -> bool
//     returns whether a character of this category always starts a pre-token after a letter.
//
// A thread looks up to REACH bytes back and ahead. If that is not enough, its bits may be wrong,
// and its segment is listed as undecided.
//!include common/workgroup.wgsl
//!include pretoken/params.wgsl
//!include pretoken/unicode.wgsl

override REACH: u32 = 4096u;

struct Undecided {
    count: atomic<u32>,
    segments: array<u32>, // numbers of segments, in no order
}

@group(0) @binding(5) var<storage, read_write> undecided: Undecided;

const NOTHING: u32 = 15u; // in place of a category, at the end of a document
const PLAIN_SPACE: u32 = 0x20u;
const APOSTROPHE: u32 = 0x27u;
const SLASH: u32 = 0x2Fu;

var<private> stop: i32; // the end of the segment
var<private> too_far: bool; // true: the thread had to look further than REACH bytes

fn ascii_category(byte: u32) -> u32 {
    if (byte - 0x61u <= 25u) { return LOWERCASE; }
    if (byte - 0x41u <= 25u) { return UPPERCASE; }
    if (byte == 0x20u || byte - 0x09u <= 4u) { return WHITE_SPACE; }
    return select(OTHER_CATEGORY, NUMBER_CATEGORY, byte - 0x30u <= 9u);
}

// Returns whether the document ends before a position above 0, as is_end does. A walk never looks
// before the start of the text, so ends_before has no case for this start.
fn ends_before(position: i32) -> bool {
    if (position >= i32(params.length)) { return true; }
    return params.has_documents != 0u && begins_document(position);
}

// Returns the category and the number of bytes of the character that begins at a position of the
// text.
fn character_at(position: i32) -> vec2<u32> {
    let byte = byte_at(position);
    if (byte < 0x80u) { return vec2<u32>(ascii_category(byte), 1u); }
    let decoded = decode(position, byte);
    if (decoded.y == 1u) { return vec2<u32>(OTHER_CATEGORY, 1u); }
    return vec2<u32>(category_of(decoded.x), decoded.y);
}

// Does the same for the character that continues a document at a position above 0; (NOTHING, 0) if
// the document ends before the position.
fn character_after(position: i32) -> vec2<u32> {
    if (ends_before(position)) { return vec2<u32>(NOTHING, 0u); }
    return character_at(position);
}

// Returns the category of the character before a position. No document begins at the position.
fn category_before(position: i32) -> u32 {
    let byte = byte_at(position - 1);
    if (byte < 0x80u) { return ascii_category(byte); }
    for (var length = 2; length <= 4; length++) {
        if (is_lead(position - length, u32(length))) { return character_at(position - length).x; }
    }
    return OTHER_CATEGORY;
}

fn is_letter(category: u32) -> bool {
    return category - UPPERCASE <= OTHER_LETTER - UPPERCASE;
}

fn is_newline(byte: u32) -> bool {
    return byte == 0x0Au || byte == 0x0Du;
}

// Returns whether a newline of the same document is at a position.
fn newline_after(position: i32) -> bool {
    return !ends_before(position) && is_newline(byte_at(position));
}

// Returns the number of bytes of the contraction that the apostrophe at a position opens; 0 if it
// opens none.
fn contraction_length(apostrophe: i32) -> i32 {
    if (ends_before(apostrophe + 1)) { return 0; }
    let a = byte_at(apostrophe + 1);
    let small = a | 0x20u;
    if (small == 0x73u || small == 0x64u || small == 0x6Du || small == 0x74u) { return 2; } // sdmt
    if (ends_before(apostrophe + 2)) { return 0; }
    let b = byte_at(apostrophe + 2);
    if (a == 0xC5u && b == 0xBFu) { return 3; } // U+017F, another small s
    let ll = small == 0x6Cu && (b | 0x20u) == 0x6Cu;
    let ve_or_re = (small == 0x76u || small == 0x72u) && (b | 0x20u) == 0x65u;
    return select(0, 3, ll || ve_or_re);
}

// Returns the end of a number that goes on at `begin` with up to `more` digits.
fn number_end(begin: i32, more: u32) -> i32 {
    var position = begin;
    for (var k = 0u; k < more; k++) {
        let own = character_after(position);
        if (own.x != NUMBER_CATEGORY) { break; }
        position += i32(own.y);
    }
    return position;
}

// Returns the end of the pre-token that begins with white space at a position. The pre-token is the
// first of these alternatives that matches: \s++$ (only if whole_at_end), \s*[\r\n]+, \s+(?!\S),
// \s+.
fn space_end(start: i32, whole_at_end: bool) -> i32 {
    var position = start;
    var after_newline = start;
    var last = start;
    var own = character_at(start);
    while (own.x == WHITE_SPACE) {
        if (position - start > i32(REACH)) {
            too_far = true;
            return stop;
        }
        last = position;
        position += i32(own.y);
        if (is_newline(byte_at(last))) {
            after_newline = position;
            if (position >= stop) { return position; }
        }
        own = character_after(position);
    }
    if (own.x == NOTHING && whole_at_end) { return position; }
    if (after_newline > start) { return after_newline; }
    return select(last, position, own.x == NOTHING || last == start);
}

// Returns whether the white-space character at a position is the last of several, and the document
// goes on after it.
fn is_last_space(position: i32) -> bool {
    if (category_before(position) != WHITE_SPACE) { return false; }
    let next = character_after(position + i32(character_at(position).y)).x;
    return next != WHITE_SPACE && next != NOTHING;
}

// Returns whether the characters next to a position inside a document alone decide that a pre-token
// starts there.
fn is_certain(position: i32) -> bool {
    let byte = byte_at(position);
    if ((byte & 0xC0u) == 0x80u) { return false; }
    let own = character_at(position).x;
    if (own == WHITE_SPACE && !is_newline(byte) && is_last_space(position)) { return true; }
    if (is_newline(byte_at(position - 1))) { return own != WHITE_SPACE && byte != SLASH; }
    let before = category_before(position);
    if (before != NUMBER_CATEGORY && !is_letter(before)) { return false; }
    if (before == NUMBER_CATEGORY) { return own != NUMBER_CATEGORY; }
    return own == NUMBER_CATEGORY || own == WHITE_SPACE || (byte != APOSTROPHE && is_sign(own));
}

// Returns the last position up to `first` at which a pre-token certainly starts. If there is none
// within REACH bytes, sets too_far.
fn sync_point(first: i32) -> i32 {
    var position = first;
    while (!begins_document(position) && !is_certain(position)) {
        if (first - position > i32(REACH)) {
            too_far = true;
            return stop;
        }
        position--;
    }
    return position;
}

// Writes the start bits of a segment. If REACH was not enough, adds the segment to `undecided`.
fn mark_segment(segment: u32) {
    let first = i32(segment * 32u);
    stop = min(first + 32, i32(params.length));
    var bits = 0u;
    var position = sync_point(first);
    while (position < stop) {
        if (position >= first) {
            bits |= 1u << u32(position - first);
        }
        position = match_end(position);
    }
    start_bits[segment] = bits;
    if (too_far) {
        undecided.segments[atomicAdd(&undecided.count, 1u)] = segment;
    }
}
