// pretoken_class_starts: marks the starts of pre-tokens for the pattern class.
//
// The pattern is this expression over bytes:
//   ` *[A-Za-z\x80-\xff]+| *[0-9]+| +|\n|[^\n A-Za-z0-9\x80-\xff]+`
// A pre-token starts at every newline, after every newline, and at every byte whose class differs
// from the class of the byte before. But a letter or a digit after a space continues the pre-token
// of the space.
//
// binding 0  params         uniform     PretokenParams
// binding 1  text           read        (length) bytes, four per u32
// binding 2  document_bits  read        (length bits) 1 where a document starts
// binding 3  start_bits     read_write  (length bits) out: 1 where a pre-token starts
// dispatch: one thread per segment of 32 bytes
//!include common/workgroup.wgsl
//!include pretoken/params.wgsl

const LETTER: u32 = 0u;
const DIGIT: u32 = 1u;
const SPACE: u32 = 2u;
const PUNCTUATION: u32 = 3u;
const NEWLINE: u32 = 4u;

// Subtraction of u32 wraps around, so byte - base <= n tests base <= byte <= base + n in one
// comparison.
fn class_of(byte: u32) -> u32 {
    if (byte == 0x0Au) { return NEWLINE; }
    if (byte == 0x20u) { return SPACE; }
    if (byte - 0x30u <= 9u) { return DIGIT; }
    if (byte >= 0x80u || (byte | 0x20u) - 0x61u <= 25u) { return LETTER; }
    return PUNCTUATION;
}

// Returns whether a pre-token starts between a byte of class `left` and a byte of class `right`.
fn starts_after(left: u32, right: u32) -> bool {
    if (left == NEWLINE || right == NEWLINE) { return true; }
    return left != right && !(left == SPACE && right <= DIGIT);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn pretoken_class_starts(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let segment = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    if (segment * 32u >= params.length) { return; }
    let first = i32(segment * 32u);
    var left = NEWLINE;
    if (!begins_document(first)) {
        left = class_of(byte_at(first - 1));
    }
    var bits = document_word(segment);
    for (var w = 0u; w < 8u; w++) {
        var four = text[segment * 8u + w];
        for (var i = 0u; i < 4u; i++) {
            let right = class_of(four & 0xFFu);
            bits |= select(0u, 1u << (w * 4u + i), starts_after(left, right));
            left = right;
            four >>= 8u;
        }
    }
    start_bits[segment] = bits & inside_text(segment);
}
