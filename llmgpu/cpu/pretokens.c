/* Finding the ends of pre-tokens, as each named pattern's regular expression does from left to
 * right.
 *
 * - A character is a letter, a number, white space or other. A byte that is not part of a valid
 *   UTF-8 sequence (RFC 3629) is a character of kind other.
 * - The next pre-token is found in one pass over its text and a bounded look-ahead. Only white
 *   space is passed over up to three times: to the last newline, to the last character, and that
 *   character.
 * - ASCII letters, of which most text consists, are passed over eight at a time.
 */
#include "engine.h"

/* A bit for each class of unicode_classes.py, and a bit for newlines, which are also white
 * space. */
enum {
    OTHER = 1 << 0,
    UPPER = 1 << 1,
    LOWER = 1 << 2,
    OTHER_LETTER = 1 << 3,
    MARK = 1 << 4,
    NUMBER = 1 << 5,
    SPACE = 1 << 6,
    NEWLINE = 1 << 7,
    LETTER = UPPER | LOWER | OTHER_LETTER,
    SIGN = OTHER | MARK,
    WORD = LETTER | MARK
};

/* Rules of patterns that only this file knows; engine.h has the other rules. */
enum { RULE_CLASS = OTHER_RULES, RULE_NEIGHBOURS, NUM_RULES };

/* Return the kind of the character at p < end, and its length in bytes. */
static inline unsigned kind_at(const Pattern *pattern, const uint8_t *p, const uint8_t *end,
                               int *length)
{
    unsigned kind = pattern->kinds[*p];
    uint32_t point = 0;

    *length = 1;
    if (LIKELY(kind))
        return kind;
    int decoded = decode(p, end, &point);
    if (decoded == 0)
        return OTHER;
    *length = decoded;
    return 1u << pattern->classes[point];
}

/* Return the end of the characters at p that are of some kinds. */
static inline const uint8_t *skip(const Pattern *pattern, const uint8_t *p, const uint8_t *end,
                                  unsigned kinds)
{
    int length;

    while (p < end && kind_at(pattern, p, end, &length) & kinds)
        p += length;
    return p;
}

/* Set the top bit of each byte that is an ASCII letter; bit 5 of `letters` is set in all bytes. */
static inline uint64_t lower_bytes(uint64_t bytes, uint64_t letters)
{
    uint64_t low = letters & ~TOPS;

    return (low + ONES * (0x80 - 'a')) & ~(low + ONES * (0x80 - 'z' - 1)) & ~bytes & TOPS;
}

/* Return the end of the ASCII letters at p, or of the small letters. */
static inline const uint8_t *skip_ascii(const uint8_t *p, const uint8_t *end, uint64_t fold)
{
    while (p < end) {
        uint64_t bytes = load64(p);
        uint64_t others = ~lower_bytes(bytes, bytes | fold) & TOPS;
        if (others) {
            p += bytes_before(others);
            break;
        }
        p += 8;
    }
    return p < end ? p : end;
}

static inline const uint8_t *skip_letters(const Pattern *pattern, const uint8_t *p,
                                          const uint8_t *end)
{
    int length;

    for (;;) {
        p = skip_ascii(p, end, ONES * 0x20);
        if (p == end || *p < 0x80)
            return p;
        do {
            if (!(kind_at(pattern, p, end, &length) & LETTER))
                return p;
            p += length;
        } while (p < end && *p >= 0x80);
    }
}

static inline int is_double(uint8_t first, uint8_t second)
{
    return (first == 'l' && second == 'l') || ((first == 'v' || first == 'r') && second == 'e');
}

const uint8_t *contraction_end(const uint8_t *p, const uint8_t *end, int any_case)
{
    uint8_t fold = any_case ? 0x20 : 0;

    if (end - p < 2)
        return NULL;
    uint8_t first = p[1] | fold;
    if (first == 's' || first == 't' || first == 'm' || first == 'd')
        return p + 2;
    if (end - p < 3)
        return NULL;
    if (any_case && p[1] == 0xC5 && p[2] == 0xBF) /* U+017F, a long s */
        return p + 3;
    return is_double(first, p[2] | fold) ? p + 3 : NULL;
}

/* Return the end of the pre-token of white space that begins at p. */
static const uint8_t *space_end(const Pattern *pattern, const uint8_t *p, const uint8_t *end,
                                int divides_at_newlines)
{
    const uint8_t *at = p, *last = p, *after_newline = NULL;
    int length;

    while (at < end) {
        unsigned kind = kind_at(pattern, at, end, &length);
        if (!(kind & SPACE))
            break;
        last = at;
        at += length;
        if (kind & NEWLINE)
            after_newline = at;
    }
    if (after_newline && divides_at_newlines && !(at == end && pattern->whole_at_end))
        return after_newline;
    return at < end && last > p ? last : at;
}

