// Decodes UTF-8, and looks up the categories of code points.
//
// unicode_classes begins with the number of a block for every 256 code points. The blocks follow. A
// block has BLOCK_WORDS u32s, and each u32 has the categories of 8 code points, four bits per code
// point. The host makes this table, see llmgpu/bpe/pretokens/unicode_classes.py.
//
// RFC 3629 says which sequences are valid: no longer than needed, no surrogates, nothing beyond
// U+10FFFF. A byte that is in no valid sequence counts as a character.
//!include pretoken/params.wgsl

@group(0) @binding(4) var<storage, read> unicode_classes: array<u32>;

const BLOCK_COUNT: u32 = 4352u; // 0x110000 / 256
const BLOCK_WORDS: u32 = 32u;

// Categories, as the host numbers them.
const OTHER_CATEGORY: u32 = 0u;
const UPPERCASE: u32 = 1u;
const LOWERCASE: u32 = 2u;
const OTHER_LETTER: u32 = 3u;
const MARK: u32 = 4u;
const NUMBER_CATEGORY: u32 = 5u;
const WHITE_SPACE: u32 = 6u;

fn category_of(code_point: u32) -> u32 {
    let block = unicode_classes[code_point >> 8u];
    let word = unicode_classes[BLOCK_COUNT + block * BLOCK_WORDS + ((code_point >> 3u) & 31u)];
    return (word >> ((code_point & 7u) * 4u)) & 15u;
}

// Returns whether the document ends before a position.
fn is_end(position: i32) -> bool {
    return position >= i32(params.length) || begins_document(position);
}

// Returns the 6 bits of the continuation byte at a position; 0xFFFFFFFF if the document has none
// there.
fn continuation(position: i32) -> u32 {
    if (is_end(position)) { return 0xFFFFFFFFu; }
    let byte = byte_at(position);
    return select(0xFFFFFFFFu, byte & 0x3Fu, (byte & 0xC0u) == 0x80u);
}

// Returns the code point and the number of bytes of the sequence that begins at a position. byte:
// its first byte, 0x80 or more. The number is 1 if the sequence is not valid.
fn decode(position: i32, byte: u32) -> vec2<u32> {
    let invalid = vec2<u32>(0u, 1u);
    if (byte < 0xC2u || byte > 0xF4u) { return invalid; }
    let a = continuation(position + 1);
    if (a > 0x3Fu) { return invalid; }
    if (byte < 0xE0u) { return vec2<u32>(((byte & 0x1Fu) << 6u) | a, 2u); }
    let b = continuation(position + 2);
    if (b > 0x3Fu) { return invalid; }
    if (byte < 0xF0u) {
        let code = ((byte & 0xFu) << 12u) | (a << 6u) | b;
        if (code < 0x800u || (code >= 0xD800u && code < 0xE000u)) { return invalid; }
        return vec2<u32>(code, 3u);
    }
    let c = continuation(position + 3);
    if (c > 0x3Fu) { return invalid; }
    let code = ((byte & 7u) << 18u) | (a << 12u) | (b << 6u) | c;
    if (code < 0x10000u || code > 0x10FFFFu) { return invalid; }
    return vec2<u32>(code, 4u);
}

// Returns whether a valid sequence of `length` bytes, 2 or more, begins at a position.
fn is_lead(position: i32, length: u32) -> bool {
    if (position < 0) { return false; }
    let byte = byte_at(position);
    return byte >= 0xC0u && decode(position, byte).y == length;
}
