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
 */
#include "engine.h"

#define SEPARATOR UINT32_MAX
#define COVERED (UINT32_MAX - 1)
#define NO_PAIR UINT32_MAX
#define WRONG_MERGE (-2)
#define LIST_HEAD 2 /* numbers in the pool before a list: its pair, and its room */
#define POOL_SPARE (INT64_C(1) << 22)
#define BLOCK_BITS 4 /* a word is looked up by the block of its position */
#define SYMBOL_BITS 20
#define SYMBOL_MASK ((UINT64_C(1) << SYMBOL_BITS) - 1)

/* What a merge changes next to one symbol: of pairs on one side of the merged ones. */
typedef struct {
    int64_t weight;
    uint32_t occurrences;
    uint32_t pair; /* the new one, or NO_PAIR */
    int64_t at;    /* where its next position goes in its list */
} Change;

/* The changes on one side, by neighbour: one for each symbol, and one more for the symbol that the
 * same merge has just made. */
typedef struct {
    Change *changes;
    uint32_t *touched; /* the neighbours that have changes */
    int64_t num_touched;
} Side;

typedef struct {
    int64_t count;
    uint64_t key;
    uint32_t pair;
} Candidate;

typedef struct {
    /* The words. */
    uint32_t *symbols; /* by position */
    int64_t positions;
    int64_t *starts; /* of each word, and the end of the last with its separator */
    uint32_t *blocks;
    const int64_t *counts;
    int64_t words;
    int64_t total, remaining; /* symbols of the whole text, and of the distinct words */
    /* The symbols. */
    uint32_t *lengths;
    uint32_t next, most;
    /* The pairs. */
    uint64_t *keys;
    int64_t *pair_counts;
    int64_t *begins; /* of each pair's list in the pool; 0 for none */
    int64_t *sizes; /* negative if the list is not sorted */
    uint32_t *pool; /* lists from LIST_HEAD on, so that none begins at 0 */
    int64_t pool_used, pool_room;
    int64_t pairs, pairs_room;
    uint32_t *table; /* of pairs by key; as many entries as a power of two, half of them free */
    uint64_t mask;
    int64_t least, longest;
    /* The candidates. */
    Candidate *heap;
    int64_t heap_used, heap_room;
    int64_t threshold;
    Side left, right;
} Trainer;

static int64_t weight_at(const Trainer *trainer, uint32_t position)
{
    uint32_t word = trainer->blocks[position >> BLOCK_BITS];

    while (trainer->starts[word + 1] <= position)
        word++;
    return trainer->counts[word];
}

/* ---- Pairs ---- */

static uint64_t key_of(uint32_t left, uint32_t right)
{
    return (uint64_t)left << SYMBOL_BITS | right;
}

/* Return the entry of a pair in the table, or the free one where it belongs. */
static uint32_t *entry_of(const Trainer *trainer, uint64_t key)
{
    uint64_t at = mix_words(key, 0) & trainer->mask;

    while (trainer->table[at] != NO_PAIR && trainer->keys[trainer->table[at]] != key)
        at = (at + 1) & trainer->mask;
    return trainer->table + at;
}

static int make_table(Trainer *trainer, uint64_t entries)
{
    uint32_t *table = malloc((size_t)entries * sizeof *table);

    if (table == NULL)
        return NO_MEMORY;
    memset(table, 0xFF, (size_t)entries * sizeof *table);
    free(trainer->table);
    trainer->table = table;
    trainer->mask = entries - 1;
    for (int64_t pair = 0; pair < trainer->pairs; pair++)
        *entry_of(trainer, trainer->keys[pair]) = (uint32_t)pair;
    return 0;
}

static int grow_pairs(Trainer *trainer)
{
    int64_t needed = trainer->pairs + 1, room = trainer->pairs_room;
    int64_t rooms[3] = {room, room, room};

    if (needed >= NO_PAIR ||
        grow((void **)&trainer->keys, &rooms[0], needed, sizeof *trainer->keys) != 0 ||
        grow((void **)&trainer->pair_counts, &rooms[1], needed, sizeof *trainer->pair_counts) != 0 ||
        grow((void **)&trainer->begins, &rooms[2], needed, sizeof *trainer->begins) != 0 ||
        grow((void **)&trainer->sizes, &room, needed, sizeof *trainer->sizes) != 0)
        return NO_MEMORY;
    trainer->pairs_room = room;
    return (uint64_t)room * 2 > trainer->mask + 1 ? make_table(trainer, 2 * (trainer->mask + 1)) : 0;
}