static inline const uint8_t *next_gpt2(const Pattern *pattern, const uint8_t *p,
                                       const uint8_t *end)
{
    const uint8_t *first = p;
    int length;

    if (*p == '\'') {
        const uint8_t *after = contraction_end(p, end, 0);
        if (after)
            return after;
    }
    if (*p == ' ' && end - p > 1)
        first++;
    unsigned kind = kind_at(pattern, first, end, &length);
    if (kind & LETTER)
        return skip_letters(pattern, first + length, end);
    if (kind & SPACE)
        return space_end(pattern, p, end, 0);
    return skip(pattern, first + length, end, kind & NUMBER ? NUMBER : SIGN);
}

static inline const uint8_t *skip_numbers(const Pattern *pattern, const uint8_t *p,
                                          const uint8_t *end, int most)
{
    int length;

    for (; most > 0 && p < end && kind_at(pattern, p, end, &length) & NUMBER; most--)
        p += length;
    return p;
}

static inline const uint8_t *next_cl100k(const Pattern *pattern, const uint8_t *p,
                                         const uint8_t *end)
{
    const uint8_t *after;
    int length, next_length;
    unsigned kind, next = 0;

    kind = kind_at(pattern, p, end, &length);
    after = p + length;
    if (kind & LETTER)
        return skip_letters(pattern, after, end);
    if (kind & NUMBER)
        return skip_numbers(pattern, after, end, pattern->digits - 1);
    if (!(kind & NEWLINE)) {
        if (*p == '\'') {
            const uint8_t *contracted = contraction_end(p, end, 1);
            if (contracted)
                return contracted;
        }
        if (after < end)
            next = kind_at(pattern, after, end, &next_length);
        if (next & LETTER)
            return skip_letters(pattern, after + next_length, end);
        if (kind & SIGN || (*p == ' ' && next & SIGN)) {
            after = skip(pattern, after, end, SIGN);
            return skip(pattern, after, end, NEWLINE);
        }
    }
    return space_end(pattern, p, end, 1);
}

/* Return the end of the word of pattern o200k at p, where there is a letter or a mark.
 *
 * A word has capitals and neutral characters (without case), then small and neutral characters.
 * Without small characters, the word ends after its last neutral character, or else after its
 * last capital. */
static inline const uint8_t *word_end(const Pattern *pattern, const uint8_t *p, const uint8_t *end)
{
    const uint8_t *after_neutral = NULL;
    int length;
    unsigned kind = 0;

    while (p < end) {
        kind = kind_at(pattern, p, end, &length);
        if (!(kind & (UPPER | OTHER_LETTER | MARK)))
            break;
        p += length;
        if (!(kind & UPPER))
            after_neutral = p;
    }
    if (p < end && kind & LOWER) {
        for (;;) {
            p = skip_ascii(p, end, 0);
            if (p == end || *p < 0x80 ||
                !(kind_at(pattern, p, end, &length) & (LOWER | OTHER_LETTER | MARK)))
                break;
            p += length;
        }
    } else if (after_neutral) {
        p = after_neutral;
    }
    if (p < end && *p == '\'') {
        const uint8_t *after = contraction_end(p, end, 1);
        if (after)
            return after;
    }
    return p;
}

static inline const uint8_t *next_o200k(const Pattern *pattern, const uint8_t *p,
                                        const uint8_t *end)
{
    const uint8_t *after;
    int length, next_length;
    unsigned kind, next = 0;

    kind = kind_at(pattern, p, end, &length);
    after = p + length;
    if (kind & WORD)
        return word_end(pattern, p, end);
    if (kind & NUMBER)
        return skip_numbers(pattern, after, end, 2);
    if (!(kind & NEWLINE)) {
        if (after < end)
            next = kind_at(pattern, after, end, &next_length);
        if (next & WORD)
            return word_end(pattern, after, end);
        if (kind & OTHER || (*p == ' ' && next & OTHER)) {
            after = skip(pattern, after, end, SIGN);
            while (after < end && (*after == '\n' || *after == '\r' || *after == '/'))
                after++;
            return after;
        }
    }
    return space_end(pattern, p, end, 1);
}

/* Pattern class cuts between kinds of bytes. Letters and digits include the spaces before them. */
static inline const uint8_t *next_class(const Pattern *pattern, const uint8_t *p,
                                        const uint8_t *end)
{
    const uint8_t *first = skip(pattern, p, end, SPACE);

    if (first == end)
        return end;
    unsigned kind = pattern->kinds[*first];
    if (first > p && !(kind & (LOWER | NUMBER)))
        return first;
    return kind & NEWLINE ? first + 1 : skip(pattern, first, end, kind);
}

