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
//!include pretoken/walk.wgsl

fn is_sign(category: u32) -> bool {
    return category == OTHER_CATEGORY;
}

// What goes with capitals and with small letters.
fn is_neutral(category: u32) -> bool {
    return category == OTHER_LETTER || category == MARK;
}

fn with_contraction(end: i32) -> i32 {
    if (is_end(end) || byte_at(end) != APOSTROPHE) { return end; }
    return end + contraction_length(end);
}

// The end of S*, from a position on, and the contraction behind it.
fn small_end(begin: i32) -> i32 {
    var position = begin;
    while (position < stop) {
        let own = character_behind(position);
        if (own.x != LOWERCASE && !is_neutral(own.x)) { return with_contraction(position); }
        position += i32(own.y);
    }
    return position;
}

// The end of U*S+ or U+S* and the contraction behind it, or the position itself if neither is there.
// first: the character at the position. A neutral one may be before it: then S+ matches that at
// least.
fn word_end(begin: i32, first: vec2<u32>, behind_neutral: bool) -> i32 {
    var position = begin;
    var neutral_end = select(-1, begin, behind_neutral);
    var own = first;
    while (own.x == UPPERCASE || is_neutral(own.x)) {
        position += i32(own.y);
        if (is_neutral(own.x)) { neutral_end = position; }
        // Wherever it goes on to, it ends behind the last neutral one, or with the capitals.
        if (position >= stop && (neutral_end < 0 || neutral_end >= stop)) { return position; }
        if (position - begin > i32(REACH)) {
            too_far = true;
            return stop;
        }
        own = character_behind(position);
    }
    if (own.x == LOWERCASE) { return small_end(position + i32(own.y)); }
    if (neutral_end >= 0) { return with_contraction(neutral_end); }
    return select(begin, with_contraction(position), position > begin);
}

fn signs_end(begin: i32) -> i32 {
    var position = begin;
    while (position < stop) {
        let own = character_behind(position);
        if (own.x != OTHER_CATEGORY && own.x != MARK) { break; }
        position += i32(own.y);
    }
    while (position < stop && !is_end(position)) {
        let byte = byte_at(position);
        if (!is_newline(byte) && byte != SLASH) { break; }
        position++;
    }
    return position;
}

fn match_end(start: i32) -> i32 {
    let own = character_at(start);
    let behind = start + i32(own.y);
    if (is_letter(own.x)) { return word_end(start, own, false); }
    if (own.x == NUMBER_CATEGORY) { return number_end(behind, 2u); }
    let byte = byte_at(start);
    if (!is_newline(byte)) {
        let next = character_behind(behind);
        let end = word_end(behind, next, own.x == MARK);
        if (end > behind || own.x == MARK) { return end; }
        if (is_sign(own.x)) { return signs_end(behind); }
        if (byte == PLAIN_SPACE && is_sign(next.x)) { return signs_end(behind); }
    }
    return space_end(start, false);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn pretoken_o200k_starts(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let segment = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    if (segment * 32u >= params.length) { return; }
    mark_segment(segment);
}
