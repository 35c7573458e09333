/* Merging the pairs of distinct words: the most frequent one after the other, or given ones.
 *
 * - A symbol covers as many positions as it has bytes. Its number is at the first of them, and at
 *   the last, so that both neighbours of a symbol are found by its length; those between are COVERED.
 *   A separator is before and after each word.
 * - A pair has a list of the positions where it occurs or occurred. A position whose symbols are no
 *   longer those of the pair is skipped: a symbol that once starts at a position and is merged
 *   neither starts nor ends there again.
 * - Lists lie end to end in a pool, each with its pair and its room before it. When the pool is full,
 *   lists without a pair and positions that are skipped are taken out of it: all that remains is
 *   positions where pairs occur, no more than the words have symbols.
 * - Lists ascend, so that the occurrences of (a, a) are merged from the left of a run. A list that
 *   gets more positions later, as only given merges can make it, is sorted before it is used.
 * - Merging changes the counts of neighbouring pairs, which are gathered by neighbour, so that a
 *   pair is looked up once a merge. A pair that is too rare, or too long, when it is made stays so:
 *   it is not kept. One that becomes too rare loses its list.
 * - The next pair is the first of a heap of those that occur `threshold` times or more. Counts only
 *   fall, so an entry whose count is out of date is put back with today's; if the heap is empty the
 *   threshold is lowered to half the largest count.
 * - Where memory is short, there may be `most_pairs` pairs. When there are more, the words are indexed
 *   again, without the pairs that occur less often than `kept`. As counts only fall, each pair that
 *   occurs `kept` times or more is indexed: when it is indexed, or when a merge makes it. So the first
 *   of the heap is the next pair. When the heap is empty, `kept` is halved and the words are indexed
 *   again, until `kept` is `least`.
 */
#include "trainer.h"

#define WRONG_MERGE (-2)

static int64_t weight_at(const Trainer *trainer, uint32_t position)
{
    uint32_t word = trainer->blocks[position >> BLOCK_BITS];

    while (trainer->starts[word + 1] <= position)
        word++;
    return trainer->counts[word];
}

static int compare_positions(const void *one, const void *other)
{
    uint32_t left = *(const uint32_t *)one, right = *(const uint32_t *)other;

    return (left > right) - (left < right);
}

static void note(Side *side, uint32_t symbol, int64_t weight)
{
    Change *change = side->changes + symbol;

    if (change->occurrences++ == 0)
        side->touched[side->num_touched++] = symbol;
    change->weight += weight;
}

/* Take occurrences off the count of a pair, if it is kept. */
static void lose(Trainer *trainer, uint64_t key, int64_t weight)
{
    uint32_t pair = *entry_of(trainer, key);

    if (pair == NO_PAIR)
        return;
    trainer->pairs[pair].count -= weight;
    if (trainer->pairs[pair].count < trainer->kept)
        drop_list(trainer, pair);
}

/* Make a pair, or add to it, if it is worth that; its positions are for the caller to fill in. */
static int gain(Trainer *trainer, uint64_t key, Change *change)
{
    change->pair = NO_PAIR;
    if (!is_worth_keeping(trainer, key, change->weight))
        return 0;
    uint32_t pair = find_or_add(trainer, key);
    if (pair == NO_PAIR)
        return NO_MEMORY;
    int64_t size = llabs(trainer->pairs[pair].size);
    int64_t before = trainer->pairs[pair].begin;
    new_list(trainer, pair, size + change->occurrences);
    trainer->pairs[pair].size = size + change->occurrences;
    if (size > 0) {
        memcpy(trainer->pool + trainer->pairs[pair].begin, trainer->pool + before,
               (size_t)size * sizeof *trainer->pool);
        trainer->pairs[pair].size = -trainer->pairs[pair].size;
    }
    trainer->pairs[pair].count += change->weight;
    change->pair = pair;
    change->at = size;
    return trainer->pairs[pair].count >= trainer->threshold ? push_candidate(trainer, pair) : 0;
}

/* Merge the occurrences of a pair, leave those in its list, and note what changes on both sides. */
static void merge_occurrences(Trainer *trainer, uint32_t pair, uint32_t merged)
{
    uint32_t *symbols = trainer->symbols;
    uint32_t left = (uint32_t)(trainer->pairs[pair].key >> SYMBOL_BITS);
    uint32_t right = (uint32_t)(trainer->pairs[pair].key & SYMBOL_MASK);
    uint32_t left_length = trainer->lengths[left];
    uint32_t length = left_length + trainer->lengths[right];
    uint32_t last = 0; /* where the last merged symbol starts; position 0 is a separator */
    uint32_t *list = trainer->pool + trainer->pairs[pair].begin;
    int64_t made = 0;

    for (int64_t k = 0; k < trainer->pairs[pair].size; k++) {
        uint32_t at = list[k];
        if (symbols[at] != left || symbols[at + left_length] != right)
            continue;
        int64_t weight = weight_at(trainer, at);
        uint32_t before = symbols[at - 1], after = symbols[at + length];
        if (last != 0 && last + length == at)
            note(&trainer->left, trainer->most, weight);
        else if (before != SEPARATOR)
            note(&trainer->left, before, weight);
        /* What lies between two merged symbols is noted with the second. */
        if (after != SEPARATOR &&
            !(after == left && symbols[at + length + left_length] == right))
            note(&trainer->right, after, weight);
        symbols[at + left_length - 1] = COVERED;
        symbols[at + left_length] = COVERED;
        symbols[at] = merged;
        symbols[at + length - 1] = merged;
        trainer->total -= weight;
        trainer->remaining--;
        last = at;
        list[made++] = at;
    }
    trainer->pairs[pair].size = made;
}

