// pretoken_o200k_starts: marks the starts of pre-tokens for the pattern o200k.
//
// U stands for [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}], and S for [\p{Ll}\p{Lm}\p{Lo}\p{M}]:
//   [^\r\n\p{L}\p{N}]?U*S+(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//   |[^\r\n\p{L}\p{N}]?U+S*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//   |\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
// A byte that is not part of valid UTF-8 counts as a character that is neither letter, number, mark
// nor white space.
//
// binding 0  params           uniform     PretokenParams
// binding 1  text             read        (length) bytes, four per u32
// binding 2  document_bits    read        (length bits) 1 where a document starts
// binding 3  start_bits       read_write  (length bits) out: 1 where a pre-token starts
// binding 4  unicode_classes  read        category of each code point, see unicode.wgsl
// binding 5  undecided        read_write  segments that the host must mark, see walk.wgsl
// dispatch: one thread per segment of 32 bytes
//!include pretoken/quick.wgsl

fn is_sign(category: u32) -> bool {
    return category == OTHER_CATEGORY;
}

// Returns whether characters of this category belong to both U and S.
fn is_neutral(category: u32) -> bool {
    return category == OTHER_LETTER || category == MARK;
}

// Returns the end of the contraction that begins at `end`, or `end` if none begins there.
fn with_contraction(end: i32) -> i32 {
    if (ends_before(end) || byte_at(end) != APOSTROPHE) { return end; }
    return end + contraction_length(end);
}

// Returns the end of S* from `begin` on, and of the contraction after S*.
fn small_end(begin: i32) -> i32 {
    var position = begin;
    while (position < stop) {
        let own = character_after(position);
        if (own.x != LOWERCASE && !is_neutral(own.x)) { return with_contraction(position); }
        position += i32(own.y);
    }
    return position;
}

// Matches U*S+ or U+S* from `begin` on, and the contraction after it. Returns the end of the match,
// or `begin` if neither expression matches. first: the character at `begin`. after_neutral: whether
// a neutral character is before `begin`; S+ then matches at least this character.
fn word_end(begin: i32, first: vec2<u32>, after_neutral: bool) -> i32 {
    var position = begin;
    var neutral_end = select(-1, begin, after_neutral);
    var own = first;
    while (own.x == UPPERCASE || is_neutral(own.x)) {
        position += i32(own.y);
        if (is_neutral(own.x)) { neutral_end = position; }
        // The match ends at neutral_end or after the capitals: in both cases at or after `stop`.
        if (position >= stop && (neutral_end < 0 || neutral_end >= stop)) { return position; }
        if (position - begin > i32(REACH)) {
            too_far = true;
            return stop;
        }
        own = character_after(position);
    }
    if (own.x == LOWERCASE) { return small_end(position + i32(own.y)); }
    if (neutral_end >= 0) { return with_contraction(neutral_end); }
    return select(begin, with_contraction(position), position > begin);
}

// Returns the end of other characters and marks from `begin` on, and of [\r\n/]* after them.
fn signs_end(begin: i32) -> i32 {
    var position = begin;
    while (position < stop) {
        let own = character_after(position);
        if (own.x != OTHER_CATEGORY && own.x != MARK) { break; }
        position += i32(own.y);
    }
    while (position < stop && !ends_before(position)) {
        let byte = byte_at(position);
        if (!is_newline(byte) && byte != SLASH) { break; }
        position++;
    }
    return position;
}

fn match_end(start: i32) -> i32 {
    let own = character_at(start);
    let after = start + i32(own.y);
    if (is_letter(own.x)) { return word_end(start, own, false); }
    if (own.x == NUMBER_CATEGORY) { return number_end(after, 2u); }
    let byte = byte_at(start);
    if (!is_newline(byte)) {
        let next = character_after(after);
        let end = word_end(after, next, own.x == MARK);
        if (end > after || own.x == MARK) { return end; }
        if (is_sign(own.x)) { return signs_end(after); }
        if (byte == PLAIN_SPACE && is_sign(next.x)) { return signs_end(after); }
    }
    return space_end(start, false);
}

// Returns the bytes of a segment that are 1 to 3 bytes after a byte of a set. before, own: the set
// in the segment before and in the segment.
fn soon_after(before: u32, own: u32) -> u32 {
    return after(before, own) | (own << 2u) | (before >> 30u) | (own << 3u) | (before >> 29u);
}

// Returns whether a segment must be walked: a slash follows a newline, two apostrophes are so close
// that their contractions may touch, or a run of other characters begins too far before the
// segment.
fn is_special(near: Near) -> bool {
    let before = near.before;
    let own = near.own;
    let slashes = (before.slash & (before.newline << 1u))
        | (own.slash & after(before.newline, own.newline));
    let apostrophes = (before.apostrophe & soon_after(0u, before.apostrophe))
        | (own.apostrophe & soon_after(before.apostrophe, own.apostrophe));
    let long = countLeadingZeros(~others(before)) + 1u >= BESIDE_BYTES;
    return (slashes | apostrophes) != 0u || long;
}

// Returns two sets of bytes of `segment`: x has the bytes of contractions, y the byte after each
// contraction. Bit k of `apostrophes` stands for an apostrophe at position begin + k.
fn contractions(apostrophes: u32, begin: i32, segment: u32) -> vec2<u32> {
    var left = apostrophes;
    var found = vec2<u32>();
    while (left != 0u) {
        let at = begin + i32(countTrailingZeros(left));
        let length = contraction_length(at);
        for (var k = 0; k <= length && length > 0; k++) {
            let position = u32(at + k) - segment * 32u;
            let bit = select(0u, 1u << (position & 31u), position < 32u);
            found |= select(vec2<u32>(bit, 0u), vec2<u32>(0u, bit), k == length);
        }
        left &= left - 1u;
    }
    return found;
}

// Adds the starts after contractions and at capitals after small letters (`humps`) to the starts
// `runs`, and removes the starts inside contractions.
fn with_contractions(runs: u32, segment: u32, near: Near) -> u32 {
    let first = i32(segment * 32u);
    let before = near.before;
    let own = near.own;
    let opened_before = before.apostrophe & (before.letter << 1u) & LAST_BITS;
    let opened = own.apostrophe & after(before.letter, own.letter);
    let found = contractions(opened_before, first - 32, segment)
        | contractions(opened, first, segment);
    let small_before = before.letter & ~before.capital;
    let humps = own.capital & after(small_before, own.letter & ~own.capital);
    return ((runs | humps) & ~found.x) | (found.y & own.letter);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn pretoken_o200k_starts(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let segment = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    if (segment * 32u >= params.length) { return; }
    if (!mark_quickly(segment)) { mark_segment(segment); }
}
