/* Creating a trainer from words, and returning its words. */
#include "trainer.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

/* Return the symbol at a position of the caller's words, which have `width` bytes a symbol. */
static uint32_t given_symbol(const void *symbols, int64_t at, int width)
{
    return width == 1 ? ((const uint8_t *)symbols)[at] : ((const uint32_t *)symbols)[at];
}

#define TOO_MANY (-3) /* returned if there are too many pairs for so few passes */

static int lay_out(Trainer *trainer, const void *symbols, int width, const int64_t *offsets)
{
    int64_t at = 1, word = 0;

    trainer->starts = malloc((size_t)(trainer->words + 1) * sizeof *trainer->starts);
    if (trainer->starts == NULL)
        return NO_MEMORY;
    for (word = 0; word < trainer->words; word++) {
        trainer->starts[word] = at;
        for (int64_t k = offsets[word]; k < offsets[word + 1]; k++)
            at += trainer->lengths[given_symbol(symbols, k, width)];
        at++;
    }
    trainer->starts[word] = at;
    trainer->positions = at;
    trainer->remaining = offsets[trainer->words];
    trainer->symbols = malloc((size_t)at * sizeof *trainer->symbols);
    trainer->blocks = malloc((size_t)((at >> BLOCK_BITS) + 1) * sizeof *trainer->blocks);
    if (trainer->symbols == NULL || trainer->blocks == NULL)
        return NO_MEMORY;
    trainer->symbols[0] = SEPARATOR;
    for (word = 0, at = 1; word < trainer->words; word++) {
        for (int64_t k = offsets[word]; k < offsets[word + 1]; k++) {
            uint32_t symbol = given_symbol(symbols, k, width), length = trainer->lengths[symbol];
            for (uint32_t inside = 1; inside + 1 < length; inside++)
                trainer->symbols[at + inside] = COVERED;
            trainer->symbols[at] = trainer->symbols[at + length - 1] = symbol;
            at += length;
        }
        trainer->symbols[at++] = SEPARATOR;
    }
    word = 0;
    for (int64_t block = 0; block <= trainer->positions >> BLOCK_BITS; block++) {
        while (word + 1 < trainer->words && trainer->starts[word + 1] <= block << BLOCK_BITS)
            word++;
        trainer->blocks[block] = (uint32_t)word;
    }
    return 0;
}

/* Call `found` with each pair and its position in the words. Stop if `found` returns a number other
 * than 0, and return this number. */
static int each_pair(Trainer *trainer, int (*found)(Trainer *, uint64_t, uint32_t, int64_t))
{
    for (int64_t word = 0; word < trainer->words; word++) {
        uint32_t at = (uint32_t)trainer->starts[word], left = trainer->symbols[at];
        while (left != SEPARATOR) {
            uint32_t next = at + trainer->lengths[left], right = trainer->symbols[next];
            if (right == SEPARATOR)
                break;
            int failed = found(trainer, key_of(left, right), at, trainer->counts[word]);
            if (failed)
                return failed;
            at = next;
            left = right;
        }
    }
    return 0;
}

static int count_one(Trainer *trainer, uint64_t key, uint32_t at, int64_t weight)
{
    (void)at;
    if (trainer->passes > 1 && mix_words(key, 1) % trainer->passes != trainer->pass)
        return 0;
    uint32_t pair = find_or_add(trainer, key);
    if (pair == NO_PAIR)
        return NO_MEMORY;
    trainer->pairs[pair].count += weight;
    trainer->pairs[pair].size++;
    return trainer->num_pairs > trainer->pair_limit ? TOO_MANY : 0;
}

/* Remove the pairs that occur less often than `kept`, and double `kept` until the remaining pairs
 * fill at most half of the room. The most frequent pair always stays. Return 0 or NO_MEMORY. */
static int forget_rare_pairs(Trainer *trainer)
{
    for (;; trainer->kept *= 2) {
        int64_t left = 0, largest = 0;
        for (int64_t k = 0; k < trainer->num_pairs; k++) {
            Pair pair = trainer->pairs[k];
            if (!is_worth_keeping(trainer, pair.key, pair.count))
                continue;
            trainer->pairs[left++] = pair;
            largest = pair.count > largest ? pair.count : largest;
        }
        trainer->num_pairs = left;
        if (left <= trainer->most_pairs / 2 || trainer->kept > largest / 2)
            return make_pair_table(trainer, trainer->mask + 1);
    }
}

/* Count the pairs of the words. If there are too many pairs to be counted at once, count a share of
 * them in each of several passes. Return 0 or NO_MEMORY. */
static int count_pairs(Trainer *trainer)
{
    int failed = TOO_MANY;

    for (trainer->passes = 1; failed == TOO_MANY; trainer->passes *= 2) {
        trainer->num_pairs = 0;
        failed = make_pair_table(trainer, trainer->mask + 1);
        for (trainer->pass = 0; failed == 0 && trainer->pass < trainer->passes; trainer->pass++) {
            trainer->pair_limit = trainer->num_pairs + trainer->most_pairs / 2;
            failed = each_pair(trainer, count_one);
            if (failed == 0)
                failed = forget_rare_pairs(trainer);
        }
    }
    /* Too many equally frequent pairs all stay. Then the limit is higher, so that the words are not
     * indexed again at once. */
    trainer->pair_limit = trainer->most_pairs / 2 + trainer->num_pairs;
    return failed;
}