/* Return a pair, made with no occurrences if it is new; NO_PAIR without memory. */
static uint32_t find_or_add(Trainer *trainer, uint64_t key)
{
    uint32_t *entry = entry_of(trainer, key);

    if (*entry != NO_PAIR)
        return *entry;
    if (trainer->pairs == trainer->pairs_room) {
        if (grow_pairs(trainer) != 0)
            return NO_PAIR;
        entry = entry_of(trainer, key);
    }
    uint32_t pair = (uint32_t)trainer->pairs++;
    trainer->keys[pair] = key;
    trainer->pair_counts[pair] = 0;
    trainer->begins[pair] = 0;
    trainer->sizes[pair] = 0;
    *entry = pair;
    return pair;
}

static void drop_list(Trainer *trainer, uint32_t pair)
{
    trainer->begins[pair] = 0;
    trainer->sizes[pair] = 0;
}

/* Give a pair without a list one, in a pool that has the room. */
static void new_list(Trainer *trainer, uint32_t pair, int64_t room)
{
    uint32_t *head = trainer->pool + trainer->pool_used;

    head[0] = pair;
    head[1] = (uint32_t)room;
    trainer->begins[pair] = trainer->pool_used + LIST_HEAD;
    trainer->pool_used += LIST_HEAD + room;
}

/* Take out of the pool what no pair has, and of each list but one the positions to be skipped. */
static void compact_pool(Trainer *trainer, uint32_t kept_whole)
{
    int64_t used = trainer->pool_used, at = 0;

    trainer->pool_used = 0;
    while (at < used) {
        uint32_t pair = trainer->pool[at], *list = trainer->pool + at + LIST_HEAD;
        int64_t begin = at + LIST_HEAD, size = llabs(trainer->sizes[pair]), kept = 0;
        at = begin + trainer->pool[at + 1];
        if (trainer->begins[pair] != begin)
            continue;
        uint32_t left = (uint32_t)(trainer->keys[pair] >> SYMBOL_BITS);
        uint32_t right = (uint32_t)(trainer->keys[pair] & SYMBOL_MASK);
        uint32_t length = trainer->lengths[left];
        for (int64_t k = 0; k < size; k++)
            if (pair == kept_whole || (trainer->symbols[list[k]] == left &&
                                       trainer->symbols[list[k] + length] == right))
                list[kept++] = list[k];
        trainer->sizes[pair] = trainer->sizes[pair] < 0 ? -kept : kept;
        new_list(trainer, pair, kept);
        memmove(trainer->pool + trainer->begins[pair], list, (size_t)kept * sizeof *list);
    }
}

/* Make room for more lists; those that exist move, and one of them keeps all its positions. */
static int reserve_lists(Trainer *trainer, int64_t needed, uint32_t kept_whole)
{
    if (trainer->pool_used + needed <= trainer->pool_room)
        return 0;
    compact_pool(trainer, kept_whole);
    int64_t room = trainer->pool_used + needed;
    room += room / 8 > POOL_SPARE ? room / 8 : POOL_SPARE;
    uint32_t *pool = realloc(trainer->pool, (size_t)room * sizeof *pool);
    if (pool == NULL)
        return NO_MEMORY;
    trainer->pool = pool;
    trainer->pool_room = room;
    return 0;
}

static int is_worth_keeping(const Trainer *trainer, uint64_t key, int64_t count)
{
    int64_t length = (int64_t)trainer->lengths[key >> SYMBOL_BITS] +
                     (int64_t)trainer->lengths[key & SYMBOL_MASK];
    return count >= trainer->least && length <= trainer->longest;
}

/* ---- Candidates ---- */

static int ranks_before(const Candidate *one, const Candidate *other)
{
    return one->count != other->count ? one->count > other->count : one->key < other->key;
}

static int push(Trainer *trainer, uint32_t pair)
{
    if (grow((void **)&trainer->heap, &trainer->heap_room, trainer->heap_used + 1,
             sizeof *trainer->heap) != 0)
        return NO_MEMORY;
    Candidate candidate = {trainer->pair_counts[pair], trainer->keys[pair], pair};
    int64_t at = trainer->heap_used++;
    while (at > 0 && ranks_before(&candidate, &trainer->heap[(at - 1) / 2])) {
        trainer->heap[at] = trainer->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    trainer->heap[at] = candidate;
    return 0;
}

static void pop(Trainer *trainer)
{
    Candidate last = trainer->heap[--trainer->heap_used];
    int64_t at = 0;

    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= trainer->heap_used)
            break;
        if (child + 1 < trainer->heap_used &&
            ranks_before(&trainer->heap[child + 1], &trainer->heap[child]))
            child++;
        if (!ranks_before(&trainer->heap[child], &last))
            break;
        trainer->heap[at] = trainer->heap[child];
        at = child;
    }
    trainer->heap[at] = last;
}

