/* What words are matched with, and how pairs rank: what matching.c and long_words.c share. */
#ifndef LLMGPU_MATCHING_H
#define LLMGPU_MATCHING_H

#include "engine.h"

typedef struct {
    uint64_t key; /* left id in the upper half, right id in the lower; NO_PAIR if free */
    uint32_t rank, result;
} Pair;

#define NO_PAIR UINT64_MAX

/* What words are matched with. Threads may share one once it is made.
 *
 * tokens: the ordinary tokens with their lowest ids; words that are tokens are taken whole if
 *     takes_whole. longest: bytes of the longest one.
 * filter: bits by the upper half of a word's hash, set for those of tokens. Most parts of words are
 *     no token, and this tells so without a look into the table, which is too large for near caches.
 * pairs: the list of merges; NULL if ranks are those of the bytes.
 * byte_ids: of single bytes, the unknown token's or NO_ID for those without a token.
 * byte_ranks, byte_results: of a byte and the next.
 * joined: a bit for each lead byte, byte before and byte after that are neighbours; NULL until
 *     it is made.
 * nodes, edges: the trie for greedy matching, else NULL, as in trie.py.
 * firsts, items, size, fuses: see `llmgpu_vocabulary_set_pieces`; NULL for other vocabularies.
 */
struct Vocabulary {
    WordTable tokens;
    int64_t longest;
    uint64_t *filter;
    uint32_t filter_mask;
    int takes_whole;
    Pair *pairs;
    uint64_t pair_mask;
    uint32_t byte_ids[256];
    uint32_t *byte_ranks, *byte_results;
    uint64_t *joined;
    const uint32_t *nodes, *edges;
    uint32_t unknown;
    const uint32_t *firsts, *items;
    uint32_t size;
    int fuses;
};

static inline Pair *find_pair(const Vocabulary *vocabulary, uint64_t key)
{
    uint64_t at = mix_words(key, 0);

    for (;; at++) {
        Pair *pair = vocabulary->pairs + (at & vocabulary->pair_mask);
        if (pair->key == key || pair->key == NO_PAIR)
            return pair;
    }
}

static inline uint32_t filter_index(const Vocabulary *vocabulary, const Word *word)
{
    return (uint32_t)(word->hash >> 32) & vocabulary->filter_mask;
}

static inline uint32_t token_id(const Vocabulary *vocabulary, const uint8_t *start, int64_t length)
{
    Word word;

    if (length > vocabulary->longest)
        return NO_ID;
    set_word(&word, start, length);
    uint32_t index = filter_index(vocabulary, &word);
    if (!(vocabulary->filter[index >> 6] >> (index & 63) & 1))
        return NO_ID;
    const Slot *slot = table_find(&vocabulary->tokens, &word);
    return slot_is_free(slot) ? NO_ID : slot->value[0];
}

/* Return the rank of two neighbours, NO_ID if they do not merge, and what they become.
 *
 * word: their bytes, of `length` in all. */
static inline uint32_t rank_of(const Vocabulary *vocabulary, const uint8_t *word, int64_t length,
                               uint32_t left, uint32_t right, uint32_t *result)
{
    if (length == 2) {
        int pair = word[0] << 8 | word[1];
        *result = vocabulary->byte_results[pair];
        return vocabulary->byte_ranks[pair];
    }
    if (vocabulary->pairs == NULL)
        return *result = token_id(vocabulary, word, length);
    const Pair *pair = find_pair(vocabulary, (uint64_t)left << 32 | right);
    *result = pair->result;
    return pair->rank;
}

/* Rank all pairs of bytes; 0, or NO_MEMORY. */
int rank_bytes(Vocabulary *vocabulary);

/* Turn the `count` symbols of a word of `length` bytes into ids, in the same memory; return how many
 * there are (pieces.c). */
int64_t finish_pieces(const Vocabulary *vocabulary, uint32_t *ids, int64_t count, int64_t length);

/* Write the ids of a word by merges to `ids`; return how many, or NO_MEMORY. For longer words. */
int64_t merge_long(const Vocabulary *vocabulary, Scratch *scratch, const uint8_t *word,
                   int64_t length, uint32_t *ids);

#endif
