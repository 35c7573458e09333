/* The trainer: the words, their pairs, and the candidates for the next merge; see `merging.c`. */
#ifndef LLMGPU_TRAINER_H
#define LLMGPU_TRAINER_H

#include "engine.h"

#define SEPARATOR UINT32_MAX
#define COVERED (UINT32_MAX - 1)
#define NO_PAIR UINT32_MAX
#define LIST_HEAD 2 /* numbers in the pool before a list: its pair and its room */
#define BLOCK_BITS 4 /* the word at a position is looked up by the block position >> BLOCK_BITS */
#define SYMBOL_BITS 20
#define SYMBOL_MASK ((UINT64_C(1) << SYMBOL_BITS) - 1)

/* How a merge changes the pairs with one neighbour, on one side of the merged symbols: by how many
   occurrences in the words (occurrences) and in the text (weight). */
typedef struct {
    int64_t weight;
    uint32_t occurrences;
    uint32_t pair; /* the new pair, or NO_PAIR */
    int64_t at;    /* index in the new pair's list for the next position */
} Change;

/* The changes on one side: one for each symbol that may be a neighbour, and one more for a
 * neighbour that the same merge has just made. */
typedef struct {
    Change *changes;
    uint32_t *touched; /* the neighbours that have changes */
    int64_t num_touched;
} Side;

typedef struct {
    uint64_t key;
    int64_t count;
    int64_t begin; /* index in the pool at which its list begins; 0 without a list */
    int64_t size; /* negative if the list is not sorted */
} Pair;

typedef struct {
    int64_t count;
    uint64_t key;
    uint32_t pair;
} Candidate;

typedef struct {
    /* The words. */
    uint32_t *symbols; /* by position, see merging.c */
    int64_t positions;
    int64_t *starts; /* the position of each word, then the end after the last separator */
    uint32_t *blocks;
    const int64_t *counts;
    int64_t words;
    int64_t total, remaining; /* number of symbols of the whole text, and of the distinct words */
    /* The symbols. */
    uint32_t *lengths;
    uint32_t next, most;
    /* The pairs. */
    Pair *pairs;
    int64_t num_pairs, pairs_room;
    int64_t most_pairs, pair_limit; /* with more pairs than pair_limit, words are indexed again */
    uint64_t pass, passes;          /* the share of pairs being counted; number of shares */
    uint32_t *pool; /* the lists; the first begins at LIST_HEAD, so none begins at 0 */
    int64_t pool_used, pool_room;
    uint32_t *table; /* pairs by key; the number of entries is a power of two, half are free */
    uint64_t mask;
    int64_t least, longest;
    int64_t kept; /* pairs that occur less often are not indexed; `least`, or more to save memory */
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

/* Return the entry of a pair in the table, or the free entry for it. */
static inline uint32_t *entry_of(const Trainer *trainer, uint64_t key)
{
    uint64_t at = mix_words(key, 0) & trainer->mask;

    while (trainer->table[at] != NO_PAIR && trainer->pairs[trainer->table[at]].key != key)
        at = (at + 1) & trainer->mask;
    return trainer->table + at;
}

/* pairs.c: pairs, their lists of positions, and the candidates. Functions that allocate return
 * NO_MEMORY or NO_PAIR if there is no memory. */
int make_pair_table(Trainer *trainer, uint64_t entries);
uint32_t find_or_add(Trainer *trainer, uint64_t key);
void drop_list(Trainer *trainer, uint32_t pair);
void new_list(Trainer *trainer, uint32_t pair, int64_t room);
int reserve_lists(Trainer *trainer, int64_t needed, uint32_t kept_whole);
int is_worth_keeping(const Trainer *trainer, uint64_t key, int64_t count);
int push_candidate(Trainer *trainer, uint32_t pair);
int best_pair(Trainer *trainer, uint32_t *pair);

/* trainer.c: count the pairs of the words, and list the positions of the pairs that are kept;
 * return 0 or NO_MEMORY. */
int index_pairs(Trainer *trainer);

#endif
