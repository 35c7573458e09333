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

/* Compare a token with the beginning of a text; a token that the text begins with is not greater. */
static int compare(const AddedToken *token, const uint8_t *p, const uint8_t *end)
{
    int64_t room = end - p, length = token->length < room ? token->length : room;
    int order = memcmp(token->text, p, (size_t)length);

    return order ? order : token->length > room;
}

/* Return the longest added token at p; NULL if there is none. */
static const AddedToken *token_at(const Documents *documents, const uint8_t *p, const uint8_t *end)
{
    int64_t low = documents->firsts[*p], high = documents->firsts[*p + 1];
    const AddedToken *found;

    while (low < high) { /* the tokens before `low` are not greater than the text */
        int64_t middle = (low + high) / 2;
        if (compare(documents->tokens + middle, p, end) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == documents->firsts[*p])
        return NULL;
    /* Every token with which the text begins is this token, or a beginning of it. */
    for (found = documents->tokens + low - 1;; found = documents->tokens + found->shorter) {
        if (found->length <= end - p && memcmp(found->text, p, (size_t)found->length) == 0)
            return found;
        if (found->shorter < 0)
            return NULL;
    }
}

/* Return the start of the first added token from p on, and the token; `end` without one. */
static const uint8_t *next_token(const Documents *documents, const uint8_t *p, const uint8_t *end,
                                 const AddedToken **token)
{
    for (; p < end; p++)
        if (UNLIKELY(documents->firsts[*p] < documents->firsts[*p + 1]) &&
            (*token = token_at(documents, p, end)) != NULL)
            return p;
    *token = NULL;
    return end;
}

/* Write the ids of a text with added tokens; return their number, or a failure. room: bytes for a
 * stretch, and padding. is_copied: whether the stretches have to be copied there. */
static int64_t encode_stretches(Encoder *encoder, const Documents *documents, const uint8_t *p,
                                const uint8_t *end, uint8_t *room, int is_copied, uint32_t *ids)
{
    const AddedToken *token;
    int64_t written = 0;

    for (;;) {
        const uint8_t *stop = next_token(documents, p, end, &token);
        int64_t length = is_copied ? copy_spaced(room, p, stop) - room : stop - p;
        int64_t found = length ? encode_padded(encoder, is_copied ? room : p, length, ids + written)
                               : 0;
        if (found < 0)
            return found;
        written += found;
        if (token == NULL)
            return written;
        ids[written++] = token->id;
        p = stop + token->length;
    }
}

/* Write the ids of a document of SentencePiece's kind; return their number, or a failure. */
static int64_t encode_pieces(Encoder *encoder, const Documents *documents, const uint8_t *text,
                             int64_t length, uint32_t *ids)
{
    void *room = encoder->padded;
    int has_prefix = documents->has_prefix && length > 0;

    if (documents->count == 0 && length > MOST_COPIED)
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
 * data, offsets, ids, shorter: the texts of added tokens in ascending order, end to end, their
 *     bounds, their ids, and the place of the longest token with which each begins, -1 for none. */
API int llmgpu_vocabulary_set_documents(Vocabulary *vocabulary, const uint8_t *changeable,
                                        int has_prefix, int is_late, const uint8_t *data,
                                        const int64_t *offsets, const uint32_t *ids,
                                        const int64_t *shorter, int64_t count)
{
    Documents *made = calloc(1, sizeof *made + (size_t)count * sizeof *made->tokens);

    if (made == NULL)
        return NO_MEMORY;
    made->changeable = changeable;
    made->has_prefix = has_prefix;
    made->is_late = is_late;
    made->count = count;
    for (int64_t k = 0; k < count; k++) {
        made->tokens[k] = (AddedToken){data + offsets[k], offsets[k + 1] - offsets[k], shorter[k],
                                       ids[k]};
        made->firsts[data[offsets[k]] + 1] = k + 1;
    }
    for (int byte = 0; byte < 256; byte++) /* no token begins with the byte: an empty range */
        if (made->firsts[byte + 1] < made->firsts[byte])
            made->firsts[byte + 1] = made->firsts[byte];
    vocabulary->documents = made;
    return 0;
}
