/* Cutting text by automata, which programs.py makes of expressions.
 *
 * A step reads one character, or two of ASCII. The entry of the state and of the characters' classes
 * has the next state, and flags for each character. The flags are written to the marks, and become
 * marks at the end. Only STOP is branched on, because branches on text are hard to predict.
 *
 * If the flags have STOP, the automaton does not move to the next state. Instead:
 *
 * - With LAST, a match may start before the character, after text outside of matches.
 * - Else, if the last character with LAST has no MARK, a match ended there. The automaton goes back
 *   to that end.
 * - Else no match starts at that character. The automaton goes on at the next one.
 */
#include "engine.h"

/* Flags of a character. MARK: a bound is before the character. LAST: a match may end before the
 * character; each MARK has LAST, too. STOP: see above. The bits from PLACE on are a place in the head
 * of the table. */
enum { MARK = 1, LAST = 2, STOP = 0x80, PLACE = 2 };

#define STOPS (STOP << 8 | STOP)
/* The head of the table has two lists of OUTERS states. A place chooses the state at a bound from the
 * first list, and the state that skips a character from the second. */
#define OUTERS 32

/* Return the class of the character at p < end; length: set to its bytes. There is no branch on the
 * length of characters of up to three bytes. */
static inline uint32_t class_at(const Pattern *pattern, const uint8_t *p, const uint8_t *end,
                                int *length)
{
    uint32_t point = p[0];

    if (LIKELY(end - p >= 3)) {
        const Lead *lead = pattern->expressions->leads + p[0];
        if (LIKELY(((p[1] << 8 | p[2]) & lead->mask) == lead->valid)) {
            *length = 1 + (p[0] >= 0x80) + (p[0] >= 0xE0);
            point = (p[0] & lead->own) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
            return pattern->classes[point >> lead->unused];
        }
    }
    *length = 1;
    if (point >= 0x80) {
        int decoded = decode(p, end, &point);
        if (decoded)
            *length = decoded;
        else
            point = 0xDC00u + *p;
    }
    return pattern->classes[point];
}

int64_t run_automaton(const Pattern *pattern, const Automaton *automaton, const uint8_t *text,
                      int64_t length, uint8_t *marks, int64_t steps)
{
    const uint16_t *next = automaton->next, *flags = automaton->flags;
    const uint16_t(*pairs)[128] = pattern->expressions->pairs;
    const uint8_t *p = text, *end = text + length, *begun = NULL;
    const uint8_t *last_pair = pairs ? end - 1 : text;
    uint32_t state = 2 * OUTERS, at, flag, at_end = (uint32_t)pattern->expressions->num_classes;
    int bytes = 0;

    for (;;) {
        while (p < last_pair && !((p[0] | p[1]) & 0x80)) {
            at = state + pairs[0][p[0]] + pairs[1][p[1]];
            flag = flags[at];
            if (UNLIKELY(flag & STOPS))
                break;
            marks[p - text] = (uint8_t)flag;
            marks[p - text + 1] = (uint8_t)(flag >> 8);
            state = next[at];
            p += 2;
        }
        at = state + (LIKELY(p < end) ? class_at(pattern, p, end, &bytes) : at_end);
        flag = flags[at];
        if (LIKELY(!(flag & STOP))) {
            if (p == end)
                break;
            marks[p - text] = (uint8_t)flag;
            state = next[at];
            p += bytes;
            continue;
        }
        if (flag & LAST) { /* the next step writes MARK, which is removed if the match fails */
            begun = p;
            state = next[(flag ^ STOP) >> PLACE];
            continue;
        }
        const uint8_t *last = p - 1;
        while (!(marks[last - text] & LAST))
            last--;
        steps -= p - last;
        if (steps < 0)
            return steps;
        flag = marks[last - text];
        p = last;
        state = next[flag >> PLACE];
        if (flag & MARK) {
            if (last == begun)
                marks[last - text] = 0;
            state = next[OUTERS + (flag >> PLACE)];
            state = next[state + class_at(pattern, last, end, &bytes)];
            p += bytes;
        }
    }
    for (int64_t k = 0; k < length; k++)
        marks[k] &= MARK;
    return steps;
}
