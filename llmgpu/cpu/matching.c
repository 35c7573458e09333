/* Finding the tokens of a word, by merges or as the longest tokens from left to right.
 * Byte pair encoding merges the pair of the lowest rank, the leftmost of several, until no pair
 * merges. A vocabulary without a list of merges ranks a pair by the id of the token that it spells,
 * so the bytes of pairs are looked up. With a list, pairs of ids are looked up. In a short word,
 * the lowest rank is searched anew after every merge. long_words.c merges longer words.
 *
 * A word may be cut before a byte of 0xC0 or more if no token has the byte before the cut, this
 * byte and the byte after it as neighbours: then neither a merge nor a longest token crosses the
 * cut. Some tokens are never the result of merges: a word becomes such a token only if the whole
 * word spells it. A part of a word must not spell such a token, so no word is cut at the ends of
 * these tokens.
 */
#include "matching.h"

#define MOST_SEARCHED 48 /* the most symbols of a word that is merged without a heap */
#define FIRST_LEAD 0xC0
#define JOINED_BITS (64 * 256 * 256)

/* ---- Merging ---- */

/* A part of a word and its current id. rank, result: the rank of the pair of this part and the next
   one, and the id that the pair becomes. */
typedef struct {
    int start;
    uint32_t id, rank, result;
} Part;

static void rank_part(const Vocabulary *vocabulary, const uint8_t *word, Part *part)
{
    part->rank = rank_of(vocabulary, word + part->start, part[2].start - part->start, part->id,
                         part[1].id, &part->result);
}

static int64_t merge_short(const Vocabulary *vocabulary, const uint8_t *word, int length,
                           uint32_t *ids)
{
    Part parts[MOST_SEARCHED + 2];
    int count = length;

    for (int k = 0; k < length; k++) {
        parts[k].start = k;
        parts[k].id = vocabulary->byte_ids[word[k]];
    }
    parts[length].start = length;
    for (int k = 0; k + 1 < length; k++)
        rank_part(vocabulary, word, parts + k);
    while (count > 1) {
        int best = 0;
        for (int k = 1; k + 1 < count; k++)
            if (parts[k].rank < parts[best].rank)
                best = k;
        if (parts[best].rank == NO_ID)
            break;
        parts[best].id = parts[best].result;
        count--;
        /* Move all later parts, and the entry that marks the end of the word. */
        memmove(parts + best + 1, parts + best + 2, (size_t)(count - best) * sizeof *parts);
        if (best + 1 < count)
            rank_part(vocabulary, word, parts + best);
        if (best > 0)
            rank_part(vocabulary, word, parts + best - 1);
    }
    for (int k = 0; k < count; k++)
        ids[k] = parts[k].id;
    return count;
}

/* ---- Longest match ---- */

int is_greedy(const Vocabulary *vocabulary)
{
    return vocabulary->trie.nodes != NULL;
}

int64_t match_greedily(const Vocabulary *vocabulary, const uint8_t *text, int64_t *at, int64_t stop,
                       int64_t limit, uint32_t *ids)
{
    int64_t count = 0, position = *at;

    while (position < stop) {
        uint32_t id = vocabulary->unknown;
        int64_t length = longest_token(&vocabulary->trie, text + position, text + limit, &id);
        ids[count++] = id;
        position += length ? length : 1;
    }
    *at = position;
    return count;
}

int64_t match_word(const Vocabulary *vocabulary, Scratch *scratch, const uint8_t *word,
                   int64_t length, uint32_t *ids)
{
    if (is_greedy(vocabulary)) {
        int64_t at = 0;
        return match_greedily(vocabulary, word, &at, length, length, ids);
    }
    if (vocabulary->takes_whole) {
        ids[0] = token_id(vocabulary, word, length);
        if (ids[0] != NO_ID)
            return 1;
    }
    int64_t count = length <= MOST_SEARCHED
                        ? merge_short(vocabulary, word, (int)length, ids)
                        : merge_long(vocabulary, scratch, word, length, ids);
    if (vocabulary->firsts == NULL || count < 0)
        return count;
    return finish_pieces(vocabulary, ids, count, length);
}

/* ---- Cuts ---- */

static uint64_t joined_index(uint8_t lead, uint8_t before, uint8_t after)
{
    return (uint64_t)(lead & 0x3F) << 16 | (uint64_t)before << 8 | after;
}

