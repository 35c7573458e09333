/* Finding the starts of pre-tokens in text: 64 bytes at a time, in numbers with a bit for each
 * byte.
 *
 * A block begins where a pre-token starts, so the text before it does not matter. A class of bytes
 * is a set of bits, and a rule is a few operations on whole sets. `set << 1` has the bits after the
 * bytes of a set. Adding the first bits of runs to the runs carries into the bits after the runs.
 * Starts at the end of a block may depend on the bytes that follow. They are left to the next
 * block, which begins at the last certain start. ASCII is classified 16 bytes at a time, other
 * letters and other signs one by one. Text that these rules don't decide is left to pretokens.c.
 */
#include "engine.h"

#if HAS_BLOCKS
#include <emmintrin.h>

#define MOST_IN_ROW 2 /* characters beyond ASCII; pretokens.c is faster at text with more in a row */

/* The bytes of a block by class. Bytes from `known` on are in no class. tails: the bytes of
 * characters beyond ASCII except their first. */
typedef struct {
    uint64_t letters, capitals, numbers, white, newlines, spaces, others, tails;
    int known;
} Classes;

/* Classes of unicode_classes.py. */
enum { OTHER, UPPER, LOWER, OTHER_LETTER, MARK };

/* Return the bits below `bit`, 0 to 64. */
static inline uint64_t bits_below(int bit)
{
    return bit > 63 ? UINT64_MAX : (UINT64_C(1) << bit) - 1;
}

/* Return the bits of the bytes with values from `low` to `low + count - 1`. */
static inline uint64_t in_range(__m128i bytes, int low, int count)
{
    /* Move `low` to -128, because the comparison is one of signed numbers. */
    __m128i moved = _mm_add_epi8(bytes, _mm_set1_epi8((char)(128 - low)));
    __m128i found = _mm_cmplt_epi8(moved, _mm_set1_epi8((char)(-128 + count)));

    return (uint64_t)(unsigned)_mm_movemask_epi8(found);
}

static inline uint64_t equal(__m128i bytes, char byte)
{
    return (uint64_t)(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte)));
}

/* Classify the characters whose bytes are in `beyond`, up to the first that these rules don't
 * decide: a number, white space, invalid UTF-8, a character cut off by the block's end, and with
 * o200k also a mark or a letter without case. */
static inline void add_beyond(const Pattern *pattern, const uint8_t *p, const uint8_t *end,
                              uint64_t beyond, Classes *classes)
{
    int last = pattern->rule == RULE_O200K ? LOWER : MARK, next = 0, row = 0;

    while (beyond) {
        uint32_t point;
        int at = __builtin_ctzll(beyond);
        int length = decode(p + at, end, &point);
        int class = length ? pattern->classes[point] : OTHER;
        row = at == next ? row + 1 : 1;
        if (length == 0 || at + length > classes->known || class > last || row > MOST_IN_ROW) {
            classes->known = at;
            break;
        }
        uint64_t bits = bits_below(length) << at;
        next = at + length;
        beyond &= ~bits;
        classes->tails |= bits & (bits << 1);
        if (class != OTHER && class != MARK)
            classes->letters |= bits;
        if (class == UPPER)
            classes->capitals |= bits;
    }
}

/* Classify up to 64 bytes at p, before `end`. */
static inline Classes classify(const Pattern *pattern, const uint8_t *p, const uint8_t *end)
{
    Classes classes = {.known = end - p < 64 ? (int)(end - p) : 64};
    uint64_t beyond = 0;

    for (int at = 0; at < 64 && at < classes.known; at += 16) { /* reads up to 15 bytes of padding */
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(p + at));
        __m128i folded = _mm_or_si128(bytes, _mm_set1_epi8(0x20));
        classes.letters |= in_range(folded, 'a', 26) << at;
        classes.capitals |= in_range(bytes, 'A', 26) << at;
        classes.numbers |= in_range(bytes, '0', 10) << at;
        classes.white |= in_range(bytes, '\t', 5) << at;
        classes.newlines |= (equal(bytes, '\n') | equal(bytes, '\r')) << at;
        classes.spaces |= equal(bytes, ' ') << at;
        beyond |= (uint64_t)(unsigned)_mm_movemask_epi8(bytes) << at;
    }
    beyond &= bits_below(classes.known);
    if (beyond)
        add_beyond(pattern, p, end, beyond, &classes);
    if (classes.known < 64) {
        uint64_t known = bits_below(classes.known);
        classes.letters &= known;
        classes.numbers &= known;
        classes.white &= known;
        classes.newlines &= known;
        classes.spaces &= known;
    }
    classes.white |= classes.spaces;
    classes.others =
        bits_below(classes.known) & ~(classes.letters | classes.numbers | classes.white);
    return classes;
}

/* Return the first bit of each run. */
static inline uint64_t firsts(uint64_t runs)
{
    return runs & ~(runs << 1);
}

/* Return the bit after each run whose first bit is in `given`. */
static inline uint64_t ends(uint64_t runs, uint64_t given)
{
    return (runs + given) & ~runs;
}

/* Return the bits in `given` whose bytes are apostrophes. */
static inline uint64_t apostrophes(const uint8_t *p, uint64_t given)
{
    uint64_t found = 0;

    for (; given; given &= given - 1)
        found |= p[__builtin_ctzll(given)] == '\'' ? given & -given : 0;
    return found;
}

/* Return the starts before `known` that are certain. White space at the end of the block may
 * continue after it, so only the first start in this run is certain. */
