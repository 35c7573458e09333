/* Text to ids in one pass: pre-tokens are found, looked up in a table of words, and their ids copied.
 *
 * Text repeats itself, so most words are in the table. A few words at a time are found and their slots
 * requested from memory, before the first of them is looked up.
 * Pre-tokens too long for a slot are cut where no token can lie across: the parts
 * repeat themselves more often, in scripts without spaces above all.
 */
#include "engine.h"

#define BATCH 128
#define LONGEST_KEPT 256 /* bytes of a word that is kept in the table */

/* What one thread encodes with, but for the words. */
typedef struct {
    const Pattern *pattern;
    const Vocabulary *vocabulary;
    SharedWords *shared; /* during a call */
    Scratch scratch;
    uint8_t *padded; /* a copy of a text without padding */
    int64_t padded_room;
} Encoder;

API void llmgpu_encoder_free(Encoder *encoder)
{
    if (encoder) {
        scratch_free(&encoder->scratch);
        free(encoder->padded);
    }
    free(encoder);
}

/* Make an encoder for one thread; NULL without memory. The pattern and the vocabulary have to outlive
 * it. */
API Encoder *llmgpu_encoder_new(const Pattern *pattern, const Vocabulary *vocabulary)
{
    Encoder *encoder = calloc(1, sizeof *encoder);

    if (encoder == NULL)
        return NULL;
    encoder->pattern = pattern;
    encoder->vocabulary = vocabulary;
    return encoder;
}

/* Write the ids of a word that is not in the table, and keep it there. */
static int64_t encode_new(Encoder *encoder, const Word *word, uint32_t *out)
{
    int64_t count =
        match_word(encoder->vocabulary, &encoder->scratch, word->start, word->length, out);

    if (count >= 0)
        shared_insert(encoder->shared, word, out, count);
    return count;
}

/* Words that wait to be looked up. */
typedef struct {
    Word words[BATCH];
    int count;
    const SharedSlots *table; /* where they probably are */
} Batch;

static int64_t write_batch(Encoder *encoder, Batch *batch, uint32_t *out)
{
    const SharedSlots *table = shared_table(encoder->shared);
    uint32_t *at = out;

    for (int k = 0; k < batch->count; k++) {
        const Word *word = batch->words + k;
        const Slot *slot = table->slots + (word->hash & table->mask);
        if (UNLIKELY(__atomic_load_n(&slot->high, __ATOMIC_ACQUIRE) != word->high ||
                     slot->low != word->low)) {
            slot = shared_find(table, word);
            if (UNLIKELY(slot == NULL)) {
                int64_t found = encode_new(encoder, word, at);
                if (found < 0)
                    return found;
                at += found;
                table = shared_table(encoder->shared);
                continue;
            }
        }
        uint32_t count = slot->value[0];
        if (LIKELY(count <= MOST_INLINE)) {
            /* There is room for all of them, wanted or not. */
            memcpy(at, slot->value + 1, MOST_INLINE * sizeof *at);
        } else {
            const uint32_t *ids;
            memcpy(&ids, slot->value + 1, sizeof ids);
            memcpy(at, ids, count * sizeof *at);
        }
        at += count;
    }
    batch->count = 0;
    batch->table = shared_table(encoder->shared);
    return at - out;
}

static inline void add_word(Batch *batch, const uint8_t *start, int64_t length)
{
    Word *word = batch->words + batch->count++;

    set_word(word, start, length);
    __builtin_prefetch(batch->table->slots + (word->hash & batch->table->mask));
}

/* Write the ids of the words in the batch and of a pre-token after them, part by part. */
static int64_t encode_parts(Encoder *encoder, Batch *batch, const uint8_t *start, int64_t length,
                            uint32_t *out)
{
    int64_t count = 0, more;

    while (length > 0) {
        int64_t part = first_part(encoder->vocabulary, start, length);
        if (batch->count == BATCH || part > LONGEST_KEPT) {
            if ((more = write_batch(encoder, batch, out + count)) < 0)
                return more;
            count += more;
        }
        if (part > LONGEST_KEPT) {
            more = match_word(encoder->vocabulary, &encoder->scratch, start, part, out + count);
            if (more < 0)
                return more;
            count += more;
        } else {
            add_word(batch, start, part);
        }
        start += part;
        length -= part;
    }
    return count;
}

