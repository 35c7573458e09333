/* Checking UTF-8, finding the starts of lines, and counting the bytes that ids replace. */
#include "engine.h"

API int64_t llmgpu_valid_utf8(const uint8_t *text, int64_t length)
{
    const uint8_t *p = text, *end = text + length;
    uint32_t point;

    while (p < end) {
        if (*p < 0x80) {
            while (end - p >= 8 && !(load64(p) & TOPS))
                p += 8;
            while (p < end && *p < 0x80)
                p++;
            continue;
        }
        int decoded = decode(p, end, &point);
        if (decoded == 0)
            break;
        p += decoded;
    }
    return p - text;
}

/* Return the top bits of the bytes that are newlines. */
static inline uint64_t newline_tops(uint64_t bytes)
{
    uint64_t others = bytes ^ ONES * '\n';

    return ~(((others & ~TOPS) + ~TOPS) | others) & TOPS;
}

/* Write the first `room` positions after newlines, and return the number of newlines in all.
 *
 * starts: int64_t (room,). No padding is read. */
API int64_t llmgpu_line_starts(const uint8_t *text, int64_t length, int64_t *starts, int64_t room)
{
    int64_t count = 0, at = 0;

    for (; length - at >= 8; at += 8) {
        for (uint64_t found = newline_tops(load64(text + at)); found; found &= found - 1, count++)
            if (LIKELY(count < room))
                starts[count] = at + bytes_before(found) + 1;
    }
    for (; at < length; at++)
        if (text[at] == '\n' && count++ < room)
            starts[count - 1] = at + 1;
    return count;
}

/* Return the sum of the spans of ids: the bytes of text that the ids replace.
 *
 * spans: int64_t (vocabulary size,). ids: uint32_t (count,), each below the vocabulary size. */
API int64_t llmgpu_replaced_bytes(const int64_t *spans, const uint32_t *ids, int64_t count)
{
    int64_t sum = 0;

    for (int64_t k = 0; k < count; k++)
        sum += spans[ids[k]];
    return sum;
}
