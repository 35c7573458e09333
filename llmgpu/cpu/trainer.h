/* The trainer: the words, their pairs and what may be merged next. `merging.c` says how it works. */
#ifndef LLMGPU_TRAINER_H
#define LLMGPU_TRAINER_H

#include "engine.h"

#define SEPARATOR UINT32_MAX
#define COVERED (UINT32_MAX - 1)
#define NO_PAIR UINT32_MAX
#define LIST_HEAD 2 /* numbers in the pool before a list: its pair, and its room */
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
    uint64_t key;
    int64_t count;
    int64_t begin; /* of its list in the pool; 0 for none */
    int64_t size; /* negative if the list is not sorted */
} Pair;

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
    Pair *pairs;
    int64_t num_pairs, pairs_room;
    int64_t most_pairs, pair_limit; /* room asked for; beyond the limit the words are indexed anew */
    uint64_t pass, passes;          /* which share of the pairs is counted, and how many there are */
    uint32_t *pool; /* lists from LIST_HEAD on, so that none begins at 0 */
    int64_t pool_used, pool_room;
    uint32_t *table; /* of pairs by key; as many entries as a power of two, half of them free */
    uint64_t mask;
    int64_t least, longest;
    int64_t kept; /* pairs that occur less often are not indexed: `least`, or more to save memory */
    /* The candidates. */
    Candidate *heap;
    int64_t heap_used, heap_room;
    int64_t threshold;
    Side left, right;
} Trainer;

static inline uint64_t key_of(uint32_t left, uint32_t right)
{
    return (uint64_t)left << SYMBOL_BITS | right;
}

/* Return the entry of a pair in the table, or the free one where it belongs. */
static inline uint32_t *entry_of(const Trainer *trainer, uint64_t key)
{
    uint64_t at = mix_words(key, 0) & trainer->mask;

    while (trainer->table[at] != NO_PAIR && trainer->pairs[trainer->table[at]].key != key)
        at = (at + 1) & trainer->mask;
    return trainer->table + at;
}

/* pairs.c: pairs, their lists of positions, and the candidates. Those that may fail return NO_MEMORY,
 * or NO_PAIR. */
int make_pair_table(Trainer *trainer, uint64_t entries);
uint32_t find_or_add(Trainer *trainer, uint64_t key);
void drop_list(Trainer *trainer, uint32_t pair);
void new_list(Trainer *trainer, uint32_t pair, int64_t room);
int reserve_lists(Trainer *trainer, int64_t needed, uint32_t kept_whole);
int is_worth_keeping(const Trainer *trainer, uint64_t key, int64_t count);
int push_candidate(Trainer *trainer, uint32_t pair);
int best_pair(Trainer *trainer, uint32_t *pair);

/* trainer.c: index the pairs of the words as they are now; 0, or NO_MEMORY. */
int index_pairs(Trainer *trainer);

#endif