static inline uint64_t certain(const Classes *classes, uint64_t starts, int known)
{
    uint64_t other = ~classes->white & bits_below(known);

    if (other == 0)
        return starts & 1;
    return starts & bits_below(65 - __builtin_clzll(other)) & bits_below(known);
}

static uint64_t gpt2_starts(const Classes *classes, const uint8_t *p, const uint8_t *end)
{
    uint64_t after_space = classes->spaces << 1;
    uint64_t others = firsts(classes->others) & ~after_space;
    uint64_t starts = others | (firsts(classes->letters) & ~after_space) |
                      (firsts(classes->numbers) & ~after_space) | firsts(classes->white) |
                      (classes->white & ~(classes->white >> 1));

    uint64_t opening = apostrophes(p, others & classes->letters >> 1);
    for (; opening; opening &= opening - 1) {
        int at = __builtin_ctzll(opening);
        const uint8_t *after = contraction_end(p + at, end, 0);
        if (after == NULL)
            continue;
        starts &= ~(UINT64_C(2) << at);
        starts |= after - p < 64 ? UINT64_C(1) << (after - p) : 0;
    }
    return certain(classes, starts, classes->known);
}

/* Return the starts by the rules that cl100k and o200k share: all but contractions and capitals.
 *
 * others: first bits of runs of other characters without a space before them. known: set to the
 *     position up to which the result is correct. */
static inline uint64_t common_starts(const Classes *classes, int digits, uint64_t others, int *known)
{
    uint64_t numbers = classes->numbers, newlines = classes->newlines;
    uint64_t blanks = classes->white & ~newlines;
    /* A blank, or a single other character without a space before it, belongs to the letters after
     * it. */
    uint64_t next = others << 1;
    uint64_t prefixed = blanks << 1 | next | ends(classes->tails, next & classes->tails);
    uint64_t starts = others | (firsts(classes->letters) & ~prefixed);

    /* Cut runs of numbers into pre-tokens of `digits` numbers, counted from the run's first. */
    uint64_t inner = numbers;
    for (int k = 1; k <= digits; k++)
        inner &= numbers << k;
    for (uint64_t first = firsts(numbers); first; first = first << digits & inner)
        starts |= first;
    /* Newlines belong to the other characters before them. Divide white space after its last
     * newline and before its last blank. */
    uint64_t taken = newlines & classes->others << 1;
    uint64_t blank_firsts = blanks & newlines << 1;
    starts |= firsts(classes->white) & ~taken;
    starts |= ends(newlines, taken);
    starts |= blank_firsts | (blanks & ~(classes->white >> 1));
    uint64_t undecided = ends(blanks, blank_firsts) & newlines;
    *known = undecided ? __builtin_ctzll(undecided) : classes->known;
    return starts;
}

static uint64_t cl100k_starts(const Classes *classes, int digits, const uint8_t *p,
                              const uint8_t *end)
{
    uint64_t others = firsts(classes->others) & ~(classes->spaces << 1);
    int known;
    uint64_t starts = common_starts(classes, digits, others, &known);

    uint64_t opening = apostrophes(p, others & classes->letters >> 1);
    for (; opening; opening &= opening - 1) {
        const uint8_t *after = contraction_end(p + __builtin_ctzll(opening), end, 1);
        if (after && after - p < 64)
            starts |= UINT64_C(1) << (after - p);
    }
    return certain(classes, starts, known);
}

static uint64_t o200k_starts(const Classes *classes, const uint8_t *p, const uint8_t *end)
{
    uint64_t others = firsts(classes->others) & ~(classes->spaces << 1);
    uint64_t small = classes->letters & ~classes->capitals;
    int known;
    uint64_t starts = common_starts(classes, 3, others, &known) | (classes->capitals & small << 1);

    /* A slash belongs to the newlines before it if these belong to other characters. Leave such
     * text undecided. */
    uint64_t after_newlines = ends(classes->newlines, classes->newlines & classes->others << 1);
    for (uint64_t left = after_newlines & classes->others; left; left &= left - 1) {
        int at = __builtin_ctzll(left);
        if (p[at] == '/' && at < known)
            known = at;
    }
    uint64_t opening = apostrophes(p, others & classes->letters << 1);
    for (int closed = 0; opening; opening &= opening - 1) {
        int at = __builtin_ctzll(opening);
        const uint8_t *after = contraction_end(p + at, end, 1);
        if (after == NULL || (closed && at == closed)) /* after a contraction, it begins a word */
            continue;
        closed = (int)(after - p);
        starts &= ~(bits_below(closed) & ~bits_below(at));
        starts |= closed < 64 ? UINT64_C(1) << closed : 0;
    }
    return certain(classes, starts, known);
}

uint64_t block_ends(const Pattern *pattern, const uint8_t *p, const uint8_t *end)
{
    uint64_t beyond = load64(p + 1) & TOPS, starts;

    if (pattern->rule != RULE_O200K) { /* allow a character of two bytes */
        beyond &= beyond - 1;
        beyond &= beyond - 1;
    }
    if (beyond) /* a block would most likely find nothing */
        return 0;
    Classes classes = classify(pattern, p, end);
    switch (pattern->rule) {
    case RULE_GPT2: starts = gpt2_starts(&classes, p, end); break;
    case RULE_CL100K: starts = cl100k_starts(&classes, pattern->digits, p, end); break;
    case RULE_O200K: starts = o200k_starts(&classes, p, end); break;
    default: return 0;
    }
    return starts & ~UINT64_C(1);
}
#else
uint64_t block_ends(const Pattern *pattern, const uint8_t *p, const uint8_t *end)
{
    (void)pattern, (void)p, (void)end;
    return 0;
}
#endif