static int lower_threshold(Trainer *trainer)
{
    int64_t largest = 0;

    for (int64_t pair = 0; pair < trainer->pairs; pair++)
        if (trainer->pair_counts[pair] > largest)
            largest = trainer->pair_counts[pair];
    trainer->threshold = largest / 2 > trainer->least ? largest / 2 : trainer->least;
    for (int64_t pair = 0; pair < trainer->pairs; pair++)
        if (trainer->pair_counts[pair] >= trainer->threshold && push(trainer, (uint32_t)pair) != 0)
            return NO_MEMORY;
    return 0;
}

/* Find the pair to merge next; 1, 0 if there is none, or NO_MEMORY. */
static int best_pair(Trainer *trainer, uint32_t *pair)
{
    for (;;) {
        if (trainer->heap_used == 0) {
            if (lower_threshold(trainer) != 0)
                return NO_MEMORY;
            if (trainer->heap_used == 0)
                return 0;
        }
        *pair = trainer->heap[0].pair;
        if (trainer->heap[0].count == trainer->pair_counts[*pair])
            return 1;
        pop(trainer);
        if (trainer->pair_counts[*pair] >= trainer->threshold && push(trainer, *pair) != 0)
            return NO_MEMORY;
    }
}

/* ---- Merging ---- */

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
    trainer->pair_counts[pair] -= weight;
    if (trainer->pair_counts[pair] < trainer->least)
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
    int64_t size = llabs(trainer->sizes[pair]);
    int64_t before = trainer->begins[pair];
    new_list(trainer, pair, size + change->occurrences);
    trainer->sizes[pair] = size + change->occurrences;
    if (size > 0) {
        memcpy(trainer->pool + trainer->begins[pair], trainer->pool + before,
               (size_t)size * sizeof *trainer->pool);
        trainer->sizes[pair] = -trainer->sizes[pair];
    }
    trainer->pair_counts[pair] += change->weight;
    change->pair = pair;
    change->at = size;
    return trainer->pair_counts[pair] >= trainer->threshold ? push(trainer, pair) : 0;
}

/* Merge the occurrences of a pair, leave those in its list, and note what changes on both sides. */
static void merge_occurrences(Trainer *trainer, uint32_t pair, uint32_t merged)
{
    uint32_t *symbols = trainer->symbols;
    uint32_t left = (uint32_t)(trainer->keys[pair] >> SYMBOL_BITS);
    uint32_t right = (uint32_t)(trainer->keys[pair] & SYMBOL_MASK);
    uint32_t left_length = trainer->lengths[left];
    uint32_t length = left_length + trainer->lengths[right];
    uint32_t last = 0; /* where the last merged symbol starts; position 0 is a separator */
    uint32_t *list = trainer->pool + trainer->begins[pair];
    int64_t made = 0;

    for (int64_t k = 0; k < trainer->sizes[pair]; k++) {
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
    trainer->sizes[pair] = made;
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
        trainer->pool[trainer->begins[change->pair] + change->at++] = position;
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
            needed += pair == NO_PAIR ? 0 : llabs(trainer->sizes[pair]);
        }
    return is_new ? needed : 2 * needed;
}

/* Merge a pair everywhere; 0, or NO_MEMORY, after which the trainer can only be freed. */
static int merge(Trainer *trainer, uint32_t pair, uint32_t merged, int is_new)
{
    uint32_t left = (uint32_t)(trainer->keys[pair] >> SYMBOL_BITS);
    uint32_t right = (uint32_t)(trainer->keys[pair] & SYMBOL_MASK);

    if (trainer->sizes[pair] < 0) {
        trainer->sizes[pair] = -trainer->sizes[pair];
        qsort(trainer->pool + trainer->begins[pair], (size_t)trainer->sizes[pair],
              sizeof *trainer->pool, compare_positions);
    }
    merge_occurrences(trainer, pair, merged);
    trainer->lengths[merged] = trainer->lengths[left] + trainer->lengths[right];
    if (reserve_lists(trainer, needed_room(trainer, merged, is_new), pair) != 0)
        return NO_MEMORY;
    const uint32_t *list = trainer->pool + trainer->begins[pair];
    int64_t size = trainer->sizes[pair];
    drop_list(trainer, pair);
    lose_changes(trainer, left, right, merged);
    trainer->pair_counts[pair] = 0;
    return gain_pairs(trainer, list, size, merged);
}

/* ---- The start ---- */

/* Return a symbol of the words as they are given, in `width` bytes. */
static uint32_t given_symbol(const void *symbols, int64_t at, int width)
{
    return width == 1 ? ((const uint8_t *)symbols)[at] : ((const uint32_t *)symbols)[at];
}

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