int64_t first_part(const Vocabulary *vocabulary, const uint8_t *word, int64_t length)
{
    const uint64_t *joined = __atomic_load_n(&vocabulary->joined, __ATOMIC_ACQUIRE);

    if (joined == NULL)
        return length;
    for (int64_t k = 1; k < length; k++) {
        if (word[k] < FIRST_LEAD)
            continue;
        if (k + 1 == length) /* the bytes that follow are unknown, so do not cut */
            break;
        uint64_t index = joined_index(word[k], word[k - 1], word[k + 1]);
        if (!(joined[index >> 6] >> (index & 63) & 1))
            return k;
    }
    return length;
}

static void join(uint64_t *joined, uint64_t first, uint64_t last, uint64_t step)
{
    for (uint64_t index = first; index <= last; index += step)
        joined[index >> 6] |= UINT64_C(1) << (index & 63);
}

/* Mark the bytes that are neighbours in a token. whole: whether no merges result in the token. */
static void join_token(uint64_t *joined, const uint8_t *token, int64_t length, int whole)
{
    for (int64_t k = 1; k < length; k++) {
        if (token[k] < FIRST_LEAD)
            continue;
        uint64_t index = joined_index(token[k], token[k - 1], 0);
        if (k + 1 < length)
            join(joined, index | token[k + 1], index | token[k + 1], 1);
        else /* any byte may follow the token */
            join(joined, index, index | 0xFF, 1);
    }
    if (!whole || length < 2)
        return;
    /* Allow no cut after its last byte, and none before its first byte. */
    for (uint64_t lead = 0; lead < 64; lead++) {
        uint64_t index = lead << 16 | (uint64_t)token[length - 1] << 8;
        join(joined, index, index | 0xFF, 1);
    }
    if (token[0] >= FIRST_LEAD) {
        uint64_t index = (uint64_t)(token[0] & 0x3F) << 16 | token[1];
        join(joined, index, index | 0xFF00, 0x100);
    }
}

/* Find out where words may be cut. Encoders cut no words before this call. Only one thread may call
 * this at a time. Returns 0 or NO_MEMORY.
 *
 * data, offsets, tokens, count: as for `llmgpu_vocabulary_new`. */
API int llmgpu_vocabulary_find_cuts(Vocabulary *vocabulary, const uint8_t *data,
                                    const int64_t *offsets, const int64_t *tokens, int64_t count)
{
    Scratch scratch = {0};
    uint64_t *joined = calloc(JOINED_BITS / 64, sizeof *joined);
    uint32_t *ids = malloc((size_t)(vocabulary->longest + 1) * sizeof *ids);
    int status = joined == NULL || ids == NULL ? NO_MEMORY : 0;

    for (int64_t k = 0; k < count && status == 0; k++) {
        const uint8_t *token = data + offsets[tokens[k]];
        int64_t length = offsets[tokens[k] + 1] - offsets[tokens[k]];
        int64_t merged = 1;
        if (length > 1 && vocabulary->takes_whole && !is_greedy(vocabulary)) {
            merged = length <= MOST_SEARCHED
                         ? merge_short(vocabulary, token, (int)length, ids)
                         : merge_long(vocabulary, &scratch, token, length, ids);
            if (merged == 1 && ids[0] != token_id(vocabulary, token, length))
                merged = 2;
        }
        if (merged == NO_MEMORY)
            status = NO_MEMORY;
        else
            join_token(joined, token, length, merged > 1);
    }
    scratch_free(&scratch);
    free(ids);
    if (status == 0)
        __atomic_store_n(&vocabulary->joined, joined, __ATOMIC_RELEASE);
    else
        free(joined);
    return status;
}

/* Return the lowest id of an ordinary token that a text spells, or NO_ID. Padding follows the
 * text. */
API uint32_t llmgpu_find_token(const Vocabulary *vocabulary, const uint8_t *text, int64_t length)
{
    return token_id(vocabulary, text, length);
}

/* ---- Tables for a device ---- */

/* Write every way to cut a token into two tokens; return the number of ways.
 *
 * data, offsets, tokens, count: the arguments with which the vocabulary was made.
 * pairs: uint32_t (cuts, 3), left id, right id and the token's id, ascending by token, then by cut;
 *     has room for all cuts. Of equal tokens only the lowest id counts. */
