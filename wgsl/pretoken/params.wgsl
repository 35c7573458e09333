// What the kernels share that mark where pre-tokens start: a slice of text, and what is before it.
//
// A kernel makes one bit for each byte; a thread makes 32 of them. Whether a pre-token starts at a
// byte depends on a few bytes before and behind it, never on where the text was cut into slices.

struct PretokenParams {
    length: u32,         // bytes of text
    has_documents: u32,  // 1: document_bits marks where documents begin
    context_length: u32, // bytes of the same document that are before the text
    padding: u32,
    context: vec4<u32>,  // those bytes, the last one highest
}

const CONTEXT_BYTES: i32 = 16;

@group(0) @binding(0) var<uniform> params: PretokenParams;
@group(0) @binding(1) var<storage, read> text: array<u32>;
@group(0) @binding(2) var<storage, read> document_bits: array<u32>;
@group(0) @binding(3) var<storage, read_write> start_bits: array<u32>;

// Negative positions are in the context.
fn byte_at(position: i32) -> u32 {
    let shift = (u32(position) & 3u) * 8u;
    if (position >= 0) {
        return (text[u32(position) >> 2u] >> shift) & 0xFFu;
    }
    return (params.context[u32(position + CONTEXT_BYTES) >> 2u] >> shift) & 0xFFu;
}

fn document_word(segment: u32) -> u32 {
    if (params.has_documents == 0u) { return 0u; }
    return document_bits[segment];
}

// Whether a document begins here, or the known text does.
fn begins_document(position: i32) -> bool {
    if (position <= -i32(params.context_length)) { return true; }
    if (position < 0 || params.has_documents == 0u) { return false; }
    return ((document_bits[u32(position) >> 5u] >> (u32(position) & 31u)) & 1u) != 0u;
}

// The bits of a segment that are inside of the text.
fn inside_text(segment: u32) -> u32 {
    let left = params.length - min(params.length, segment * 32u);
    if (left >= 32u) { return 0xFFFFFFFFu; }
    return (1u << left) - 1u;
}
