// pretoken_cl100k_starts: marks the starts of pre-tokens for the patterns cl100k, rustbpe, llama3,
// qwen2 and nanochat.
//
//   '(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
//   |\s++$|\s*[\r\n]|\s+(?!\S)|\s+
// The patterns differ in two constants: DIGITS is the 3 of the expression, and WHOLE_AT_END is 1
// for patterns with the fifth alternative and 0 for the others. See llmgpu/bpe/pretokens/names.py.
// A byte that is not part of valid UTF-8 counts as a character that is neither letter, number nor
// white space.
//
// binding 0  params           uniform     PretokenParams
// binding 1  text             read        (length) bytes, four per u32
// binding 2  document_bits    read        (length bits) 1 where a document starts
// binding 3  start_bits       read_write  (length bits) out: 1 where a pre-token starts
// binding 4  unicode_classes  read        category of each code point, see unicode.wgsl
// binding 5  undecided        read_write  segments that the host must mark, see walk.wgsl
// dispatch: one thread per segment of 32 bytes
//!include pretoken/quick.wgsl

override WHOLE_AT_END: u32 = 0u;

fn is_sign(category: u32) -> bool {
    return category == OTHER_CATEGORY || category == MARK;
}

// Returns the end of \p{L}* from `begin` on.
fn letters_end(begin: i32) -> i32 {
    var position = begin;
    while (position < stop) {
        let own = character_after(position);
        if (!is_letter(own.x)) { break; }
        position += i32(own.y);
    }
    return position;
}

// Returns the end of [^\s\p{L}\p{N}]*[\r\n]* from `begin` on.
fn signs_end(begin: i32) -> i32 {
    var position = begin;
    while (position < stop) {
        let own = character_after(position);
        if (!is_sign(own.x)) { break; }
        position += i32(own.y);
    }
    while (position < stop && newline_after(position)) {
        position++;
    }
    return position;
}

fn match_end(start: i32) -> i32 {
    let own = character_at(start);
    let after = start + i32(own.y);
    if (is_letter(own.x)) { return letters_end(after); }
    if (own.x == NUMBER_CATEGORY) { return number_end(after, DIGITS - 1u); }
    let byte = byte_at(start);
    if (byte == APOSTROPHE) {
        let length = contraction_length(start);
        if (length > 0) { return start + length; }
    }
    let next = character_after(after);
    if (is_letter(next.x) && !is_newline(byte)) { return letters_end(after + i32(next.y)); }
    if (is_sign(own.x) || (byte == PLAIN_SPACE && is_sign(next.x))) { return signs_end(after); }
    return space_end(start, WHOLE_AT_END != 0u);
}

fn is_special(near: Near) -> bool {
    return false;
}

// Returns the bytes of `segment` that follow a contraction. Bit k of `apostrophes` stands for an
// apostrophe at position begin + k at which a pre-token starts.
fn contraction_starts(apostrophes: u32, begin: i32, segment: u32) -> u32 {
    var left = apostrophes;
    var ends = 0u;
    while (left != 0u) {
        let at = begin + i32(countTrailingZeros(left));
        let length = contraction_length(at);
        let end = u32(at + length) - segment * 32u;
        if (length > 0 && end < 32u) { ends |= 1u << end; }
        left &= left - 1u;
    }
    return ends;
}

// Adds the starts after contractions to the starts `runs`. A pre-token starts after a contraction
// if a letter follows.
fn with_contractions(runs: u32, segment: u32, near: Near) -> u32 {
    let first = i32(segment * 32u);
    let opened = other_starts(near) & vec2<u32>(near.before.apostrophe, near.own.apostrophe);
    let ends = contraction_starts(opened.x & LAST_BITS, first - 32, segment)
        | contraction_starts(opened.y, first, segment);
    return runs | (ends & near.own.letter);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn pretoken_cl100k_starts(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let segment = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    if (segment * 32u >= params.length) { return; }
    if (!mark_quickly(segment)) { mark_segment(segment); }
}
