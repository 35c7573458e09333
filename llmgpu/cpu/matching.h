/* Vocabularies and the ranks of pairs: the definitions that matching.c and long_words.c share. */
#ifndef LLMGPU_MATCHING_H
#define LLMGPU_MATCHING_H

#include "engine.h"

typedef struct {
    uint64_t key; /* left id in the upper half, right id in the lower; NO_PAIR if free */
    uint32_t rank, result;
} Pair;

#define NO_PAIR UINT64_MAX

/* Tokens as a tree of bytes, as in trie.py. */
typedef struct {
    const uint32_t *nodes, *edges;
} Trie;

/* How documents are prepared, see `llmgpu_vocabulary_set_documents`. begins: whether an added token
 * begins with each byte. */
typedef struct {
    const uint8_t *changeable;
    int has_prefix, is_late;
    Trie added;
    uint8_t begins[256];
} Documents;

/* A vocabulary for matching words. Threads may share it.
 *
 * tokens: the ordinary tokens with their ids, of equal tokens the lowest. longest: bytes of the
 *     longest token. takes_whole: whether a word that spells a token becomes this token without
 *     merging.
 * filter: a bit for each value of `filter_index`, set if a token has this value. Most parts of
 * words are not tokens. The filter finds this out without a look-up in the table, which is too
 * large for the nearest caches.
 * pairs: a hash table of the listed merges; NULL if a pair's rank is the id of the token it spells.
 * byte_ids: the id of each byte; for a byte without a token, the unknown token's id or NO_ID.
 * byte_ranks, byte_results: (65536,), of each pair of bytes, first byte << 8 | second byte.
 * joined: a bit for each combination of lead byte, byte before and byte after it, set if words must
 *     not be cut before this lead byte; NULL until `llmgpu_vocabulary_find_cuts`.
 * trie: for greedy matching; its nodes are NULL for merges.
 * firsts, items, size, fuses: see `llmgpu_vocabulary_set_pieces`; NULL for other vocabularies.
 * documents: how documents are prepared; NULL if they need nothing, or Python prepares them.
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
    Trie trie;
    uint32_t unknown;
    const uint32_t *firsts, *items;
    uint32_t size;
    int fuses;
    Documents *documents;
};

/* Return the child of a node to which a byte leads, 0 if there is none; children are sorted by
 * byte. */
static inline uint32_t child_of(const Trie *trie, uint32_t node, uint8_t byte)
{
    uint32_t low = trie->nodes[3 * (size_t)node];
    uint32_t count = trie->nodes[3 * (size_t)node + 1];

    while (count > 0) {
        uint32_t middle = low + count / 2;
        const uint32_t *edge = trie->edges + 2 * (size_t)middle;
        if (edge[0] == byte)
            return edge[1];
        if (edge[0] < byte) {
            low = middle + 1;
            count -= count / 2 + 1;
        } else {
            count /= 2;
        }
    }
    return 0;
}

/* Return the length of the longest token at p, and set *id to its id; 0 without a token. */
static inline int64_t longest_token(const Trie *trie, const uint8_t *p, const uint8_t *end,
                                    uint32_t *id)
{
    uint32_t node = 0;
    int64_t length = 0;

    for (int64_t k = 0; k < end - p; k++) {
        node = child_of(trie, node, p[k]);
        if (node == 0)
            break;
        uint32_t token = trie->nodes[3 * (size_t)node + 2];
        if (token != NO_ID) {
            *id = token;
            length = k + 1;
        }
    }
    return length;
}

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

/* Return the rank of a pair of neighbours, NO_ID if they don't merge. *result is set to the id that
 * the pair becomes.
 *
 * word: the bytes of both, `length` in all. left, right: their ids. */
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

/* Set byte_ranks and byte_results; return 0 or NO_MEMORY. */
int rank_bytes(Vocabulary *vocabulary);

/* Replace the `count` symbols of a word of `length` bytes by ids, in the same memory; return the
 * number of ids (pieces.c). */
int64_t finish_pieces(const Vocabulary *vocabulary, uint32_t *ids, int64_t count, int64_t length);

/* Write the ids of a long word by merges; return the number of ids, or NO_MEMORY (long_words.c). */
int64_t merge_long(const Vocabulary *vocabulary, Scratch *scratch, const uint8_t *word,
                   int64_t length, uint32_t *ids);

#endif
