/* Merging the pairs of distinct words: the most frequent pair again and again, or given merges.
 *
 * - A symbol covers as many positions as it has bytes. Its number is stored at the first and the
 *   last of these positions, so both neighbours can be found by the symbol's length. The positions
 *   between are COVERED. There is a separator before and after each word.
 * - A pair has a list of the positions at which it occurs or has occurred. A position is skipped if
 *   other symbols are there: once a symbol that starts at a position is merged, it neither starts
 *   nor ends there again.
 * - Lists lie end to end in a pool. Before each list are its pair and its room. When the pool is
 *   full, lists without a pair and positions to be skipped are removed. The positions that remain
 *   are occurrences of pairs, no more than the words have symbols.
 * - Lists ascend, so that the occurrences of (a, a) are merged from the left of a run. A list that
 *   gets further positions later, which only given merges can cause, is sorted before it is used.
 * - A merge changes the counts of neighbouring pairs. The changes are collected by neighbour, so
 *   that each pair is looked up once per merge. A pair that is too rare or too long when it is made
 *   is not kept, because it can't become more frequent or shorter. A pair that becomes too rare
 *   loses its list.
 * - The next pair is the first in a heap of the pairs that occur `threshold` times or more. Counts
 *   only fall, so an entry with an old count is put back with the current count. If the heap is
 *   empty, the threshold becomes half of the largest count.
 * - If memory is short, there may be only about `most_pairs` pairs. When there are more, the words
 *   are indexed again, without the pairs that occur less often than `kept`. Because counts only
 *   fall, every pair that occurs `kept` times or more is indexed: either when the words are
 *   indexed, or when a merge makes the pair. So the first pair in the heap is the next pair. When
 *   the heap is empty, `kept` is halved and the words are indexed again, until `kept` is `least`.
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

/* Subtract `weight` from the count of a pair, if the pair is kept. */
static void lose(Trainer *trainer, uint64_t key, int64_t weight)
{
    uint32_t pair = *entry_of(trainer, key);

    if (pair == NO_PAIR)
        return;
    trainer->pairs[pair].count -= weight;
    if (trainer->pairs[pair].count < trainer->kept)
        drop_list(trainer, pair);
}

/* Add the occurrences of a change to a pair, which is made if it is worth keeping. The caller
 * writes their positions into the list. Return 0 or NO_MEMORY. */
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

/* Merge the occurrences of a pair, leave only their positions in its list, and record the changes
 * on both sides. */
static void merge_occurrences(Trainer *trainer, uint32_t pair, uint32_t merged)
{
    uint32_t *symbols = trainer->symbols;
    uint32_t left = (uint32_t)(trainer->pairs[pair].key >> SYMBOL_BITS);
    uint32_t right = (uint32_t)(trainer->pairs[pair].key & SYMBOL_MASK);
    uint32_t left_length = trainer->lengths[left];
    uint32_t length = left_length + trainer->lengths[right];
    uint32_t last = 0; /* start of the last merged symbol, 0 for none: there is a separator */
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
        /* Record the pair between two merged symbols with the second of them. */
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

/* Subtract the changes from the old pairs on both sides. If the neighbour on the left is a symbol
 * that the same merge has made, the old pair began with `right`, and the new pair has two merged
 * symbols. */
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

/* Write the positions at which the new pairs on the left of merged symbols start into their
 * lists. */
static void list_left(Trainer *trainer, const uint32_t *list, int64_t size)
{
    for (int64_t k = 0; k < size; k++) {
        uint32_t before = trainer->symbols[list[k] - 1];
        if (before != SEPARATOR)
            list_position(trainer, trainer->left.changes + before,
                          list[k] - trainer->lengths[before]);
    }
}

/* Write the positions of the new pairs on the right, without pairs of two merged symbols. */
static void list_right(Trainer *trainer, const uint32_t *list, int64_t size, uint32_t merged)
{
    uint32_t length = trainer->lengths[merged];

    for (int64_t k = 0; k < size; k++) {
        uint32_t after = trainer->symbols[list[k] + length];
        if (after != SEPARATOR && (k + 1 == size || list[k + 1] != list[k] + length))
            list_position(trainer, trainer->right.changes + after, list[k]);
    }
}

/* Make the new pairs on one side of merged symbols; return 0 or NO_MEMORY. */
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

/* Make the new pairs on both sides of merged symbols, and list their positions; return 0 or
 * NO_MEMORY. */
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

/* Return the most room in the pool that the lists of pairs with the symbol `merged` need. If it is
 * not a new symbol, such pairs may exist. Their lists are copied, and the list of (merged, merged)
 * twice. */
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

/* Merge a pair everywhere; return 0, or NO_MEMORY, after which the trainer can only be freed. */
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

/* ---- Functions for callers ---- */

/* Find the next pair to merge, its symbols and its count; return 1, 0 if there is none,
 * NO_MEMORY. */
API int llmgpu_trainer_best(Trainer *trainer, uint32_t *symbols, int64_t *count)
{
    uint32_t pair;
    if (trainer->num_pairs > trainer->pair_limit && index_pairs(trainer) != 0)
        return NO_MEMORY;
    int found = best_pair(trainer, &pair);
    while (found == 0 && trainer->kept > trainer->least) {
        trainer->kept /= 2; /* kept is `least` times a power of two */
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

/* Make up to `merges` merges, each into a new symbol. Stop earlier once the pairs had `work`
 * occurrences in all. Write the two symbols of each merge and its count; return the number of
 * merges, or NO_MEMORY. */
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

/* Make given merges: uint32_t (count, 3), left symbol, right symbol and result. Return 0,
 * NO_MEMORY, or WRONG_MERGE for a left or right symbol that does not exist, a result beyond the
 * limit, or a result that is an existing symbol of another length than the two together. */
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
