// Characters of a text: decoding UTF-8, and the category of a code point.
//
// unicode_classes: the number of the block of each 256 code points, then the blocks, with 8 code
// points in a u32, four bits for each; made by the host, see
// llmgpu/bpe/pretokens/unicode_classes.py.
//
// A sequence is valid as RFC 3629 says: no longer than needed, no surrogates, nothing beyond
// 10FFFF. Any other byte is a character by itself.
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

// Whether the document ends before a position.
fn is_end(position: i32) -> bool {
    return position >= i32(params.length) || begins_document(position);
}

fn continuation(position: i32) -> u32 {
    if (is_end(position)) { return 0xFFFFFFFFu; }
    let byte = byte_at(position);
    return select(0xFFFFFFFFu, byte & 0x3Fu, (byte & 0xC0u) == 0x80u);
}

// Code point and bytes of the sequence that begins at a position with this byte, 0x80 or more;
// one byte if it is not valid.
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

// Whether a valid sequence of this many bytes begins at a position.
fn is_lead(position: i32, length: u32) -> bool {
    if (position < 0) { return false; }
    let byte = byte_at(position);
    return byte >= 0xC0u && decode(position, byte).y == length;
}