API int64_t llmgpu_vocabulary_pairs(const Vocabulary *vocabulary, const uint8_t *data,
                                    const int64_t *offsets, const int64_t *tokens, int64_t count,
                                    uint32_t *pairs)
{
    int64_t found = 0;

    for (int64_t k = 0; k < count; k++) {
        const uint8_t *token = data + offsets[tokens[k]];
        int64_t length = offsets[tokens[k] + 1] - offsets[tokens[k]];
        if (length < 2 || token_id(vocabulary, token, length) != (uint32_t)tokens[k])
            continue;
        for (int64_t cut = 1; cut < length; cut++) {
            uint32_t left = token_id(vocabulary, token, cut);
            if (left == NO_ID)
                continue;
            uint32_t right = token_id(vocabulary, token + cut, length - cut);
            if (right == NO_ID)
                continue;
            pairs[3 * found] = left;
            pairs[3 * found + 1] = right;
            pairs[3 * found + 2] = (uint32_t)tokens[k];
            found++;
        }
    }
    return found;
}

/* A round of the hashes in wgsl/common/hash.wgsl. */
static inline uint32_t keyed(uint32_t number, uint32_t key)
{
    uint32_t secret = number ^ key;

    return secret + (secret & 0xFFFFu) * (secret >> 16);
}

/* Insert pairs into a hash table at the slots where wgsl/encode/02_merge.wgsl looks them up.
 *
 * pairs: uint32_t (count, 4), left id, right id, rank and result; no pair occurs twice.
 * table: uint32_t (slots, 4), every number is `empty` before. slots: a power of 2 above count.
 * key: uint32_t (4), of the device's hashes; the engine's own tables have another key. */
API void llmgpu_insert_pairs(const uint32_t *pairs, int64_t count, uint32_t *table, int64_t slots,
                             uint32_t empty, const uint32_t *key)
{
    for (int64_t k = 0; k < count; k++) {
        const uint32_t *pair = pairs + 4 * k;
        uint32_t hash = keyed(keyed(pair[0], key[0]) ^ pair[1], key[1]);
        hash = (hash ^ hash >> 15) * key[3];
        uint32_t at = (hash ^ hash >> 16) & (uint32_t)(slots - 1);
        while (table[4 * (size_t)at + 2] != empty)
            at = (at + 1) & (uint32_t)(slots - 1);
        memcpy(table + 4 * (size_t)at, pair, 4 * sizeof *pair);
    }
}

/* ---- Making a vocabulary ---- */

API void llmgpu_vocabulary_free(Vocabulary *vocabulary)
{
    if (vocabulary) {
        table_free(&vocabulary->tokens);
        free(vocabulary->filter);
        free(vocabulary->pairs);
        free(vocabulary->byte_ranks);
        free(vocabulary->byte_results);
        free(vocabulary->joined);
        free(vocabulary->documents);
    }
    free(vocabulary);
}

static int add_tokens(Vocabulary *vocabulary, const uint8_t *data, const int64_t *offsets,
                      const int64_t *tokens, int64_t count)
{
    for (int64_t k = 0; k < count; k++) {
        int64_t length = offsets[tokens[k] + 1] - offsets[tokens[k]];
        Word word;
        if (length == 0)
            continue;
        set_word(&word, data + offsets[tokens[k]], length);
        Slot *slot = table_find(&vocabulary->tokens, &word);
        if (!slot_is_free(slot))
            continue; /* of equal tokens, the table has the lowest id already */
        slot = table_insert(&vocabulary->tokens, &word);
        if (slot == NULL)
            return NO_MEMORY;
        slot->value[0] = (uint32_t)tokens[k];
        uint32_t index = filter_index(vocabulary, &word);
        vocabulary->filter[index >> 6] |= UINT64_C(1) << (index & 63);
        if (length > vocabulary->longest)
            vocabulary->longest = length;
        if (length == 1)
            vocabulary->byte_ids[word.start[0]] = (uint32_t)tokens[k];
    }
    return 0;
}

