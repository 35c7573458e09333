/* Cutting text by regular expressions that programs.py compiled to instructions. Expressions that
 * have automata (automata.c) are not cut by instructions.
 *
 * - A character is matched by its bits: one bit for each set of characters in the expressions. A
 *   byte that is not valid UTF-8 has the bits of the lone surrogate as which Python decodes it.
 * - Alternatives and repetitions are tried in the order of Python's package regex: the first
 *   alternative first, the most repetitions first. A call nests at most once for an instruction.
 * - Every step is counted. If a document takes too many, no marks are returned, and the package
 *   regex, which has a limit on time, matches the document.
 */
#include "engine.h"

#define STEPS_PER_BYTE 64 /* usual expressions take up to 10 */
#define LEAST_STEPS (1 << 20)
#define ASCII_END 0x80

/* The instructions. a, b, c: their operands.
 *
 * MATCH: the expression matches. TAKE: take b to c characters with one of the bits a, as many as
 * there are. REPEAT: the same, but take fewer if the rest does not match. TRY: go on with the next
 * instruction if the character has one of the bits a; if it has none, or if the rest does not
 * match, go on at instruction b. JUMP: go on at instruction b. AHEAD: go on at instruction b if the
 * next instructions match here (a = 1), or if they do not (a = 0). */
enum operation { MATCH, TAKE, REPEAT, TRY, JUMP, AHEAD };

#define ANYTHING (-1) /* bits a of a TRY that may match without a character */

/* A search in one document. left: the steps that may still be taken. */
typedef struct {
    const Pattern *pattern;
    const Expressions *expressions;
    const uint8_t *end;
    int64_t left;
} Search;

/* Return the bits of the character at p < end, and its length in bytes. */
static inline uint32_t bits_at(const Search *search, const uint8_t *p, int *length)
{
    uint32_t point = 0;

    *length = 1;
    if (LIKELY(*p < ASCII_END))
        return search->expressions->ascii[*p];
    int decoded = decode(p, search->end, &point);
    if (decoded)
        *length = decoded;
    else
        point = 0xDC00u + *p;
    return search->expressions->bits[search->pattern->classes[point]];
}

/* Return the end of up to `most` characters at p that have one of `bits`, and their number. */
static inline const uint8_t *take(Search *search, const uint8_t *p, uint32_t bits, int32_t most,
                                  int32_t *count)
{
    const uint8_t *from = p;
    int32_t taken = 0;
    int length;

    for (; p < search->end && taken < most && bits_at(search, p, &length) & bits; taken++)
        p += length;
    *count = taken;
    search->left -= p - from;
    return p;
}

/* Return the start of the character that ends at p > from. */
static const uint8_t *before(const uint8_t *from, const uint8_t *p)
{
    const uint8_t *lead = p - 1;
    uint32_t point;

    if (*lead < ASCII_END)
        return lead;
    while (lead > from && p - lead < 4 && is_continuation(*lead))
        lead--;
    return decode(lead, p, &point) == p - lead ? lead : p - 1;
}

/* Return the end of the match at p by the instructions from `at` on; NULL without a match. */
static const uint8_t *match(Search *search, int32_t at, const uint8_t *p)
{
    const Instruction *code = search->expressions->code;
    const uint8_t *found;
    int32_t count;
    int length;

    for (;; at++) {
        const Instruction *step = code + at;
        if (--search->left < 0)
            return NULL;
        switch ((enum operation)step->operation) {
        case MATCH: return p;
        case TAKE:
            p = take(search, p, (uint32_t)step->a, step->c, &count);
            if (count < step->b)
                return NULL;
            break;
        case REPEAT: {
            const uint8_t *from = p;
            p = take(search, p, (uint32_t)step->a, step->c, &count);
            for (; count > step->b; count--, p = before(from, p)) {
                if (search->left < 0 || (found = match(search, at + 1, p)) != NULL)
                    return search->left < 0 ? NULL : found;
            }
            if (count < step->b)
                return NULL;
            break;
        }
        case TRY:
            if (step->a == ANYTHING ||
                (p < search->end && bits_at(search, p, &length) & (uint32_t)step->a)) {
                found = match(search, at + 1, p);
                if (found)
                    return found;
            }
            at = step->b - 1;
            break;
        case JUMP: at = step->b - 1; break;
        case AHEAD:
            if ((match(search, at + 1, p) != NULL) != step->a)
                return NULL;
            at = step->b - 1;
            break;
        }
    }
}

/* Mark the bounds of the matches of an expression in the text from p to search->end. */
static void mark_matches(Search *search, const FirstStep *first, const uint8_t *p, uint8_t *marks,
                         const uint8_t *text)
{
    const uint8_t *end = search->end, *found;
    int length;

    while (p < end && search->left >= 0) {
        while (!first->has_ascii && end - p >= 8 && !(load64(p) & TOPS))
            p += 8;
        if (p == end)
            break;
        found = bits_at(search, p, &length) & first->bits ? match(search, first->at, p) : NULL;
        if (found) {
            marks[p - text] = 1;
            if (found < end)
                marks[found - text] = 1;
            p = found;
        } else {
            p += length;
        }
    }
}

