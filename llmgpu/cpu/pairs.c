/* The pairs of a trainer: a table of pairs, lists of their positions, and a heap of frequent
 * pairs. */
#include "trainer.h"

#ifndef POOL_SPARE
#define POOL_SPARE (INT64_C(1) << 22)
#endif

int make_pair_table(Trainer *trainer, uint64_t entries)
{
    free(trainer->table); /* all of its content can be made from `pairs` */
    trainer->table = malloc((size_t)entries * sizeof *trainer->table);
    if (trainer->table == NULL)
        return NO_MEMORY;
    memset(trainer->table, 0xFF, (size_t)entries * sizeof *trainer->table);
    trainer->mask = entries - 1;
    for (int64_t pair = 0; pair < trainer->num_pairs; pair++)
        *entry_of(trainer, trainer->pairs[pair].key) = (uint32_t)pair;
    return 0;
}

static int grow_pairs(Trainer *trainer)
{
    if (trainer->num_pairs + 1 >= NO_PAIR ||
        grow((void **)&trainer->pairs, &trainer->pairs_room, trainer->num_pairs + 1,
             sizeof *trainer->pairs) != 0)
        return NO_MEMORY;
    if ((uint64_t)trainer->pairs_room * 2 <= trainer->mask + 1)
        return 0;
    return make_pair_table(trainer, 2 * (trainer->mask + 1));
}

/* Return the pair of a key. A missing pair is made, without occurrences. Return NO_PAIR without
 * memory. */
uint32_t find_or_add(Trainer *trainer, uint64_t key)
{
    uint32_t *entry = entry_of(trainer, key);

    if (*entry != NO_PAIR)
        return *entry;
    if (trainer->num_pairs == trainer->pairs_room) {
        if (grow_pairs(trainer) != 0)
            return NO_PAIR;
        entry = entry_of(trainer, key);
    }
    *entry = (uint32_t)trainer->num_pairs++;
    trainer->pairs[*entry] = (Pair){.key = key};
    return *entry;
}

void drop_list(Trainer *trainer, uint32_t pair)
{
    trainer->pairs[pair].begin = 0;
    trainer->pairs[pair].size = 0;
}

/* Make a list for a pair at the end of the pool, which must have the room. */
void new_list(Trainer *trainer, uint32_t pair, int64_t room)
{
    uint32_t *head = trainer->pool + trainer->pool_used;

    head[0] = pair;
    head[1] = (uint32_t)room;
    trainer->pairs[pair].begin = trainer->pool_used + LIST_HEAD;
    trainer->pool_used += LIST_HEAD + room;
}

/* Remove lists without a pair from the pool, and positions to be skipped from all lists except that
 * of the pair `kept_whole`. */
static void compact_pool(Trainer *trainer, uint32_t kept_whole)
{
    int64_t used = trainer->pool_used, at = 0;

    trainer->pool_used = 0;
    while (at < used) {
        uint32_t pair = trainer->pool[at], *list = trainer->pool + at + LIST_HEAD;
        int64_t begin = at + LIST_HEAD, size = llabs(trainer->pairs[pair].size), kept = 0;
        at = begin + trainer->pool[at + 1];
        if (trainer->pairs[pair].begin != begin)
            continue;
        uint32_t left = (uint32_t)(trainer->pairs[pair].key >> SYMBOL_BITS);
        uint32_t right = (uint32_t)(trainer->pairs[pair].key & SYMBOL_MASK);
        uint32_t length = trainer->lengths[left];
        for (int64_t k = 0; k < size; k++)
            if (pair == kept_whole || (trainer->symbols[list[k]] == left &&
                                       trainer->symbols[list[k] + length] == right))
                list[kept++] = list[k];
        trainer->pairs[pair].size = trainer->pairs[pair].size < 0 ? -kept : kept;
        new_list(trainer, pair, kept);
        memmove(trainer->pool + trainer->pairs[pair].begin, list, (size_t)kept * sizeof *list);
    }
}

/* Make room for more lists; return 0 or NO_MEMORY. Existing lists move. The list of the pair
 * `kept_whole` keeps all its positions. */
int reserve_lists(Trainer *trainer, int64_t needed, uint32_t kept_whole)
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

int is_worth_keeping(const Trainer *trainer, uint64_t key, int64_t count)
{
    int64_t length = (int64_t)trainer->lengths[key >> SYMBOL_BITS] +
                     (int64_t)trainer->lengths[key & SYMBOL_MASK];
    return count >= trainer->kept && length <= trainer->longest;
}

/* ---- Candidates ---- */

static int ranks_before(const Candidate *one, const Candidate *other)
{
    return one->count != other->count ? one->count > other->count : one->key < other->key;
}

int push_candidate(Trainer *trainer, uint32_t pair)
{
    if (grow((void **)&trainer->heap, &trainer->heap_room, trainer->heap_used + 1,
             sizeof *trainer->heap) != 0)
        return NO_MEMORY;
    Candidate candidate = {trainer->pairs[pair].count, trainer->pairs[pair].key, pair};
    int64_t at = trainer->heap_used++;
    while (at > 0 && ranks_before(&candidate, &trainer->heap[(at - 1) / 2])) {
        trainer->heap[at] = trainer->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    trainer->heap[at] = candidate;
    return 0;
}

static void pop_candidate(Trainer *trainer)
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

    for (int64_t k = 0; k < trainer->num_pairs; k++)
        if (trainer->pairs[k].count > largest)
            largest = trainer->pairs[k].count;
    trainer->threshold = largest / 2 > trainer->kept ? largest / 2 : trainer->kept;
    for (int64_t pair = 0; pair < trainer->num_pairs; pair++)
        if (trainer->pairs[pair].count >= trainer->threshold &&
            push_candidate(trainer, (uint32_t)pair) != 0)
            return NO_MEMORY;
    return 0;
}

/* Find the next pair to merge; return 1, 0 if there is none, or NO_MEMORY. */
int best_pair(Trainer *trainer, uint32_t *pair)
{
    for (;;) {
        if (trainer->heap_used == 0) {
            if (lower_threshold(trainer) != 0)
                return NO_MEMORY;
            if (trainer->heap_used == 0)
                return 0;
        }
        *pair = trainer->heap[0].pair;
        if (trainer->heap[0].count == trainer->pairs[*pair].count)
            return 1;
        pop_candidate(trainer);
        if (trainer->pairs[*pair].count >= trainer->threshold && push_candidate(trainer, *pair) != 0)
            return NO_MEMORY;
    }
}