/* Let the pairs that remain lose what changes. On the left of a symbol that the same merge
 * has just made, it was the second part of that; the new pair is then of two merged symbols. */
static void lose_changes(Trainer *trainer, uint32_t left, uint32_t right, uint32_t merged)
{
    Side *sides[2] = {&trainer->left, &trainer->right};

    for (int k = 0; k < 2; k++)
        for (int64_t n = 0; n < sides[k]->num_touched; n++) {
            uint32_t symbol = sides[k]->touched[n];
            uint32_t other = symbol == trainer->most ? right : symbol;
            lose(trainer, k == 0 ? key_of(other, left) : key_of(right, other),
                 sides[k]->changes[symbol].weight);
        }
    Change *just_made = trainer->left.changes + trainer->most;
    Change *made = trainer->left.changes + merged;
    if (just_made->occurrences > 0 && made->occurrences == 0)
        trainer->left.touched[trainer->left.num_touched++] = merged;
    made->weight += just_made->weight;
    made->occurrences += just_made->occurrences;
    just_made->occurrences = 0;
}

static void list_position(Trainer *trainer, Change *change, uint32_t position)
{
    if (change->pair != NO_PAIR)
        trainer->pool[trainer->pairs[change->pair].begin + change->at++] = position;
}

/* List where the new pairs on the left of the merged symbols start; each neighbour has a change. */
static void list_left(Trainer *trainer, const uint32_t *list, int64_t size)
{
    for (int64_t k = 0; k < size; k++) {
        uint32_t before = trainer->symbols[list[k] - 1];
        if (before != SEPARATOR)
            list_position(trainer, trainer->left.changes + before,
                          list[k] - trainer->lengths[before]);
    }
}

/* List those on the right, but for what lies between two merged symbols. */
static void list_right(Trainer *trainer, const uint32_t *list, int64_t size, uint32_t merged)
{
    uint32_t length = trainer->lengths[merged];

    for (int64_t k = 0; k < size; k++) {
        uint32_t after = trainer->symbols[list[k] + length];
        if (after != SEPARATOR && (k + 1 == size || list[k + 1] != list[k] + length))
            list_position(trainer, trainer->right.changes + after, list[k]);
    }
}

/* Make the new pairs on one side of the merged ones. */
static int gain_changes(Trainer *trainer, Side *side, uint32_t merged)
{
    int is_left = side == &trainer->left;

    for (int64_t n = 0; n < side->num_touched; n++) {
        uint32_t symbol = side->touched[n];
        Change *change = side->changes + symbol;
        uint64_t key = is_left ? key_of(symbol, merged) : key_of(merged, symbol);
        if (change->occurrences > 0 && gain(trainer, key, change) != 0)
            return NO_MEMORY;
    }
    return 0;
}

/* Make the new pairs on both sides of merged symbols, and list their positions. */
static int gain_pairs(Trainer *trainer, const uint32_t *list, int64_t size, uint32_t merged)
{
    Side *sides[2] = {&trainer->left, &trainer->right};

    if (gain_changes(trainer, &trainer->left, merged) != 0)
        return NO_MEMORY;
    list_left(trainer, list, size);
    if (gain_changes(trainer, &trainer->right, merged) != 0)
        return NO_MEMORY;
    list_right(trainer, list, size, merged);
    for (int k = 0; k < 2; k++) {
        for (int64_t n = 0; n < sides[k]->num_touched; n++)
            memset(sides[k]->changes + sides[k]->touched[n], 0, sizeof *sides[k]->changes);
        sides[k]->num_touched = 0;
    }
    return 0;
}

/* Return the most that the lists of pairs of `merged` take in the pool. If it is not a new symbol,
 * there may be such pairs: their lists are copied, that of (merged, merged) for each side. */
