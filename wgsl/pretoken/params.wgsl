// Declarations of the kernels that mark the starts of pre-tokens in a slice of text. The slice
// begins at the start of a pre-token.
//
// A kernel writes one bit for each byte of text. A segment is 32 bytes, and one thread writes its
// 32 bits. The bits do not depend on where the text was cut into slices.

struct PretokenParams {
    length: u32,         // bytes of text
    has_documents: u32,  // 1: document_bits marks where documents begin
    continues: u32,      // 1: the slice begins inside a pre-token; only with pattern none
}

@group(0) @binding(0) var<uniform> params: PretokenParams;
@group(0) @binding(1) var<storage, read> text: array<u32>;
@group(0) @binding(2) var<storage, read> document_bits: array<u32>;
@group(0) @binding(3) var<storage, read_write> start_bits: array<u32>;

fn byte_at(position: i32) -> u32 {
    return (text[u32(position) >> 2u] >> ((u32(position) & 3u) * 8u)) & 0xFFu;
}

// Returns the bits of a segment at which documents begin.
fn document_word(segment: u32) -> u32 {
    if (params.has_documents == 0u) { return 0u; }
    return document_bits[segment];
}

// Returns whether a document begins at a position. The start of the slice counts as the start of a
// document unless the slice begins inside a pre-token.
fn begins_document(position: i32) -> bool {
    if (position <= 0) { return params.continues == 0u; }
    if (params.has_documents == 0u) { return false; }
    return ((document_bits[u32(position) >> 5u] >> (u32(position) & 31u)) & 1u) != 0u;
}

// Returns the bits of a segment that are inside the text.
fn inside_text(segment: u32) -> u32 {
    let left = params.length - min(params.length, segment * 32u);
    if (left >= 32u) { return 0xFFFFFFFFu; }
    return (1u << left) - 1u;
}