/* Write the ids of the pre-tokens of a document that start from `at` on and before `stop`. */
static int64_t encode_document(Encoder *encoder, const uint8_t *text, const uint8_t *marks,
                               int64_t at, int64_t limit, int64_t stop, uint32_t *out)
{
    int64_t ends[BATCH], count = 0, more;
    Batch batch;

    batch.count = 0;
    batch.table = shared_table(encoder->shared);
    while (at < stop) {
        int64_t found = pretoken_ends(encoder->pattern, text, marks, at, limit, stop, ends, BATCH);
        for (int64_t k = 0; k < found; k++) {
            int64_t length = ends[k] - at;
            if (LIKELY(length <= LONGEST_INLINE && batch.count < BATCH)) {
                add_word(&batch, text + at, length);
            } else {
                if ((more = encode_parts(encoder, &batch, text + at, length, out + count)) < 0)
                    return more;
                count += more;
            }
            at = ends[k];
        }
        if ((more = write_batch(encoder, &batch, out + count)) < 0)
            return more;
        count += more;
    }
    return count;
}

/* Write the ids of the words that start in a slice; return how many, or NO_MEMORY.
 *
 * shared: words and their ids by the same vocabulary, to which more are added.
 * text: `length` bytes, then padding. marks: see `pretoken_ends`.
 * entry: where the first token starts; at 0 a pre-token does. *stopped becomes where the last ends.
 * main_end: no token that starts from there on is wanted; pre-tokens end there, except those that
 *     are cut anywhere (RULE_NONE and greedy matching).
 * starts: int64_t (num_starts,), where documents begin in the text, ascending. For the first
 *     `own_starts` of them token_starts becomes the number of ids before it.
 * ids: uint32_t, room for as many as there are bytes up to main_end, and 3 more. */
API int64_t llmgpu_encode(Encoder *encoder, SharedWords *shared, const uint8_t *text,
                          const uint8_t *marks,
                          int64_t length, int64_t main_end, int64_t entry, const int64_t *starts,
                          int64_t num_starts, int64_t own_starts, int64_t *token_starts,
                          uint32_t *ids, int64_t *stopped)
{
    int64_t at = entry, next = 0, count = 0, more;
    int anywhere = encoder->pattern->rule == RULE_NONE && is_greedy(encoder->vocabulary);

    encoder->shared = shared;
    for (;;) {
        for (; next < num_starts && starts[next] <= at; next++)
            if (next < own_starts)
                token_starts[next] = count;
        if (at >= main_end)
            break;
        int64_t limit = next < num_starts ? starts[next] : length;
        int64_t stop = limit < main_end ? limit : main_end;
        if (anywhere) {
            count += match_greedily(encoder->vocabulary, text, &at, stop, limit, ids + count);
            continue;
        }
        more = encode_document(encoder, text, marks, at, limit, stop, ids + count);
        if (more < 0)
            return more;
        count += more;
        at = stop;
    }
    for (; next < own_starts; next++)
        token_starts[next] = count;
    *stopped = at;
    return count;
}

/* Write the ids of one document without padding, as `llmgpu_encode` does. */
API int64_t llmgpu_encode_document(Encoder *encoder, SharedWords *shared, const uint8_t *text,
                                   int64_t length, uint32_t *ids)
{
    void *padded = encoder->padded;

    if (grow(&padded, &encoder->padded_room, length + TEXT_PADDING, 1) != 0)
        return NO_MEMORY;
    encoder->padded = padded;
    encoder->shared = shared;
    memcpy(encoder->padded, text, (size_t)length);
    memset(encoder->padded + length, 0, TEXT_PADDING);
    if (encoder->pattern->rule == RULE_NONE && is_greedy(encoder->vocabulary)) {
        int64_t at = 0;
        return match_greedily(encoder->vocabulary, encoder->padded, &at, length, length, ids);
    }
    return encode_document(encoder, encoder->padded, NULL, 0, length, length, ids);
}