static int add_pairs(Vocabulary *vocabulary, const uint32_t *merges, int64_t count)
{
    uint64_t slots = 16;

    while (slots < 2 * (uint64_t)count)
        slots *= 2;
    vocabulary->pairs = malloc((size_t)slots * sizeof *vocabulary->pairs);
    if (vocabulary->pairs == NULL)
        return NO_MEMORY;
    vocabulary->pair_mask = slots - 1;
    for (uint64_t k = 0; k < slots; k++) {
        vocabulary->pairs[k].key = NO_PAIR;
        vocabulary->pairs[k].rank = NO_ID;
        vocabulary->pairs[k].result = NO_ID;
    }
    for (int64_t k = 0; k < count; k++) {
        const uint32_t *merge = merges + 4 * k;
        Pair *pair = find_pair(vocabulary, (uint64_t)merge[0] << 32 | merge[1]);
        pair->key = (uint64_t)merge[0] << 32 | merge[1];
        pair->result = merge[2];
        pair->rank = merge[3]; /* of a pair that is listed several times, the last place counts */
    }
    return 0;
}

int rank_bytes(Vocabulary *vocabulary)
{
    uint8_t word[2 + TEXT_PADDING] = {0};

    if (vocabulary->byte_ranks == NULL)
        vocabulary->byte_ranks = malloc((size_t)65536 * sizeof(uint32_t));
    if (vocabulary->byte_results == NULL)
        vocabulary->byte_results = malloc((size_t)65536 * sizeof(uint32_t));
    if (vocabulary->byte_ranks == NULL || vocabulary->byte_results == NULL)
        return NO_MEMORY;
    for (int pair = 0; pair < 65536; pair++) {
        uint32_t left = vocabulary->byte_ids[pair >> 8], right = vocabulary->byte_ids[pair & 0xFF];
        word[0] = (uint8_t)(pair >> 8);
        word[1] = (uint8_t)pair;
        if (vocabulary->pairs == NULL) {
            vocabulary->byte_ranks[pair] = token_id(vocabulary, word, 2);
            vocabulary->byte_results[pair] = vocabulary->byte_ranks[pair];
        } else {
            const Pair *found = find_pair(vocabulary, (uint64_t)left << 32 | right);
            vocabulary->byte_ranks[pair] = found->rank;
            vocabulary->byte_results[pair] = found->result;
        }
    }
    return 0;
}

/* Return a new vocabulary for matching words; NULL without memory.
 *
 * data: the bytes of all tokens, then padding. offsets: int64_t, token t is data[offsets[t]] up to
 *     offsets[t + 1]. tokens: int64_t (count,), the ids of ordinary tokens, ascending.
 * merges: uint32_t (num_merges, 4), left id, right id, result and rank; NULL if a pair's rank is
 *     the id of the token that it spells, which requires a token for each byte.
 * takes_whole: whether a word that spells a token becomes this token without merging. unknown: id
 *     of bytes without a token, or NO_ID.
 * nodes, edges: the trie for greedy matching, which must outlive the vocabulary; NULL for
 * merges. */
API Vocabulary *llmgpu_vocabulary_new(const uint8_t *data, const int64_t *offsets,
                                      const int64_t *tokens, int64_t count, const uint32_t *merges,
                                      int64_t num_merges, int takes_whole, uint32_t unknown,
                                      const uint32_t *nodes, const uint32_t *edges)
{
    Vocabulary *vocabulary = calloc(1, sizeof *vocabulary);
    int64_t slots = 1024;

    if (vocabulary == NULL)
        return NULL;
    vocabulary->takes_whole = takes_whole;
    vocabulary->unknown = unknown;
    vocabulary->trie = (Trie){nodes, edges};
    for (int byte = 0; byte < 256; byte++)
        vocabulary->byte_ids[byte] = unknown;
    while (slots < 2 * count)
        slots *= 2;
    vocabulary->filter_mask = slots < 1 << 28 ? (uint32_t)slots * 8 - 1 : UINT32_MAX;
    vocabulary->filter = calloc((size_t)vocabulary->filter_mask / 64 + 1, sizeof(uint64_t));
    if (vocabulary->filter == NULL || table_init(&vocabulary->tokens, slots) != 0 ||
        add_tokens(vocabulary, data, offsets, tokens, count) != 0 ||
        (merges && add_pairs(vocabulary, merges, num_merges) != 0) ||
        rank_bytes(vocabulary) != 0) {
        llmgpu_vocabulary_free(vocabulary);
        return NULL;
    }
    return vocabulary;
}
