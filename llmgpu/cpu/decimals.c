/* Ids and positions as decimal text.
 *
 * A table has a cell of 64 bits for each id. The lowest byte is the separator before an id, the
 * next bytes are the digits, and the highest byte is the number of all these bytes.
 */
#include "engine.h"

#define SIZE_SHIFT 56

/* Write ids to `out`, and return the number of bytes written.
 *
 * cells: uint64_t, by id. starts: int64_t (num_starts,), positions in `ids` at which documents
 *     start, ascending. The first id of a document has no separator. `border` is written before a
 *     document.
 * out: has room for 7 bytes for each id, a border for each start, and 8 more bytes. */
API int64_t llmgpu_format_ids(const uint64_t *cells, const uint32_t *ids, int64_t count,
                              const int64_t *starts, int64_t num_starts, const uint8_t *border,
                              int64_t border_length, uint8_t *out)
{
    uint8_t *at = out;
    int64_t k = 0, next = 0;

    for (;;) {
        int64_t stop = next < num_starts ? starts[next] : count;
        for (; k < stop; k++) {
            uint64_t cell = cells[ids[k]];
            memcpy(at, &cell, sizeof cell);
            at += cell >> SIZE_SHIFT;
        }
        if (next == num_starts)
            return at - out;
        memcpy(at, border, (size_t)border_length);
        at += border_length;
        if (k < (++next < num_starts ? starts[next] : count)) {
            uint64_t cell = cells[ids[k++]];
            uint64_t digits = cell >> 8;
            memcpy(at, &digits, sizeof digits);
            at += (cell >> SIZE_SHIFT) - 1;
        }
    }
}

/* Write numbers with ", " between them, and return the number of bytes written.
 *
 * numbers: none is negative. out: has room for the digits of the longest number and 2 more bytes,
 *     for each number. */
API int64_t llmgpu_format_numbers(const int64_t *numbers, int64_t count, uint8_t *out)
{
    uint8_t *at = out;

    for (int64_t k = 0; k < count; k++) {
        uint8_t digits[20], *first = digits + sizeof digits;
        uint64_t left = (uint64_t)numbers[k];
        do
            *--first = (uint8_t)('0' + left % 10);
        while (left /= 10);
        size_t length = (size_t)(digits + sizeof digits - first);
        memcpy(at, first, length);
        memcpy(at + length, ", ", 2);
        at += length + 2;
    }
    return count ? at - 2 - out : 0;
}
