/* Text to ids in one pass: find pre-tokens, look each up in a table of words, and copy its ids.
 *
 * Text repeats itself, so most words are in the table. Words are looked up in batches: the slots of
 * all words of a batch are prefetched before the first look-up. A pre-token that is too long for a
 * slot is cut where no token can extend across the cut. Such parts repeat themselves more often
 * than whole pre-tokens, most of all in scripts without spaces. Words in blocks of blocks.c are not
 * cut: they have few characters beyond ASCII.
 */
#include "engine.h"

#define BATCH 192
#define LONGEST_KEPT 256 /* the most bytes of a word that is put into the table */

API void llmgpu_encoder_free(Encoder *encoders)
{
    for (Encoder *encoder = encoders; encoder && encoder < encoders + encoders->threads; encoder++) {
        scratch_free(&encoder->scratch);
        free(encoder->padded);
        for (TextPart *part = encoder->parts; part < encoder->parts + MOST_WAITING; part++)
            free(part->ids);
    }
    free(encoders);
}

/* Return an array of encoders, one for each of `threads` threads; NULL without memory. The pattern
 * and the vocabulary must outlive them. */
API Encoder *llmgpu_encoder_new(const Pattern *pattern, const Vocabulary *vocabulary,
                                int64_t threads)
{
    Encoder *encoders = calloc((size_t)threads, sizeof *encoders);

    if (encoders == NULL)
        return NULL;
    encoders->threads = threads;
    for (int64_t k = 0; k < threads; k++) {
        encoders[k].pattern = pattern;
        encoders[k].vocabulary = vocabulary;
        for (int part = 0; part < MOST_WAITING; part++)
            encoders[k].parts[part].is_free = 1;
    }
    return encoders;
}

/* Write the ids of a word that is not in the table, and put the word into the table. Return the
 * number of ids, or NO_MEMORY. */
static int64_t encode_new(Encoder *encoder, const Word *word, uint32_t *out)
{
    int64_t count =
        match_word(encoder->vocabulary, &encoder->scratch, word->start, word->length, out);

    if (count >= 0)
        shared_insert(encoder->shared, word, out, count);
    return count;
}

/* Words that wait to be looked up, and the ids of earlier words. */
typedef struct {
    Word words[BATCH];
    int count;
    const SharedSlots *table; /* the table whose slots are prefetched */
    uint32_t *ids;
    int64_t written; /* number of ids */
    /* For each document before `settled`: the number of ids before the document. For each document
     * from `settled` to `due`, which begins within the batch: the number of the batch's words
     * before it. */
    int64_t *starts, settled, due;
} Batch;

static inline void begin_batch(Batch *batch, const Encoder *encoder, uint32_t *ids, int64_t *starts)
{
    batch->count = 0;
    batch->table = shared_table(encoder->shared);
    batch->ids = ids;
    batch->starts = starts;
    batch->written = batch->settled = batch->due = 0;
}

/* Write the ids of the batch's words from `first` to `stop`; return 0 or NO_MEMORY. */
static inline int64_t write_words(Encoder *encoder, Batch *batch, int64_t first, int64_t stop)
{
    const SharedSlots *table = shared_table(encoder->shared);
    uint32_t *at = batch->ids + batch->written;

    for (const Word *word = batch->words + first; word < batch->words + stop; word++) {
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
            /* Copy all places for ids in the slot, used or not: there is room for them. */
            memcpy(at, slot->value + 1, MOST_INLINE * sizeof *at);
        } else {
            const uint32_t *ids;
            memcpy(&ids, slot->value + 1, sizeof ids);
            memcpy(at, ids, count * sizeof *at);
        }
        at += count;
    }
    batch->written = at - batch->ids;
    return 0;
}

static int64_t write_batch(Encoder *encoder, Batch *batch)
{
    int64_t done = 0, failure;

    for (; batch->settled < batch->due; batch->settled++) {
        int64_t *start = batch->starts + batch->settled;
        if ((failure = write_words(encoder, batch, done, *start)) != 0)
            return failure;
        done = *start;
        *start = batch->written;
    }
    failure = write_words(encoder, batch, done, batch->count);
    batch->count = 0;
    batch->table = shared_table(encoder->shared);
    return failure;
}

/* Add words to a batch: the first begins at `at`, and they end at the first `count` of `ends`. Stop
 * before a word that is too long for a slot, or when the batch is full; return the number of words
 * added. */
static inline int64_t add_words(Batch *batch, const uint8_t *text, int64_t at, const int64_t *ends,
                                int64_t count)
{
    const Slot *slots = batch->table->slots; /* in variables, which are not read again for each word */
    uint64_t mask = batch->table->mask;
    Word *word = batch->words + batch->count;
    int64_t k = 0;

    count = count < BATCH - batch->count ? count : BATCH - batch->count;
    for (; k < count && LIKELY(ends[k] - at <= LONGEST_INLINE); at = ends[k++])
        add_word(word++, text + at, ends[k] - at, slots, mask);
    batch->count += (int)k;
    return k;
}

/* Add a long pre-token to a batch, part by part; return 0 or NO_MEMORY. */
static int64_t add_parts(Encoder *encoder, Batch *batch, const uint8_t *start, int64_t length)
{
    int64_t failure;

    while (length > 0) {
        int64_t part = first_part(encoder->vocabulary, start, length);
        if ((batch->count == BATCH || part > LONGEST_KEPT) &&
            (failure = write_batch(encoder, batch)) != 0)
            return failure;
        if (part > LONGEST_KEPT) {
            int64_t more = match_word(encoder->vocabulary, &encoder->scratch, start, part,
                                      batch->ids + batch->written);
            if (more < 0)
                return more;
            batch->written += more;
        } else {
            add_word(batch->words + batch->count++, start, part, batch->table->slots,
                     batch->table->mask);
        }
        start += part;
        length -= part;
    }
    return 0;
}

