/* Text to ids in one pass: pre-tokens are found, looked up in a table of words, and their ids copied.
 *
 * Text repeats itself, so most words are in the table. A few words at a time are found and their slots
 * requested from memory, before the first of them is looked up. A table that has reached its limit
 * takes no more words, until as many have been missing as it holds; then it starts from empty.
 * Pre-tokens too long for a slot are cut where no token can lie across: the parts
 * repeat themselves more often, in scripts without spaces above all.
 */
#include "engine.h"

#define FIRST_SLOTS 512
#define BATCH 128
#define MOST_INLINE 3 /* ids of a word that are kept in its slot */
#define LONGEST_KEPT 256 /* bytes of a word that is kept in the table */

/* What one thread encodes with. A slot's value is the number of ids, and the ids or their place. */
typedef struct {
    const Pattern *pattern;
    const Vocabulary *vocabulary;
    WordTable table;
    uint32_t *ids; /* of words with more than MOST_INLINE */
    int64_t ids_used, ids_room;
    int64_t most_bytes;
    int64_t missed; /* words that were not taken */
    Scratch scratch;
    uint8_t *padded; /* a copy of a text without padding */
    int64_t padded_room;
} Encoder;

API void llmgpu_encoder_free(Encoder *encoder)
{
    if (encoder) {
        table_free(&encoder->table);
        scratch_free(&encoder->scratch);
        free(encoder->ids);
        free(encoder->padded);
    }
    free(encoder);
}

/* Make an encoder for one thread, whose words take about `most_bytes`; NULL without memory.
 *
 * The pattern and the vocabulary have to outlive it. */
API Encoder *llmgpu_encoder_new(const Pattern *pattern, const Vocabulary *vocabulary,
                                int64_t most_bytes)
{
    Encoder *encoder = calloc(1, sizeof *encoder);

    if (encoder == NULL)
        return NULL;
    encoder->pattern = pattern;
    encoder->vocabulary = vocabulary;
    encoder->most_bytes = most_bytes;
    if (table_init(&encoder->table, FIRST_SLOTS) != 0) {
        llmgpu_encoder_free(encoder);
        return NULL;
    }
    return encoder;
}

static int is_full(const Encoder *encoder)
{
    const WordTable *table = &encoder->table;
    int64_t slots = (int64_t)table->mask + 1;

    if (2 * (table->words + 1) > (int64_t)table->mask)
        slots *= 3; /* both tables are there while one is copied to the other */
    return slots * (int64_t)sizeof(Slot) + table->bytes_used +
               encoder->ids_used * (int64_t)sizeof(uint32_t) >
           encoder->most_bytes;
}

/* Write the ids of a word that is not in the table, and keep it there. */
static int64_t encode_new(Encoder *encoder, const Word *word, uint32_t *out)
{
    int64_t count =
        match_word(encoder->vocabulary, &encoder->scratch, word->start, word->length, out);

    if (count < 0)
        return count;
    if (is_full(encoder)) {
        if (encoder->missed++ < encoder->table.words)
            return count;
        table_clear(&encoder->table);
        encoder->ids_used = encoder->missed = 0;
    }
    void *ids = encoder->ids;
    if (grow(&ids, &encoder->ids_room, encoder->ids_used + count, sizeof(uint32_t)) != 0)
        return NO_MEMORY;
    encoder->ids = ids;
    Slot *slot = table_insert(&encoder->table, word);
    if (slot == NULL)
        return NO_MEMORY;
    slot->value[0] = (uint32_t)count;
    if (count <= MOST_INLINE) {
        for (int64_t k = 0; k < MOST_INLINE; k++)
            slot->value[1 + k] = k < count ? out[k] : 0;
        return count;
    }
    slot->value[1] = (uint32_t)encoder->ids_used;
    slot->value[2] = (uint32_t)((uint64_t)encoder->ids_used >> 32);
    memcpy(encoder->ids + encoder->ids_used, out, (size_t)count * sizeof *out);
    encoder->ids_used += count;
    return count;
}

