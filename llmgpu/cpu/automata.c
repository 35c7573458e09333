/* Cutting text by automata that automata.py made of expressions.
 *
 * A step reads one character: the entry of the state and the character's class has the next state
 * and flags. The flags of most steps are not branched on, because text is hard to predict. A step
 * with STOP leaves the text before its character to a branch:
 *
 * - STOP with BEGIN: a match may start at the character, outside of matches.
 * - The last match ended before the characters that the automaton has read: go back to its end.
 * - No match has ended since `last`, where one might start: go on after the character there.
 *
 * The last three columns of a table are for the end of the text, for the state at a bound, and for
 * the state in which the next character is outside of matches.
 */
#include "engine.h"

/* Flags of a step. MARK: a bound is before the character. LAST: the same, or a match may end
 * there. */
enum { MARK = 1, LAST = 2, STOP = 4, BEGIN = 8 };

/* Return the class of the character at p < end; length: set to its bytes. */
static inline uint32_t class_at(const uint8_t *classes, const uint8_t *p, const uint8_t *end,
                                int *length)
{
    uint32_t point = *p;

    *length = 1;
    if (UNLIKELY(point >= 0x80)) {
        int decoded = decode(p, end, &point);
        if (decoded)
            *length = decoded;
        else
            point = 0xDC00u + *p;
    }
    return classes[point];
}

int64_t run_automaton(const Automaton *automaton, const uint8_t *classes, const uint8_t *text,
                      int64_t length, uint8_t *marks, int64_t steps)
{
    const uint16_t *next = automaton->next;
    const uint8_t *flags = automaton->flags, *end = text + length, *p = text;
    const uint8_t *last = p, *begun = NULL; /* begun: a match may start there, outside of matches */
    uint32_t state = 0, last_state = 0, at = 0;
    uint32_t at_end = automaton->columns - 3, at_bound = at_end + 1, at_skip = at_end + 2;
    int bytes;

    for (;;) {
        uint8_t flag = 0;
        while (p < end) {
            at = state + class_at(classes, p, end, &bytes);
            flag = flags[at];
            if (UNLIKELY(flag & STOP))
                break;
            marks[p - text] = flag & MARK;
            last = flag & LAST ? p : last;
            last_state = flag & LAST ? state : last_state;
            state = next[at];
            p += bytes;
        }
        if (p == end && !((flag = flags[state + at_end]) & STOP))
            return steps;
        steps -= p - last;
        if (steps < 0)
            return steps;
        if (flag & BEGIN) {
            begun = p;
            state = next[state + at_bound];
        } else if (!marks[last - text]) {
            p = last;
            state = next[last_state + at_bound];
        } else {
            marks[last - text] = last != begun;
            state = next[last_state + at_skip];
            state = next[state + class_at(classes, last, end, &bytes)];
            p = last + bytes;
        }
    }
}
