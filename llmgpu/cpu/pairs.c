/* The pairs of a trainer: a table of them, where each occurs, and a heap of the most frequent ones. */
#include "trainer.h"

#ifndef POOL_SPARE
#define POOL_SPARE (INT64_C(1) << 22)
#endif

int make_pair_table(Trainer *trainer, uint64_t entries)
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
    if ((uint64_t)room * 2 <= trainer->mask + 1)
        return 0;
    return make_pair_table(trainer, 2 * (trainer->mask + 1));
}

/* Return a pair, made with no occurrences if it is new; NO_PAIR without memory. */
uint32_t find_or_add(Trainer *trainer, uint64_t key)
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

void drop_list(Trainer *trainer, uint32_t pair)
{
    trainer->begins[pair] = 0;
    trainer->sizes[pair] = 0;
}

/* Give a pair without a list one, in a pool that has the room. */
void new_list(Trainer *trainer, uint32_t pair, int64_t room)
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
    return count >= trainer->least && length <= trainer->longest;
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
    Candidate candidate = {trainer->pair_counts[pair], trainer->keys[pair], pair};
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

    for (int64_t pair = 0; pair < trainer->pairs; pair++)
        if (trainer->pair_counts[pair] > largest)
            largest = trainer->pair_counts[pair];
    trainer->threshold = largest / 2 > trainer->least ? largest / 2 : trainer->least;
    for (int64_t pair = 0; pair < trainer->pairs; pair++)
        if (trainer->pair_counts[pair] >= trainer->threshold &&
            push_candidate(trainer, (uint32_t)pair) != 0)
            return NO_MEMORY;
    return 0;
}

/* Find the pair to merge next; 1, 0 if there is none, or NO_MEMORY. */
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
        if (trainer->heap[0].count == trainer->pair_counts[*pair])
            return 1;
        pop_candidate(trainer);
        if (trainer->pair_counts[*pair] >= trainer->threshold && push_candidate(trainer, *pair) != 0)
            return NO_MEMORY;
    }
}