/* Words that wait to be looked up. */
typedef struct {
    Word words[BATCH];
    int count;
} Batch;

static int64_t write_batch(Encoder *encoder, Batch *batch, uint32_t *out)
{
    uint32_t *at = out;

    for (int k = 0; k < batch->count; k++) {
        const Word *word = batch->words + k;
        const Slot *slot = encoder->table.slots + (word->hash & encoder->table.mask);
        if (UNLIKELY(slot->low != word->low || slot->high != word->high))
            slot = table_find(&encoder->table, word);
        uint32_t count = slot->value[0];
        if (UNLIKELY(slot_is_free(slot))) {
            int64_t found = encode_new(encoder, word, at);
            if (found < 0)
                return found;
            at += found;
        } else if (LIKELY(count <= MOST_INLINE)) {
            /* There is room for all of them, wanted or not. */
            memcpy(at, slot->value + 1, MOST_INLINE * sizeof *at);
            at += count;
        } else {
            uint64_t place = (uint64_t)slot->value[2] << 32 | slot->value[1];
            memcpy(at, encoder->ids + place, count * sizeof *at);
            at += count;
        }
    }
    batch->count = 0;
    return at - out;
}

static inline void add_word(const Encoder *encoder, Batch *batch, const uint8_t *start,
                            int64_t length)
{
    Word *word = batch->words + batch->count++;

    set_word(word, start, length);
    __builtin_prefetch(encoder->table.slots + (word->hash & encoder->table.mask));
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
            add_word(encoder, batch, start, part);
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
    while (at < stop) {
        int64_t found = pretoken_ends(encoder->pattern, text, marks, at, limit, stop, ends, BATCH);
        for (int64_t k = 0; k < found; k++) {
            int64_t length = ends[k] - at;
            if (LIKELY(length <= LONGEST_INLINE && batch.count < BATCH)) {
                add_word(encoder, &batch, text + at, length);
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
 * text: `length` bytes, then padding. marks: see `pretoken_ends`.
 * entry: where the first token starts; at 0 a pre-token does. *stopped becomes where the last ends.
 * main_end: no token that starts from there on is wanted; pre-tokens end there, except those that
 *     are cut anywhere (RULE_NONE and greedy matching).
 * starts: int64_t (num_starts,), where documents begin in the text, ascending. For the first
 *     `own_starts` of them token_starts becomes the number of ids before it.
 * ids: uint32_t, room for as many as there are bytes up to main_end, and 3 more. */
API int64_t llmgpu_encode(Encoder *encoder, const uint8_t *text, const uint8_t *marks,
                          int64_t length, int64_t main_end, int64_t entry, const int64_t *starts,
                          int64_t num_starts, int64_t own_starts, int64_t *token_starts,
                          uint32_t *ids, int64_t *stopped)
{
    int64_t at = entry, next = 0, count = 0, more;
    int anywhere = encoder->pattern->rule == RULE_NONE && is_greedy(encoder->vocabulary);

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
API int64_t llmgpu_encode_document(Encoder *encoder, const uint8_t *text, int64_t length,
                                   uint32_t *ids)
{
    void *padded = encoder->padded;

    if (grow(&padded, &encoder->padded_room, length + TEXT_PADDING, 1) != 0)
        return NO_MEMORY;
    encoder->padded = padded;
    memcpy(encoder->padded, text, (size_t)length);
    memset(encoder->padded + length, 0, TEXT_PADDING);
    if (encoder->pattern->rule == RULE_NONE && is_greedy(encoder->vocabulary)) {
        int64_t at = 0;
        return match_greedily(encoder->vocabulary, encoder->padded, &at, length, length, ids);
    }
    return encode_document(encoder, encoder->padded, NULL, 0, length, length, ids);
}