static int list_one(Trainer *trainer, uint64_t key, uint32_t at, int64_t weight)
{
    uint32_t pair = *entry_of(trainer, key);

    (void)weight;
    if (pair != NO_PAIR)
        trainer->pool[trainer->pairs[pair].begin + trainer->pairs[pair].size++] = at;
    return 0;
}

/* Count the pairs of the words, and list the positions of the pairs that are kept. */
int index_pairs(Trainer *trainer)
{
    int64_t needed = 0;

    trainer->pool_used = trainer->heap_used = 0;
    trainer->threshold = INT64_MAX;
    if (count_pairs(trainer) != 0)
        return NO_MEMORY;
    for (int64_t pair = 0; pair < trainer->num_pairs; pair++)
        needed += LIST_HEAD + trainer->pairs[pair].size;
    if (reserve_lists(trainer, needed, NO_PAIR) != 0)
        return NO_MEMORY;
    for (int64_t pair = 0; pair < trainer->num_pairs; pair++) {
        int64_t size = trainer->pairs[pair].size;
        trainer->pairs[pair].size = 0;
        new_list(trainer, (uint32_t)pair, size);
    }
    return each_pair(trainer, list_one);
}

API void llmgpu_trainer_free(Trainer *trainer)
{
    Side *sides[2] = {&trainer->left, &trainer->right};

    for (int k = 0; k < 2; k++) {
        free(sides[k]->changes);
        free(sides[k]->touched);
    }
    void *rest[] = {trainer->symbols, trainer->starts, trainer->blocks,      trainer->lengths,
                    trainer->pairs,   trainer->table,  trainer->heap,   trainer->pool};
    for (size_t k = 0; k < sizeof rest / sizeof *rest; k++)
        free(rest[k]);
    free(trainer);
}

/* Return a trainer of words, which may have up to 2^32 - 3 bytes and separators in all; NULL
 * without memory.
 *
 * symbols: the words end to end, in `width` bytes a symbol, 1 or 4. offsets: where each word
 *     starts.
 * counts: the number of occurrences of each word; must outlive the trainer.
 * lengths: bytes of the first `known` symbols. most: the most symbols, up to 2^20.
 * total: the number of symbols in the whole text.
 * least, longest: pairs that occur less often, or have more bytes, are not merged.
 * most_pairs: about the most pairs that are indexed at a time, 2 or more; fewer take more time.
 */
API Trainer *llmgpu_trainer_new(const void *symbols, int width, const int64_t *offsets,
                                const int64_t *counts, int64_t words, const uint32_t *lengths,
                                int64_t known, int64_t most, int64_t total, int64_t least,
                                int64_t longest, int64_t most_pairs)
{
    Trainer *trainer = calloc(1, sizeof *trainer);
    if (trainer == NULL)
        return NULL;
#ifdef __GLIBC__
    malloc_trim(0); /* gives back what counting has freed, before merging needs most memory */
#endif
    trainer->counts = counts;
    trainer->words = words;
    trainer->total = total;
    trainer->next = (uint32_t)known;
    trainer->most = (uint32_t)most;
    trainer->least = trainer->kept = least;
    trainer->longest = longest;
    trainer->most_pairs = most_pairs;
    trainer->lengths = malloc((size_t)(most + 1) * sizeof *trainer->lengths);
    Side *sides[2] = {&trainer->left, &trainer->right};
    int failed = trainer->lengths == NULL || make_pair_table(trainer, 4096) != 0;
    for (int k = 0; k < 2; k++) {
        sides[k]->changes = calloc((size_t)most + 1, sizeof(Change));
        sides[k]->touched = malloc((size_t)(most + 1) * sizeof(uint32_t));
        failed |= sides[k]->changes == NULL || sides[k]->touched == NULL;
    }
    if (!failed) {
        memcpy(trainer->lengths, lengths, (size_t)known * sizeof *lengths);
        failed = lay_out(trainer, symbols, width, offsets) != 0 || index_pairs(trainer) != 0;
    }
    if (failed) {
        llmgpu_trainer_free(trainer);
        return NULL;
    }
    return trainer;
}

/* Return the number of symbols in the distinct words; total: set to that of the whole text. */
API int64_t llmgpu_trainer_size(const Trainer *trainer, int64_t *total)
{
    *total = trainer->total;
    return trainer->remaining;
}

/* Write the words of two symbols or more, and return their number: their symbols end to end, where
 * each word ends, and counts. Write the number of all symbols to `known`, and their lengths in
 * bytes. */
API int64_t llmgpu_trainer_take(const Trainer *trainer, uint32_t *symbols, int64_t *ends,
                                int64_t *counts, uint32_t *lengths, int64_t *known)
{
    int64_t used = 0, words = 0;

    for (int64_t word = 0; word < trainer->words; word++) {
        int64_t at = trainer->starts[word], before = used;
        while (trainer->symbols[at] != SEPARATOR) {
            symbols[used++] = trainer->symbols[at];
            at += trainer->lengths[trainer->symbols[at]];
        }
        if (used < before + 2) {
            used = before;
            continue;
        }
        ends[words] = used;
        counts[words++] = trainer->counts[word];
    }
    *known = trainer->next;
    memcpy(lengths, trainer->lengths, (size_t)trainer->next * sizeof *lengths);
    return words;
}