int64_t mark_expressions(const Pattern *pattern, const uint8_t *text, int64_t length,
                         const int64_t *starts, int64_t num_starts, uint8_t *marks)
{
    const Expressions *expressions = pattern->expressions;
    Search search = {pattern, expressions, text, LEAST_STEPS + STEPS_PER_BYTE * length};

    if (length > INT32_MAX) /* counts of characters are int32_t */
        return TOO_SLOW;
    memset(marks, 0, (size_t)length);
    if (length > 0)
        marks[0] = 1;
    for (int64_t k = 0; k < num_starts; k++)
        if (starts[k] < length)
            marks[starts[k]] = 1;
    int levels = expressions->num_automata ? expressions->num_automata : expressions->levels;
    for (int level = 0; level < levels; level++) {
        for (int64_t at = 0, next; at < length && search.left >= 0; at = next) {
            const uint8_t *found = memchr(marks + at + 1, 1, (size_t)(length - at - 1));
            next = found ? found - marks : length;
            search.end = text + next;
            if (expressions->num_automata)
                search.left = run_automaton(pattern, expressions->automata + level, text + at,
                                            next - at, marks + at, search.left);
            else
                mark_matches(&search, expressions->first + level, text + at, marks, text);
        }
    }
    return search.left < 0 ? TOO_SLOW : 0;
}

/* Mark the starts of pre-tokens in documents; return 0, or TOO_SLOW. starts: where documents start,
 * in any order. marks: uint8_t (length,). */
API int64_t llmgpu_mark_expressions(const Pattern *pattern, const uint8_t *text, int64_t length,
                                    const int64_t *starts, int64_t num_starts, uint8_t *marks)
{
    return mark_expressions(pattern, text, length, starts, num_starts, marks);
}

static void set_leads(Lead *leads)
{
    for (int byte = 0; byte < 256; byte++) {
        if (byte < ASCII_END)
            leads[byte] = (Lead){0, 0, 0x7F, 12};
        else if (byte >= 0xC2 && byte < 0xE0)
            leads[byte] = (Lead){0xC000, 0x8000, 0x1F, 6};
        else if (byte >= 0xE0 && byte < 0xF0)
            leads[byte] = (Lead){0xC0C0, 0x8080, 0x0F, 0};
        else
            leads[byte] = (Lead){0, 1, 0, 0};
    }
    leads[0xE0] = (Lead){0xE0C0, 0xA080, 0x0F, 0}; /* no code point below 0x800 */
    leads[0xED] = (Lead){0xE0C0, 0x8080, 0x0F, 0}; /* no surrogate */
}

/* Let a pattern with expressions cut by `count` automata, one after the other: each cuts the
 * stretches left by the automata before it. The arrays must outlive the pattern.
 *
 * next, flags: the tables of the automata, end to end. places: int64_t (count,), where each table
 * starts. num_classes, pairs: see `Expressions`. */
API void llmgpu_pattern_set_automata(Pattern *pattern, const uint16_t *next, const uint16_t *flags,
                                     const int64_t *places, int64_t count, int64_t num_classes,
                                     const uint16_t *pairs)
{
    Expressions *expressions = pattern->expressions;

    for (int64_t k = 0; k < count; k++)
        expressions->automata[k] = (Automaton){next + places[k], flags + places[k]};
    set_leads(expressions->leads);
    expressions->num_automata = (int)count;
    expressions->num_classes = (int)num_classes;
    expressions->pairs = (const uint16_t(*)[128])pairs;
}

/* Let a pattern without a rule cut by expressions; return 0, or NO_MEMORY.
 *
 * code: instructions, which must outlive the pattern. first: int32_t (levels, 2), for each
 * expression its first instruction, and a set of bits: the first character of a match has at least
 * one of them.
 * bits: uint32_t (256,), the bits of each class in pattern->classes. */
API int llmgpu_pattern_set_expressions(Pattern *pattern, const Instruction *code,
                                       const int32_t *first, int64_t levels, const uint32_t *bits)
{
    Expressions *made = calloc(1, sizeof *made);

    if (made == NULL)
        return NO_MEMORY;
    made->code = code;
    made->levels = (int)levels;
    memcpy(made->bits, bits, sizeof made->bits);
    for (int byte = 0; byte < ASCII_END; byte++)
        made->ascii[byte] = bits[pattern->classes[byte]];
    for (int level = 0; level < levels; level++) {
        FirstStep *step = made->first + level;
        step->at = first[2 * level];
        step->bits = (uint32_t)first[2 * level + 1];
        for (int byte = 0; byte < ASCII_END; byte++)
            step->has_ascii |= (made->ascii[byte] & step->bits) != 0;
    }
    pattern->expressions = made;
    return 0;
}
