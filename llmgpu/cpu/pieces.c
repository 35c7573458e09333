/* Words of SentencePiece vocabularies: the symbols that remain after merging become ids.
 *
 * llmgpu/bpe/vocabulary/pieces.py defines the symbols, and makes the tables. A symbol covers at
 * least as many bytes of a word as it has ids.
 */
#include "matching.h"

/* Set the tables by which words become ids. The arrays must outlive the vocabulary. Returns 0 or
 * NO_MEMORY.
 *
 * byte_symbols: uint32_t (256,), the symbol of each byte before merging.
 * firsts: uint32_t (symbols + 1,), where the items of each symbol start in `items`. items:
 *     uint32_t, an id below `size`, or a stretch of an unknown character: `size` plus the number of
 *     bytes that are missing after it, or `size` + 4 for a byte that continues a character.
 * fuses: whether unknown characters in a row become one id. */
API int llmgpu_vocabulary_set_pieces(Vocabulary *vocabulary, const uint32_t *byte_symbols,
                                     const uint32_t *firsts, const uint32_t *items, uint32_t size,
                                     int fuses)
{
    memcpy(vocabulary->byte_ids, byte_symbols, sizeof vocabulary->byte_ids);
    vocabulary->firsts = firsts;
    vocabulary->items = items;
    vocabulary->size = size;
    vocabulary->fuses = fuses;
    return rank_bytes(vocabulary);
}

int64_t finish_pieces(const Vocabulary *vocabulary, uint32_t *ids, int64_t count, int64_t length)
{
    const uint32_t *symbols = ids + length - count;
    uint32_t size = vocabulary->size, missing = 0;
    int64_t written = 0;
    int was_unknown = 0;

    /* Move the symbols to the end of the room, so that each is read before ids overwrite it: after
     * any symbol, at most as many ids are written as bytes are covered, and at most as many symbols
     * are left as bytes. */
    memmove(ids + length - count, ids, (size_t)count * sizeof *ids);
    for (int64_t k = 0; k < count; k++) {
        uint32_t symbol = symbols[k];
        for (uint32_t at = vocabulary->firsts[symbol]; at < vocabulary->firsts[symbol + 1]; at++) {
            uint32_t item = vocabulary->items[at];
            if (item < size) {
                ids[written++] = item;
                missing = 0;
                was_unknown = 0;
            } else if (item == size + 4 && missing > 0) {
                missing--;
            } else {
                missing = item == size + 4 ? 0 : item - size;
                if (!was_unknown || !vocabulary->fuses)
                    ids[written++] = vocabulary->unknown;
                was_unknown = 1;
            }
        }
    }
    return written;
}

/* ---- Cuts ---- */

#define PAIR_BITS 22 /* as in llmgpu/bpe/pretokens/neighbours.py */

/* Return the number of the character at p; length: set to its bytes. A byte that belongs to no
 * character has a number above all code points. */
static inline uint32_t character_at(const uint8_t *p, const uint8_t *end, int *length)
{
    uint32_t point = 0;

    if (*p < 0x80) {
        *length = 1;
        return *p;
    }
    *length = decode(p, end, &point);
    if (*length == 0) {
        *length = 1;
        return 0x110000 + *p;
    }
    return point;
}

static inline int is_set(const uint8_t *bits, uint32_t index)
{
    return bits[index >> 3] >> (index & 7) & 1;
}

/* Whether text may be cut between two characters. */
static inline int may_cut(const uint8_t *joined, uint32_t before, uint32_t after)
{
    uint32_t index = before < 128 && after < 128
                         ? before << 7 | after
                         : (before * 0x9E3779B1u ^ after * 0x85EBCA77u) >> (32 - PAIR_BITS);
    const uint8_t *known = joined + (1 << (PAIR_BITS - 3));

    return !is_set(joined, index) && (is_set(known, before) || is_set(known, after));
}

const uint8_t *neighbours_end(const uint8_t *joined, const uint8_t *p, const uint8_t *end)
{
    int length;
    uint32_t before = character_at(p, end, &length);

    for (p += length; p < end; p += length) {
        uint32_t after = character_at(p, end, &length);
        if (!is_continuation(*p) && may_cut(joined, before, after))
            return p;
        before = after;
    }
    return end;
}

int neighbours_part(const uint8_t *joined, const uint8_t *start, const uint8_t *p,
                    const uint8_t *end)
{
    const uint8_t *lead = p - 1;
    int length, next;

    if (is_continuation(*p))
        return 0;
    while (lead > start && p - lead < 4 && is_continuation(*lead))
        lead--;
    uint32_t before = character_at(lead, p, &length);
    /* A byte that belongs to no character is not a certain place to cut. */
    return lead + length == p && before < 0x110000 && may_cut(joined, before, character_at(p, end, &next));
}