static inline const uint8_t *marked_end(const uint8_t *text, const uint8_t *marks, const uint8_t *p,
                                        const uint8_t *end)
{
    const uint8_t *from = marks + (p - text) + 1;
    const uint8_t *found = memchr(from, 1, (size_t)(end - p - 1));

    return found ? p + 1 + (found - from) : end;
}

/* Write the ends of pre-tokens in the 64 bytes at *p, and move *p to the last end; return the
 * number of ends. */
static inline int64_t write_block(const Pattern *pattern, const uint8_t *text, const uint8_t **p,
                                  const uint8_t *end, int64_t *ends)
{
    int64_t count = 0, from = *p - text;

    for (uint64_t left = block_ends(pattern, *p, end); left; left &= left - 1)
        ends[count++] = from + __builtin_ctzll(left);
    if (count)
        *p = text + ends[count - 1];
    return count;
}

/* Return a bit for each of the 64 marks from `marks` on. */
static inline uint64_t mark_bits(const uint8_t *marks)
{
    uint64_t bits = 0;

    for (int k = 0; k < 8; k++) /* the product moves bit 8 * n to bit 56 + n */
        bits |= (load64(marks + 8 * k) * UINT64_C(0x0102040810204080)) >> 56 << 8 * k;
    return bits;
}

/* Write the marked positions from `from` on, 64 marks at a time, before `stop` and as long as there
 * is room; return their number. */
static int64_t write_marked(const uint8_t *marks, int64_t from, int64_t stop, int64_t *ends,
                            int64_t room)
{
    int64_t count = 0;

    for (; stop - from >= BLOCK && room - count >= BLOCK; from += BLOCK)
        for (uint64_t bits = mark_bits(marks + from); bits; bits &= bits - 1)
            ends[count++] = from + __builtin_ctzll(bits);
    return count;
}

#define LONGEST_PAIR 8 /* bytes of two characters */

#define WRITE_END(next)                                                                            \
    do {                                                                                           \
        p = (next);                                                                                \
        ends[count++] = p - text;                                                                  \
    } while (0)

#define WRITE_ENDS(next)                                                                           \
    while (p < last && count < room)                                                               \
        WRITE_END(next);                                                                           \
    break

/* Write the ends in a block. If a block finds none, write the end of the next pre-token by
 * `next`. */
#define WRITE_BLOCKS(next)                                                                         \
    while (room - count >= BLOCK && has_block(p, last, end)) {                                     \
        int64_t more = write_block(pattern, text, &p, end, ends + count);                          \
        count += more;                                                                             \
        if (more == 0)                                                                             \
            WRITE_END(next);                                                                       \
    }                                                                                              \
    if (HAS_BLOCKS && count && last - p >= BLOCK) /* no room for another block */                  \
        break;                                                                                     \
    WRITE_ENDS(next)

int64_t pretoken_ends(const Pattern *pattern, const uint8_t *text, const uint8_t *marks, int64_t at,
                      int64_t limit, int64_t stop, int64_t *ends, int64_t room)
{
    const uint8_t *p = text + at, *end = text + limit, *last = text + stop;
    int64_t count = 0;

    switch (pattern->rule) {
    case RULE_CLASS: WRITE_ENDS(next_class(pattern, p, end));
    case RULE_GPT2: WRITE_BLOCKS(next_gpt2(pattern, p, end));
    case RULE_CL100K: WRITE_BLOCKS(next_cl100k(pattern, p, end));
    case RULE_O200K: WRITE_BLOCKS(next_o200k(pattern, p, end));
    case RULE_NEIGHBOURS: WRITE_ENDS(neighbours_end(pattern->classes, p, end));
    case RULE_MARKS:
        count = write_marked(marks, at + 1, stop, ends, room);
        if (count)
            break;
        WRITE_ENDS(marked_end(text, marks, p, end));
    case RULE_NONE: WRITE_ENDS(end);
    }
    return count;
}

static void set_class_kinds(Pattern *pattern)
{
    for (int byte = 0; byte < 256; byte++) {
        int folded = byte | 0x20;
        if (byte >= 0x80 || (folded >= 'a' && folded <= 'z'))
            pattern->kinds[byte] = LOWER;
        else if (byte >= '0' && byte <= '9')
            pattern->kinds[byte] = NUMBER;
        else
            pattern->kinds[byte] = byte == ' ' ? SPACE : byte == '\n' ? NEWLINE : OTHER;
    }
}