static int64_t needed_room(const Trainer *trainer, uint32_t merged, int is_new)
{
    const Side *sides[2] = {&trainer->left, &trainer->right};
    int64_t needed = 0;

    for (int k = 0; k < 2; k++)
        for (int64_t n = 0; n < sides[k]->num_touched; n++) {
            uint32_t symbol = sides[k]->touched[n];
            needed += LIST_HEAD + sides[k]->changes[symbol].occurrences;
            if (is_new)
                continue;
            symbol = symbol == trainer->most ? merged : symbol;
            uint32_t pair = *entry_of(trainer, k == 0 ? key_of(symbol, merged)
                                                      : key_of(merged, symbol));
            needed += pair == NO_PAIR ? 0 : llabs(trainer->pairs[pair].size);
        }
    return is_new ? needed : 2 * needed;
}

/* Merge a pair everywhere; 0, or NO_MEMORY, after which the trainer can only be freed. */
static int merge(Trainer *trainer, uint32_t pair, uint32_t merged, int is_new)
{
    uint32_t left = (uint32_t)(trainer->pairs[pair].key >> SYMBOL_BITS);
    uint32_t right = (uint32_t)(trainer->pairs[pair].key & SYMBOL_MASK);

    if (trainer->pairs[pair].size < 0) {
        trainer->pairs[pair].size = -trainer->pairs[pair].size;
        qsort(trainer->pool + trainer->pairs[pair].begin, (size_t)trainer->pairs[pair].size,
              sizeof *trainer->pool, compare_positions);
    }
    merge_occurrences(trainer, pair, merged);
    trainer->lengths[merged] = trainer->lengths[left] + trainer->lengths[right];
    if (reserve_lists(trainer, needed_room(trainer, merged, is_new), pair) != 0)
        return NO_MEMORY;
    const uint32_t *list = trainer->pool + trainer->pairs[pair].begin;
    int64_t size = trainer->pairs[pair].size;
    drop_list(trainer, pair);
    lose_changes(trainer, left, right, merged);
    trainer->pairs[pair].count = 0;
    return gain_pairs(trainer, list, size, merged);
}

/* ---- What callers ask for ---- */

/* Find the pair that is merged next, its symbols and its count; 1, 0 if there is none, NO_MEMORY. */
API int llmgpu_trainer_best(Trainer *trainer, uint32_t *symbols, int64_t *count)
{
    uint32_t pair;
    if (trainer->num_pairs > trainer->pair_limit && index_pairs(trainer) != 0)
        return NO_MEMORY;
    int found = best_pair(trainer, &pair);
    while (found == 0 && trainer->kept > trainer->least) {
        trainer->kept /= 2; /* the product of `least` and a power of two */
        if (index_pairs(trainer) != 0)
            return NO_MEMORY;
        found = best_pair(trainer, &pair);
    }

    if (found == 1) {
        symbols[0] = (uint32_t)(trainer->pairs[pair].key >> SYMBOL_BITS);
        symbols[1] = (uint32_t)(trainer->pairs[pair].key & SYMBOL_MASK);
        *count = trainer->pairs[pair].count;
    }
    return found;
}

/* Make up to `merges` merges, each into a new symbol, and fewer if that takes more than `work`
 * occurrences. Write the symbols of each, two, and its count; return how many, or NO_MEMORY. */
API int64_t llmgpu_trainer_train(Trainer *trainer, int64_t merges, int64_t work, uint32_t *symbols,
                                 int64_t *counts)
{
    int64_t made = 0;

    for (; made < merges && work > 0 && trainer->next < trainer->most; made++) {
        uint32_t pair;
        int found = llmgpu_trainer_best(trainer, symbols + 2 * made, counts + made);
        if (found == 0)
            break;
        if (found < 0 || best_pair(trainer, &pair) < 0)
            return NO_MEMORY;
        work -= llabs(trainer->pairs[pair].size);
        if (merge(trainer, pair, trainer->next++, 1) != 0)
            return NO_MEMORY;
    }
    return made;
}

/* Make given merges, each as its left symbol, right symbol and result; 0, or NO_MEMORY.
 *
 * A result that is a symbol already has as many bytes as its parts. If not, or for a symbol that does
 * not exist, returns WRONG_MERGE. */
API int llmgpu_trainer_merge(Trainer *trainer, const uint32_t *merges, int64_t count)
{
    for (const uint32_t *each = merges; each < merges + 3 * count; each += 3) {
        uint32_t left = each[0], right = each[1], result = each[2];
        if (left >= trainer->next || right >= trainer->next || result >= trainer->most)
            return WRONG_MERGE;
        uint32_t length = trainer->lengths[left] + trainer->lengths[right];
        int is_new = result >= trainer->next;
        for (; trainer->next <= result; trainer->next++)
            trainer->lengths[trainer->next] = trainer->next == result ? length : 0;
        if (trainer->lengths[result] != length)
            return WRONG_MERGE;
        uint32_t pair = *entry_of(trainer, key_of(left, right));
        if (pair != NO_PAIR && trainer->pairs[pair].count > 0 &&
            merge(trainer, pair, result, is_new) != 0)
            return NO_MEMORY;
    }
    return 0;
}
