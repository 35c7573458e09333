// pretoken_o200k_starts: pattern o200k.
//
// With U for [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and S for [\p{Ll}\p{Lm}\p{Lo}\p{M}]:
//   [^\r\n\p{L}\p{N}]?U*S+(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//   |[^\r\n\p{L}\p{N}]?U+S*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//   |\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
// A byte that is not part of valid UTF-8 is a character that is neither letter, number, mark nor
// white space.
//
// binding 0  params           uniform     PretokenParams
// binding 1  text             read        (length)
// binding 2  document_bits    read        (length bits)
// binding 3  start_bits       read_write  (length bits)
// binding 4  unicode_classes  read        see unicode.wgsl
// binding 5  undecided        read_write  see walk.wgsl
// dispatch: one thread for 32 bytes
//!include pretoken/quick.wgsl

fn is_sign(category: u32) -> bool {
    return category == OTHER_CATEGORY;
}

// The characters that may stand with capitals, and with small letters.
fn is_neutral(category: u32) -> bool {
    return category == OTHER_LETTER || category == MARK;
}

fn with_contraction(end: i32) -> i32 {
    if (ends_before(end) || text_byte(end) != APOSTROPHE) { return end; }
    return end + contraction_length(end);
}

// The end of S*, from a position on, and the contraction after it.
fn small_end(begin: i32) -> i32 {
    var position = begin;
    while (position < stop) {
        let own = character_after(position);
        if (own.x != LOWERCASE && !is_neutral(own.x)) { return with_contraction(position); }
        position += i32(own.y);
    }
    return position;
}

// The end of U*S+ or U+S* and the contraction after it, or the position itself if neither is
// there. first: the character at the position. A neutral one may be before it: then S+ matches that
// at least.
fn word_end(begin: i32, first: vec2<u32>, after_neutral: bool) -> i32 {
    var position = begin;
    var neutral_end = select(-1, begin, after_neutral);
    var own = first;
    while (own.x == UPPERCASE || is_neutral(own.x)) {
        position += i32(own.y);
        if (is_neutral(own.x)) { neutral_end = position; }
        // Wherever it continues to, it ends after the last neutral one, or with the capitals.
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

fn signs_end(begin: i32) -> i32 {
    var position = begin;
    while (position < stop) {
        let own = character_after(position);
        if (own.x != OTHER_CATEGORY && own.x != MARK) { break; }
        position += i32(own.y);
    }
    while (position < stop && !ends_before(position)) {
        let byte = text_byte(position);
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
    let byte = text_byte(start);
    if (!is_newline(byte)) {
        let next = character_after(after);
        let end = word_end(after, next, own.x == MARK);
        if (end > after || own.x == MARK) { return end; }
        if (is_sign(own.x)) { return signs_end(after); }
        if (byte == PLAIN_SPACE && is_sign(next.x)) { return signs_end(after); }
    }
    return space_end(start, false);
}

// The positions up to 3 after a position of a set.
fn soon_after(before: u32, own: u32) -> u32 {
    return after(before, own) | (own << 2u) | (before >> 30u) | (own << 3u) | (before >> 29u);
}

// Slashes after newlines, and apostrophes so close to each other that contractions may touch.
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

// The bytes of contractions whose apostrophes are in a segment that begins there, and in the second
// set the first ones after them.
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
