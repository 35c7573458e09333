// Shared by the kernels that walk a text pre-token by pre-token: a thread finds a position before
// its segment at which a pre-token certainly starts, and matches the expression from there on.
//
// The kernel that includes this has
//   fn match_end(start: i32) -> i32   the end of the pre-token at a position, or anything at or
//                                     after `stop` if it is that far
//   fn is_sign(category: u32) -> bool whether this always starts a pre-token after a letter
//
// A thread looks up to REACH bytes back and ahead. If that is not enough, its bits may be wrong,
// and its segment is listed as undecided.
//!include common/workgroup.wgsl
//!include pretoken/params.wgsl
//!include pretoken/unicode.wgsl

override REACH: u32 = 4096u;

struct Undecided {
    count: atomic<u32>,
    segments: array<u32>, // in no order
}

@group(0) @binding(5) var<storage, read_write> undecided: Undecided;

const NOTHING: u32 = 15u; // the category after the end of a document
const PLAIN_SPACE: u32 = 0x20u;
const APOSTROPHE: u32 = 0x27u;
const SLASH: u32 = 0x2Fu;

var<private> stop: i32; // the end of the segment
var<private> too_far: bool;

fn ascii_category(byte: u32) -> u32 {
    if (byte - 0x61u <= 25u) { return LOWERCASE; }
    if (byte - 0x41u <= 25u) { return UPPERCASE; }
    if (byte == 0x20u || byte - 0x09u <= 4u) { return WHITE_SPACE; }
    return select(OTHER_CATEGORY, NUMBER_CATEGORY, byte - 0x30u <= 9u);
}

// The same as byte_at and is_end for positions in the text and after its first: a walk never looks
// before it.
fn text_byte(position: i32) -> u32 {
    return (text[u32(position) >> 2u] >> ((u32(position) & 3u) * 8u)) & 0xFFu;
}

fn ends_before(position: i32) -> bool {
    if (position >= i32(params.length)) { return true; }
    return params.has_documents != 0u && begins_document(position);
}

// Category and bytes of the character that begins at a position of the text.
fn character_at(position: i32) -> vec2<u32> {
    let byte = text_byte(position);
    if (byte < 0x80u) { return vec2<u32>(ascii_category(byte), 1u); }
    let decoded = decode(position, byte);
    if (decoded.y == 1u) { return vec2<u32>(OTHER_CATEGORY, 1u); }
    return vec2<u32>(category_of(decoded.x), decoded.y);
}

// The same at a position that begins no pre-token by itself: nothing if the document ends there.
fn character_after(position: i32) -> vec2<u32> {
    if (ends_before(position)) { return vec2<u32>(NOTHING, 0u); }
    return character_at(position);
}

// The category of the character that ends before a position which begins no document.
fn category_before(position: i32) -> u32 {
    let byte = text_byte(position - 1);
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

// Whether a newline is at a position; none is if the document ends there.
fn newline_after(position: i32) -> bool {
    return !ends_before(position) && is_newline(text_byte(position));
}

// Bytes of the contraction that the apostrophe at a position opens, 0 if it opens none.
fn contraction_length(apostrophe: i32) -> i32 {
    if (ends_before(apostrophe + 1)) { return 0; }
    let a = text_byte(apostrophe + 1);
    let small = a | 0x20u;
    if (small == 0x73u || small == 0x64u || small == 0x6Du || small == 0x74u) { return 2; } // sdmt
    if (ends_before(apostrophe + 2)) { return 0; }
    let b = text_byte(apostrophe + 2);
    if (a == 0xC5u && b == 0xBFu) { return 3; } // U+017F, another small s
    let ll = small == 0x6Cu && (b | 0x20u) == 0x6Cu;
    let ve_or_re = (small == 0x76u || small == 0x72u) && (b | 0x20u) == 0x65u;
    return select(0, 3, ll || ve_or_re);
}

// The end of a number that continues at a position, with up to this many more digits.
fn number_end(begin: i32, more: u32) -> i32 {
    var position = begin;
    for (var k = 0u; k < more; k++) {
        let own = character_after(position);
        if (own.x != NUMBER_CATEGORY) { break; }
        position += i32(own.y);
    }
    return position;
}

// The end of white space that begins at a position: \s++$ if whole_at_end, \s*[\r\n]+, \s+(?!\S) or
// \s+, whichever comes first.
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
        if (is_newline(text_byte(last))) {
            after_newline = position;
            if (position >= stop) { return position; }
        }
        own = character_after(position);
    }
    if (own.x == NOTHING && whole_at_end) { return position; }
    if (after_newline > start) { return after_newline; }
    return select(last, position, own.x == NOTHING || last == start);
}

// Whether white space at a position inside of a document is the last of several.
fn is_last_space(position: i32) -> bool {
    if (category_before(position) != WHITE_SPACE) { return false; }
    let next = character_after(position + i32(character_at(position).y)).x;
    return next != WHITE_SPACE && next != NOTHING;
}

// Whether a pre-token starts at a position inside a document, regardless of what precedes it.
fn is_certain(position: i32) -> bool {
    let byte = text_byte(position);
    if ((byte & 0xC0u) == 0x80u) { return false; }
    let own = character_at(position).x;
    if (own == WHITE_SPACE && !is_newline(byte) && is_last_space(position)) { return true; }
    if (is_newline(text_byte(position - 1))) { return own != WHITE_SPACE && byte != SLASH; }
    let before = category_before(position);
    if (before != NUMBER_CATEGORY && !is_letter(before)) { return false; }
    if (before == NUMBER_CATEGORY) { return own != NUMBER_CATEGORY; }
    return own == NUMBER_CATEGORY || own == WHITE_SPACE || (byte != APOSTROPHE && is_sign(own));
}

// The last position up to another at which a pre-token certainly starts.
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
