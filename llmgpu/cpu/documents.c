/* Encoding documents as they come: text that is normalized, and that spells added tokens.
 *
 * Three steps are done here, where one call from Python encodes one document:
 *
 * - Form NFC: a text without characters that normalizing might change needs no step.
 * - SentencePiece's kind: U+2581 becomes a space, and a text that is not empty may get a space in
 *   front.
 * - Added tokens that every text may spell are cut out of the text, before or after the step above;
 *   the stretches between them are texts of their own. The leftmost token counts, and of several at
 *   one position the longest.
 *
 * Python normalizes all other texts. */
#include "matching.h"

#define NOT_HERE (-4)
#define MARK_BYTES 3         /* of U+2581: E2 96 81 */
#define MOST_COPIED (1 << 16) /* bytes of a text without added tokens that is copied; more threads
                               * encode longer texts */

/* Return whether NFC may change a text, or the text is not UTF-8. */
static int may_change(const uint8_t *changeable, const uint8_t *p, const uint8_t *end)
{
    uint32_t point = 0;

    while (p < end) {
        if (end - p >= 8 && !(load64(p) & TOPS)) {
            p += 8;
        } else if (*p < 0x80) {
            p++;
        } else {
            int length = decode(p, end, &point);
            if (length == 0 || changeable[point >> 3] >> (point & 7) & 1)
                return 1;
            p += length;
        }
    }
    return 0;
}

/* Copy text with a space for every U+2581; return the end of the copy. */
static uint8_t *copy_spaced(uint8_t *out, const uint8_t *p, const uint8_t *end)
{
    while (p < end) {
        const uint8_t *lead = memchr(p, 0xE2, (size_t)(end - p));
        const uint8_t *stop = lead ? lead : end;
        memcpy(out, p, (size_t)(stop - p));
        out += stop - p;
        p = stop;
        if (p == end)
            break;
        if (end - p >= MARK_BYTES && p[1] == 0x96 && p[2] == 0x81) {
            *out++ = ' ';
            p += MARK_BYTES;
        } else {
            *out++ = *p++;
        }
    }
    return out;
}

/* Return the start of the first added token from p on, and set its id and length. If there is no
 * token, return `end` and set the length to 0. */
static const uint8_t *next_token(const Documents *documents, const uint8_t *p, const uint8_t *end,
                                 uint32_t *id, int64_t *length)
{
    for (; p < end; p++) {
        *length = documents->begins[*p] ? longest_token(&documents->added, p, end, id) : 0;
        if (*length)
            return p;
    }
    *length = 0;
    return end;
}

/* Write the ids of a text with added tokens; return their number, or a failure. room: memory for a
 * stretch and padding. is_copied: whether each stretch has to be copied into `room`. */
static int64_t encode_stretches(Encoder *encoder, const Documents *documents, const uint8_t *p,
                                const uint8_t *end, uint8_t *room, int is_copied, uint32_t *ids)
{
    int64_t written = 0, token_length;
    uint32_t id;

    for (;;) {
        const uint8_t *stop = next_token(documents, p, end, &id, &token_length);
        int64_t length = is_copied ? copy_spaced(room, p, stop) - room : stop - p;
        int64_t found = length ? encode_padded(encoder, is_copied ? room : p, length, ids + written)
                               : 0;
        if (found < 0)
            return found;
        written += found;
        if (token_length == 0)
            return written;
        ids[written++] = id;
        p = stop + token_length;
    }
}

/* Write the ids of a document of SentencePiece's kind; return their number, or a failure. */
static int64_t encode_pieces(Encoder *encoder, const Documents *documents, const uint8_t *text,
                             int64_t length, uint32_t *ids)
{
    void *room = encoder->padded;
    int has_prefix = documents->has_prefix && length > 0;

    int has_added = documents->added.nodes[1] > 0;

    if (!has_added && length > MOST_COPIED)
        return NOT_HERE;
    if (grow(&room, &encoder->padded_room, length + has_prefix + TEXT_PADDING, 1) != 0)
        return NO_MEMORY;
    encoder->padded = room;
    if (!documents->is_late)
        return encode_stretches(encoder, documents, text, text + length, room, 1, ids);
    if (has_prefix)
        encoder->padded[0] = ' ';
    uint8_t *end = copy_spaced(encoder->padded + has_prefix, text, text + length);
    memset(end, 0, TEXT_PADDING);
    return encode_stretches(encoder, documents, room, end, NULL, 0, ids);
}

/* Write the ids of a document that may have to be normalized, and may spell added tokens; like
 * `llmgpu_encode_document`, but return NOT_HERE if Python has to do it. */
API int64_t llmgpu_encode_plain(Encoder *encoders, SharedWords *shared, const uint8_t *text,
                                int64_t length, int64_t part_bytes, uint32_t *ids)
{
    const Documents *documents = encoders->vocabulary->documents;

    if (documents && documents->changeable && may_change(documents->changeable, text, text + length))
        return NOT_HERE;
    if (documents == NULL || documents->changeable)
        return llmgpu_encode_document(encoders, shared, text, length, part_bytes, ids);
    encoders->shared = shared;
    return encode_pieces(encoders, documents, text, length, ids);
}

/* Let `llmgpu_encode_plain` prepare documents; return 0, or NO_MEMORY. The arrays must outlive the
 * vocabulary.
 *
 * changeable: a bit for each code point that NFC may change, the lowest bit of a byte first; NULL
 *     for a vocabulary of SentencePiece's kind.
 * has_prefix: whether a text gets a space in front. is_late: whether added tokens are searched in
 *     the text with spaces. A prefix needs is_late.
 * nodes, edges: the trie of added tokens. */
API int llmgpu_vocabulary_set_documents(Vocabulary *vocabulary, const uint8_t *changeable,
                                        int has_prefix, int is_late, const uint32_t *nodes,
                                        const uint32_t *edges)
{
    Documents *made = calloc(1, sizeof *made);

    if (made == NULL)
        return NO_MEMORY;
    made->changeable = changeable;
    made->has_prefix = has_prefix;
    made->is_late = is_late;
    made->added = (Trie){nodes, edges};
    for (int byte = 0; byte < 256; byte++)
        made->begins[byte] = child_of(&made->added, 0, (uint8_t)byte) != 0;
    vocabulary->documents = made;
    return 0;
}