/* The names of the patterns' kernels, by rule. */
static const char *const NAMES[NUM_RULES] = {
    [RULE_MARKS] = "",        [RULE_NONE] = "none",   [RULE_GPT2] = "gpt2",
    [RULE_CL100K] = "cl100k", [RULE_O200K] = "o200k", [RULE_CLASS] = "class",
    [RULE_NEIGHBOURS] = "neighbours",
};

/* Return a new pattern, see `Pattern`; NULL without memory. kernel: the name of its kernel.
 * classes: must outlive the pattern. */
API Pattern *llmgpu_pattern_new(const char *kernel, int digits, int whole_at_end,
                                const uint8_t *classes)
{
    Pattern *pattern = calloc(1, sizeof *pattern);

    if (pattern == NULL)
        return NULL;
    for (int rule = 0; rule < NUM_RULES; rule++)
        if (strcmp(NAMES[rule], kernel) == 0)
            pattern->rule = rule;
    pattern->digits = digits;
    pattern->whole_at_end = whole_at_end;
    pattern->classes = classes;
    if (pattern->rule == RULE_CLASS) {
        set_class_kinds(pattern);
        return pattern;
    }
    if (pattern->rule == RULE_NEIGHBOURS)
        return pattern;
    for (int byte = 0; byte < 128; byte++)
        pattern->kinds[byte] = (uint8_t)(1u << classes[byte]);
    pattern->kinds['\n'] |= NEWLINE;
    pattern->kinds['\r'] |= NEWLINE;
    for (int byte = 0x80; byte < 256; byte++) /* never the first byte of a character */
        pattern->kinds[byte] = byte < 0xC2 || byte > 0xF4 ? OTHER : 0;
    return pattern;
}

/* Return whether the engine lacks a rule for the pattern, so that texts need marks. */
API int llmgpu_pattern_is_marked(const Pattern *pattern)
{
    return pattern->rule == RULE_MARKS;
}

API void llmgpu_pattern_free(Pattern *pattern)
{
    free(pattern->expressions);
    free(pattern);
}

/* Return the kind of the character that ends at p > start; OTHER for a byte that is no
 * character. */
static unsigned kind_before(const Pattern *pattern, const uint8_t *start, const uint8_t *p)
{
    const uint8_t *lead = p - 1;
    int length;

    while (lead > start && p - lead < 4 && is_continuation(*lead))
        lead--;
    unsigned kind = kind_at(pattern, lead, p, &length);
    return lead + length == p ? kind : OTHER;
}

/* Return whether a pre-token starts at p in any surroundings: between characters of kinds that no
 * pattern puts together, or at the last of several spaces. Some patterns put marks and apostrophes
 * together with letters, and a slash with newlines before it. Only the characters next to p
 * count, from `start` on. */
static int starts_certainly(const Pattern *pattern, const uint8_t *start, const uint8_t *p,
                            const uint8_t *end)
{
    int length, next;

    if (pattern->rule == RULE_NEIGHBOURS)
        return neighbours_part(pattern->classes, start, p, end);
    if (is_continuation(*p) && pattern->rule != RULE_CLASS)
        return 0;
    unsigned kind = kind_at(pattern, p, end, &length);
    if (pattern->rule == RULE_CLASS) {
        unsigned before = pattern->kinds[p[-1]];
        return kind & NEWLINE || !(before == kind || (before == SPACE && kind & (LETTER | NUMBER)));
    }
    unsigned before = kind_before(pattern, start, p);
    if (before & LETTER)
        return kind & (NUMBER | SPACE | OTHER) && *p != '\'';
    if (before & NUMBER)
        return !(kind & NUMBER);
    if (before & NEWLINE && !(kind & SPACE))
        return *p != '/';
    return before & SPACE && kind == SPACE && !(kind_at(pattern, p + length, end, &next) & SPACE);
}

int64_t last_certain_start(const Pattern *pattern, const uint8_t *text, const uint8_t *marks,
                           int64_t from, int64_t at, int64_t limit)
{
    if (pattern->rule == RULE_NONE)
        return from;
    if (marks == NULL && at > limit - LONGEST_PAIR)
        at = limit - LONGEST_PAIR;
    for (; at > from; at--)
        if (marks ? marks[at] : starts_certainly(pattern, text + from, text + at, text + limit))
            return at;
    return from;
}

/* Write the ends of the pre-tokens of one document; return their number, at most `length`. */
API int64_t llmgpu_pretoken_ends(const Pattern *pattern, const uint8_t *text, int64_t length,
                                 int64_t *ends)
{
    int64_t count = 0;

    for (int64_t at = 0; at < length; at = ends[count - 1])
        count += pretoken_ends(pattern, text, NULL, at, length, length, ends + count, length - count);
    return count;
}