/* Add the words of blocks from `at` on to a batch, up to a block without a certain end. Return the
 * position after the last word, or NO_MEMORY. limit, stop: as for `add_document`.
 *
 * Not inlined: a text of 12 bytes, which has no block, takes 15 ns less time. */
static __attribute__((noinline)) int64_t add_blocks(Encoder *encoder, Batch *batch,
                                                    const uint8_t *text, int64_t at, int64_t limit,
                                                    int64_t stop)
{
    const uint8_t *p = text + at, *last = text + stop, *end = text + limit, *block;

    do {
        block = p;
        if (batch->count > BATCH - BLOCK && write_batch(encoder, batch) != 0)
            return NO_MEMORY;
        Word *word = batch->words + batch->count;
        word = add_block(encoder->pattern, &p, end, word, batch->table->slots, batch->table->mask);
        batch->count = (int)(word - batch->words);
    } while (p > block && has_block(p, last, end));
    return p - text;
}

/* Add the pre-tokens of a document that start from `at` on and before `stop` to a batch; return 0
 * or NO_MEMORY. limit: where the document ends. */
static int64_t add_document(Encoder *encoder, Batch *batch, const uint8_t *text,
                            const uint8_t *marks, int64_t at, int64_t limit, int64_t stop)
{
    int64_t ends[BATCH], failure;

    while (at < stop) {
        if (has_block(text + at, text + stop, text + limit) &&
            (at = add_blocks(encoder, batch, text, at, limit, stop)) < 0)
            return NO_MEMORY;
        int64_t found = pretoken_ends(encoder->pattern, text, marks, at, limit, stop, ends, BATCH);
        for (int64_t k = 0; k < found;) {
            if (UNLIKELY(batch->count == BATCH) && (failure = write_batch(encoder, batch)) != 0)
                return failure;
            int64_t added = add_words(batch, text, at, ends + k, found - k);
            k += added;
            at = added ? ends[k - 1] : at;
            if (k < found && batch->count < BATCH) { /* a word that is too long for a slot */
                failure = add_parts(encoder, batch, text + at, ends[k] - at);
                if (failure != 0)
                    return failure;
                at = ends[k++];
            }
        }
    }
    return 0;
}

int cuts_anywhere(const Encoder *encoder)
{
    return encoder->pattern->rule == RULE_NONE && is_greedy(encoder->vocabulary);
}

int64_t encode_text(Encoder *encoder, const Text *text, uint32_t *ids, int64_t *stopped)
{
    int64_t at = text->entry, next = 0, failure;
    Batch batch;

    begin_batch(&batch, encoder, ids, text->token_starts);
    for (;;) {
        for (; next < text->num_starts && text->starts[next] <= at; next++)
            if (next < text->own_starts)
                text->token_starts[batch.due++] = batch.count;
        if (at >= text->main_end)
            break;
        int64_t limit = next < text->num_starts ? text->starts[next] : text->length;
        int64_t stop = limit < text->main_end ? limit : text->main_end;
        if (cuts_anywhere(encoder)) {
            if ((failure = write_batch(encoder, &batch)) != 0)
                return failure;
            batch.written += match_greedily(encoder->vocabulary, text->text, &at, stop, limit,
                                            ids + batch.written);
            continue;
        }
        failure = add_document(encoder, &batch, text->text, text->marks, at, limit, stop);
        if (failure != 0)
            return failure;
        at = stop;
    }
    for (; next < text->own_starts; next++)
        text->token_starts[batch.due++] = batch.count;
    *stopped = at;
    failure = write_batch(encoder, &batch);
    return failure ? failure : batch.written;
}

int64_t marks_of(const Pattern *pattern, const uint8_t *text, int64_t length, const int64_t *starts,
                 int64_t num_starts, uint8_t **marks)
{
    if (pattern->expressions == NULL || length == 0)
        return 0;
    *marks = malloc((size_t)length);
    return *marks ? mark_expressions(pattern, text, length, starts, num_starts, *marks) : NO_MEMORY;
}

int64_t encode_copy(Encoder *encoder, const uint8_t *text, int64_t length, uint32_t *ids)
{
    void *padded = encoder->padded;

    if (grow(&padded, &encoder->padded_room, length + TEXT_PADDING, 1) != 0)
        return NO_MEMORY;
    encoder->padded = padded;
    memcpy(encoder->padded, text, (size_t)length);
    memset(encoder->padded + length, 0, TEXT_PADDING);
    return encode_padded(encoder, encoder->padded, length, ids);
}

int64_t encode_padded(Encoder *encoder, const uint8_t *text, int64_t length, uint32_t *ids)
{
    uint8_t *marks = NULL;
    Batch batch;

    if (cuts_anywhere(encoder)) {
        int64_t at = 0;
        return match_greedily(encoder->vocabulary, text, &at, length, length, ids);
    }
    int64_t failure = marks_of(encoder->pattern, text, length, NULL, 0, &marks);
    begin_batch(&batch, encoder, ids, NULL);
    if (failure == 0)
        failure = add_document(encoder, &batch, text, marks, 0, length, length);
    if (failure == 0)
        failure = write_batch(encoder, &batch);
    free(marks);
    return failure ? failure : batch.written;
}
