/* Cutting text by automata that automata.py made of expressions.
 *
 * A step reads one character, or two of ASCII. The entry of the state and the classes of the
 * characters has the next state, and flags for each character. Only STOP is branched on, because
 * branches on text are hard to predict. The flags are written to the marks, and cleaned at the end. A
 * step with STOP is not done:
 *
 * - Outside of matches, a match may start before the character (STOP and LAST).
 * - The last match ended at the last character with LAST: the automaton goes back there.
 * - No match has ended since the last MARK: the automaton goes on after the character there.
 */
#include "engine.h"

/* Flags of a character. MARK: a bound is before it. LAST: the same, or a match may end there. The
 * other bits are the place in the heads, by which an automaton goes on at the character. */
enum { MARK = 1, LAST = 2, STOP = 0x80, PLACE = 2 };

#define STOPS (STOP << 8 | STOP)
#define OUTERS 32 /* a table begins with this many states at a bound, then as many that skip a character */

/* Return the class of the character at p < end; length: set to its bytes. Characters of one to three
 * bytes take no branch on their length. */
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
    int bytes;

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
        if (flag & LAST) {
            begun = p;
            state = next[(flag & ~STOP) >> PLACE];
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
