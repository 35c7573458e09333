// pretoken_gpt2_starts: marks the starts of pre-tokens for the pattern gpt2.
//
//   '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// The kernel applies an equivalent rule on neighbouring characters. A character is a letter, a
// number, white space or other. A pre-token starts
// - where this class changes, except after a plain space and at the letters of a contraction;
// - at the last of several white-space characters, if another class follows;
// - at a letter after a contraction.
//
// An apostrophe opens a contraction only if a pre-token starts at the apostrophe. A byte that is
// not part of valid UTF-8 counts as a character of class other.
//
// binding 0  params           uniform     PretokenParams
// binding 1  text             read        (length) bytes, four per u32
// binding 2  document_bits    read        (length bits) 1 where a document starts
// binding 3  start_bits       read_write  (length bits) out: 1 where a pre-token starts
// binding 4  unicode_classes  read        category of each code point, see unicode.wgsl
// dispatch: one thread per segment of 32 bytes
//!include common/workgroup.wgsl
//!include pretoken/params.wgsl
//!include pretoken/unicode.wgsl

const LETTER: u32 = 0u;
const NUMBER: u32 = 1u;
const SPACE: u32 = 2u;
const OTHER: u32 = 3u;

const PLAIN_SPACE: u32 = 0x20u;
const APOSTROPHE: u32 = 0x27u;

fn ascii_class(byte: u32) -> u32 {
    if ((byte | 0x20u) - 0x61u <= 25u) { return LETTER; }
    if (byte - 0x30u <= 9u) { return NUMBER; }
    if (byte == 0x20u || byte - 0x09u <= 4u) { return SPACE; }
    return OTHER;
}

fn class_of_category(category: u32) -> u32 {
    switch category {
        case UPPERCASE, LOWERCASE, OTHER_LETTER: { return LETTER; }
        case NUMBER_CATEGORY: { return NUMBER; }
        case WHITE_SPACE: { return SPACE; }
        default: { return OTHER; }
    }
}

// Returns the class and the number of bytes of the character that begins at a position.
fn character_at(position: i32) -> vec2<u32> {
    let byte = byte_at(position);
    if (byte < 0x80u) { return vec2<u32>(ascii_class(byte), 1u); }
    return wide_character_at(position, byte);
}

// Does the same for a character whose first byte is `byte`, 0x80 or more.
fn wide_character_at(position: i32, byte: u32) -> vec2<u32> {
    let decoded = decode(position, byte);
    if (decoded.y == 1u) { return vec2<u32>(OTHER, 1u); }
    return vec2<u32>(class_of_category(category_of(decoded.x)), decoded.y);
}

// Returns the class of the character before a position. No document begins at the position.
fn class_before(position: i32) -> u32 {
    let byte = byte_at(position - 1);
    if (byte < 0x80u) { return ascii_class(byte); }
    for (var length = 2; length <= 4; length++) {
        if (is_lead(position - length, u32(length))) { return character_at(position - length).x; }
    }
    return OTHER;
}

// Returns whether the byte at a position belongs to a character that begins before the position.
fn is_inside_character(position: i32) -> bool {
    if ((byte_at(position) & 0xC0u) != 0x80u) { return false; }
    for (var before = 1; before <= 3; before++) {
        for (var length = before + 1; length <= 4; length++) {
            if (is_lead(position - before, u32(length))) { return true; }
        }
    }
    return false;
}

// Returns the number of bytes of the contraction that begins with an apostrophe at which a
// pre-token starts; 0 if no contraction begins there.
fn contraction_length(apostrophe: i32) -> u32 {
    if (is_end(apostrophe + 1)) { return 0u; }
    let a = byte_at(apostrophe + 1);
    if (a == 0x73u || a == 0x64u || a == 0x6Du || a == 0x74u) { return 2u; } // s d m t
    if (is_end(apostrophe + 2)) { return 0u; }
    let b = byte_at(apostrophe + 2);
    let ll = a == 0x6Cu && b == 0x6Cu;
    let ve_or_re = (a == 0x76u || a == 0x72u) && b == 0x65u;
    return select(0u, 3u, ll || ve_or_re);
}

// Returns the number of bytes of the contraction that begins at a position; 0 if none begins there.
fn contraction_at(position: i32) -> u32 {
    if (position < 0 || byte_at(position) != APOSTROPHE) { return 0u; }
    if (!begins_document(position)) {
        if (byte_at(position - 1) == PLAIN_SPACE || class_before(position) == OTHER) { return 0u; }
    }
    return contraction_length(position);
}

// Returns the end of the contraction that begins before `position` and ends at `position` or later;
// if there is none, a smaller number than `position`.
fn contraction_end_at(position: i32) -> i32 {
    for (var back = 1; back <= 3; back++) {
        let length = i32(contraction_at(position - back));
        if (length >= back) { return position - back + length; }
    }
    return position - 1;
}

// Returns the start bits of a segment. The function applies the rule to every character that begins
// in the segment.
fn starts_in_segment(segment: u32) -> u32 {
    let first = i32(segment * 32u);
    let end = min(first + 32, i32(params.length));
    let documents = document_word(segment) | select(0u, 1u, begins_document(first));
    var contraction_end = contraction_end_at(first);
    var position = first;
    while (position < end && is_inside_character(position)) {
        position++;
    }
    var before = OTHER; // class of the character before `position`
    var byte_before = 0u; // a byte of that character, for comparison with PLAIN_SPACE
    if (!begins_document(position)) {
        before = class_before(position);
        byte_before = byte_at(position - 1);
    }
    var bits = 0u;
    // The bit of the last character if it is white space after white space, else 0. A pre-token
    // starts there if a character of another class follows.
    var split = 0u;
    while (position < end) {
        let bit = 1u << u32(position - first);
        let byte = byte_at(position);
        var own = vec2<u32>(ascii_class(byte), 1u);
        if (byte >= 0x80u) {
            own = wide_character_at(position, byte);
        }
        var starts = (documents & bit) != 0u;
        if (starts) {
            split = 0u;
        } else if (own.x != before) {
            bits |= split;
            starts = byte_before != PLAIN_SPACE && position >= contraction_end;
        } else {
            starts = own.x == LETTER && position == contraction_end;
        }
        split = select(0u, bit, own.x == SPACE && before == SPACE && !starts);
        if (starts) {
            bits |= bit;
            if (byte == APOSTROPHE) {
                contraction_end = position + i32(contraction_length(position));
            }
        }
        before = own.x;
        byte_before = byte;
        position += i32(own.y);
    }
    if (split != 0u && !is_end(position) && character_at(position).x != SPACE) {
        bits |= split;
    }
    return bits;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn pretoken_gpt2_starts(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let segment = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    if (segment * 32u >= params.length) { return; }
    start_bits[segment] = starts_in_segment(segment);
}