/* Call `found` with each place where a pair starts in the words; 0, or what it returns. */
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
    uint32_t pair = find_or_add(trainer, key);

    (void)at;
    if (pair == NO_PAIR)
        return NO_MEMORY;
    trainer->pair_counts[pair] += weight;
    trainer->sizes[pair]++;
    return 0;
}

static int list_one(Trainer *trainer, uint64_t key, uint32_t at, int64_t weight)
{
    uint32_t pair = *entry_of(trainer, key);

    (void)weight;
    if (trainer->begins[pair] != 0)
        trainer->pool[trainer->begins[pair] + trainer->sizes[pair]++] = at;
    return 0;
}

/* Count the pairs that the words start out with, and list their positions. */
static int index_pairs(Trainer *trainer)
{
    if (each_pair(trainer, count_one) != 0)
        return NO_MEMORY;
    int64_t needed = 0;
    for (int64_t pair = 0; pair < trainer->pairs; pair++)
        if (is_worth_keeping(trainer, trainer->keys[pair], trainer->pair_counts[pair]))
            needed += LIST_HEAD + trainer->sizes[pair];
    if (reserve_lists(trainer, needed, NO_PAIR) != 0)
        return NO_MEMORY;
    for (int64_t pair = 0; pair < trainer->pairs; pair++) {
        int64_t size = trainer->sizes[pair];
        trainer->sizes[pair] = 0;
        if (is_worth_keeping(trainer, trainer->keys[pair], trainer->pair_counts[pair]))
            new_list(trainer, (uint32_t)pair, size);
        else
            trainer->pair_counts[pair] = 0;
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
                    trainer->keys,    trainer->begins,  trainer->pair_counts, trainer->sizes,
                    trainer->table,   trainer->heap,   trainer->pool};
    for (size_t k = 0; k < sizeof rest / sizeof *rest; k++)
        free(rest[k]);
    free(trainer);
}

/* Make a trainer.
 *
 * symbols, offsets: the words end to end, in `width` bytes each, 1 or 4, and where each starts in
 *     them. counts: how often each word occurs; kept alive by the caller.
 * lengths: of the first `known` symbols in bytes. most: symbols there may be, up to 2^20.
 * total: symbols of the whole text.
 * least, longest: pairs that occur less often, or have more bytes, are not merged.
 * Words and symbols may have up to 2^32 - 3 bytes and separators in all. NULL without memory.
 */
API Trainer *llmgpu_trainer_new(const void *symbols, int width, const int64_t *offsets,
                                const int64_t *counts, int64_t words, const uint32_t *lengths,
                                int64_t known, int64_t most, int64_t total, int64_t least,
                                int64_t longest)
{
    Trainer *trainer = calloc(1, sizeof *trainer);
    if (trainer == NULL)
        return NULL;
    trainer->counts = counts;
    trainer->words = words;
    trainer->total = total;
    trainer->next = (uint32_t)known;
    trainer->most = (uint32_t)most;
    trainer->least = least;
    trainer->longest = longest;
    trainer->threshold = INT64_MAX;
    trainer->lengths = malloc((size_t)(most + 1) * sizeof *trainer->lengths);
    Side *sides[2] = {&trainer->left, &trainer->right};
    int failed = trainer->lengths == NULL || make_table(trainer, 4096) != 0;
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

/* ---- What callers ask for ---- */

/* Find the pair that is merged next, its symbols and its count; 1, 0 if there is none, NO_MEMORY. */
API int llmgpu_trainer_best(Trainer *trainer, uint32_t *symbols, int64_t *count)
{
    uint32_t pair;
    int found = best_pair(trainer, &pair);

    if (found == 1) {
        symbols[0] = (uint32_t)(trainer->keys[pair] >> SYMBOL_BITS);
        symbols[1] = (uint32_t)(trainer->keys[pair] & SYMBOL_MASK);
        *count = trainer->pair_counts[pair];
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
        work -= llabs(trainer->sizes[pair]);
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
        if (pair != NO_PAIR && trainer->pair_counts[pair] > 0 &&
            merge(trainer, pair, result, is_new) != 0)
            return NO_MEMORY;
    }
    return 0;
}

/* Return how many symbols the distinct words have, and how many the whole text has. */
API int64_t llmgpu_trainer_size(const Trainer *trainer, int64_t *total)
{
    *total = trainer->total;
    return trainer->remaining;
}

/* Write the words of two symbols or more: symbols, where each word ends in them, and counts; and the
 * lengths of all `known` symbols. Return how many words there are. */
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
