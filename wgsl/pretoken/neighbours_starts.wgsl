// pretoken_neighbours_starts: marks the starts of words for vocabularies of SentencePiece's kind.
//
// A word starts between two characters if no token contains the two side by side. For a vocabulary
// that turns unknown characters in a row into one id, one of the two characters must also have a
// token. A byte that belongs to no character counts as a character, and no word starts at a
// continuation byte. llmgpu/bpe/pretokens/neighbours.py makes the bits of `neighbours`, and says
// why such cuts are exact.
//
// binding 0  params         uniform     PretokenParams
// binding 1  text           read        (length) bytes, four per u32
// binding 2  document_bits  read        (length bits) 1 where a document starts
// binding 3  start_bits     read_write  (length bits) out: 1 where a pre-token starts
// binding 4  neighbours     read        (1 << PAIR_BITS bits) 1 for the hash of a pair of
//                                       characters inside a token; then (ALONE + 256 bits) 1 for a
//                                       character with a token
// dispatch: one thread per segment of 32 bytes
//!include common/workgroup.wgsl
//!include pretoken/params.wgsl

@group(0) @binding(4) var<storage, read> neighbours: array<u32>;

const PAIR_BITS: u32 = 22u;
const ALONE: u32 = 0x110000u; // ALONE + byte is the number of a byte that belongs to no character

struct Character {
    number: u32, // code point, or ALONE + byte
    length: u32, // bytes
}

fn is_continuation(byte: u32) -> bool {
    return (byte & 0xC0u) == 0x80u;
}

// Returns whether the byte at a position is a continuation byte and no document begins there.
fn continues_at(position: i32) -> bool {
    return position < i32(params.length) && !begins_document(position)
        && is_continuation(byte_at(position));
}

// Returns the character that begins at a position. RFC 3629 says which sequences are valid.
fn character_at(position: i32) -> Character {
    let byte = byte_at(position);
    if (byte < 0x80u) { return Character(byte, 1u); }
    let alone = Character(ALONE + byte, 1u);
    if (byte < 0xC2u || byte > 0xF4u) { return alone; }
    let length = 2u + u32(byte >= 0xE0u) + u32(byte >= 0xF0u);
    var number = byte & (0x7Fu >> length);
    for (var k = 1; k < i32(length); k++) {
        if (!continues_at(position + k)) { return alone; }
        number = (number << 6u) | (byte_at(position + k) & 0x3Fu);
    }
    let is_overlong = (length == 3u && number < 0x800u) || (length == 4u && number < 0x10000u);
    let is_surrogate = number >= 0xD800u && number < 0xE000u;
    if (is_overlong || is_surrogate || number > 0x10FFFFu) { return alone; }
    return Character(number, length);
}

// Returns the number of the character before a position. No document begins at the position.
fn number_before(position: i32) -> u32 {
    let byte = byte_at(position - 1);
    if (byte < 0x80u) { return byte; }
    for (var length = 2; length <= min(4, position); length++) {
        let character = character_at(position - length);
        if (character.length == u32(length)) { return character.number; }
    }
    return ALONE + byte;
}

fn is_set(bit: u32) -> bool {
    return ((neighbours[bit >> 5u] >> (bit & 31u)) & 1u) != 0u;
}

fn has_token(number: u32) -> bool {
    return is_set((1u << PAIR_BITS) + number);
}

// Returns whether a word starts between two characters, which are given by their numbers.
fn may_cut(before: u32, after: u32) -> bool {
    var bit = (before << 7u) | after;
    if ((before | after) >= 0x80u) {
        bit = ((before * 0x9E3779B1u) ^ (after * 0x85EBCA77u)) >> (32u - PAIR_BITS);
    }
    return !is_set(bit) && (has_token(before) || has_token(after));
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn pretoken_neighbours_starts(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let segment = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    let first = i32(segment * 32u);
    let stop = min(first + 32, i32(params.length));
    if (first >= stop) { return; }
    var bits = document_word(segment);
    for (var position = first; position < stop; position++) {
        let bit = 1u << u32(position - first);
        if (begins_document(position)) {
            bits |= bit;
        } else if (!is_continuation(byte_at(position))
            && may_cut(number_before(position), character_at(position).number)) {
            bits |= bit;
        }
    }
    start_bits[segment] = bits & inside_text(segment);
}
