/* What the files of the CPU engine share: reading bytes, patterns, and tables of distinct words.
 *
 * Plain C99 for GCC and Clang, without Python's API, so that one library serves every Python. No
 * function keeps state of its own but the hash keys, which are set once: threads may call all of them,
 * each with objects of its own where the comment does not say that an object may be shared.
 *
 * A text is followed by TEXT_PADDING readable bytes of any value. Lengths and positions are int64_t.
 * Functions that allocate return NO_MEMORY, or NULL, if there is no memory; their objects stay whole.
 */
#ifndef LLMGPU_ENGINE_H
#define LLMGPU_ENGINE_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

#define TEXT_PADDING 16
#define NO_MEMORY (-1)
#define NO_ID UINT32_MAX

/* Of eight bytes, the lowest bits and the top bits. */
#define ONES UINT64_C(0x0101010101010101)
#define TOPS UINT64_C(0x8080808080808080)

/* Return the eight bytes from p on, the first one lowest. */
static inline uint64_t load64(const uint8_t *p)
{
    uint64_t value;
    memcpy(&value, p, sizeof value);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    return value;
}

/* Return how many bytes come before the first one whose top bit is set in a number other than 0. */
static inline int64_t bytes_before(uint64_t top_bits)
{
    return __builtin_ctzll(top_bits) >> 3;
}

/* ---- UTF-8 (texts.c) ---- */

static inline int is_continuation(uint8_t byte)
{
    return (byte & 0xC0) == 0x80;
}

/* Decode the character beyond ASCII at p; return its bytes, 0 if it is not valid UTF-8. */
static inline int decode(const uint8_t *p, const uint8_t *end, uint32_t *point)
{
    uint8_t lead = p[0];
    int64_t room = end - p;

    if (lead < 0xC2 || lead > 0xF4 || room < 2 || !is_continuation(p[1]))
        return 0;
    if (lead < 0xE0) {
        *point = (uint32_t)(lead & 0x1F) << 6 | (p[1] & 0x3F);
        return 2;
    }
    if (room < 3 || !is_continuation(p[2]))
        return 0;
    if (lead < 0xF0) {
        *point = (uint32_t)(lead & 0xF) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
        return *point < 0x800 || (*point >= 0xD800 && *point < 0xE000) ? 0 : 3;
    }
    if (room < 4 || !is_continuation(p[3]))
        return 0;
    *point = (uint32_t)(lead & 7) << 18 | (uint32_t)(p[1] & 0x3F) << 12 |
             (uint32_t)(p[2] & 0x3F) << 6 | (p[3] & 0x3F);
    return *point < 0x10000 || *point > 0x10FFFF ? 0 : 4;
}

/* Return where the first invalid UTF-8 sequence of a text begins, or its length. */
API int64_t llmgpu_valid_utf8(const uint8_t *text, int64_t length);

/* ---- Patterns (pretokens.c) ---- */

/* RULE_MARKS is the rule of the patterns that have no name in pretokens.c. */
enum pattern_rule {
    RULE_NONE,
    RULE_CLASS,
    RULE_GPT2,
    RULE_CL100K,
    RULE_O200K,
    RULE_NEIGHBOURS,
    RULE_MARKS
};

/* How text is cut. Threads may share one.
 *
 * digits: a pre-token holds up to this many numbers (RULE_CL100K).
 * whole_at_end: white space at the end of a document is one pre-token (RULE_CL100K).
 * classes: uint8_t (0x110000,), the class of each code point, as in unicode_classes.py; or bits that
 *     say where text may be cut (RULE_NEIGHBOURS), as in neighbours.py.
 * kinds: of single bytes, a bit for each class; 0 where a character beyond ASCII may begin.
 */
typedef struct {
    enum pattern_rule rule;
    int digits;
    int whole_at_end;
    const uint8_t *classes;
    uint8_t kinds[256];
} Pattern;

/* Write the ends of the pre-tokens of a document, from position `at` on, where one starts.
 *
 * marks: uint8_t, 1 where pre-tokens start (RULE_MARKS), else NULL.
 * limit: where the document ends. stop: no pre-token from there on is wanted.
 * Returns how many ends it has written, `room` at most.
 */
int64_t pretoken_ends(const Pattern *pattern, const uint8_t *text, const uint8_t *marks, int64_t at,
                      int64_t limit, int64_t stop, int64_t *ends, int64_t room);

/* Return the last position in (from, at] at which a pre-token starts, whatever precedes `from` or
 * follows `limit`, where the document may end; `from` if none is found. */
int64_t last_certain_start(const Pattern *pattern, const uint8_t *text, const uint8_t *marks,
                           int64_t from, int64_t at, int64_t limit);

/* Return where the contraction ends that the apostrophe at p opens, or NULL. */
const uint8_t *contraction_end(const uint8_t *p, const uint8_t *end, int any_case);

/* Return where the first part of a document ends that starts at p, by the rule of neighbours
 * (pieces.c). */
const uint8_t *neighbours_end(const uint8_t *joined, const uint8_t *p, const uint8_t *end);

/* Whether a text that begins at `start` may be cut at p > start. */
int neighbours_part(const uint8_t *joined, const uint8_t *start, const uint8_t *p,
                    const uint8_t *end);

#if defined(__SSE2__) && !defined(LLMGPU_PLAIN) /* tests leave the blocks out */
#define HAS_BLOCKS 1
#else
#define HAS_BLOCKS 0
#endif

/* Return a bit for each of up to 64 bytes at p at which a pre-token certainly starts, by rules gpt2,
 * cl100k and o200k (blocks.c). One starts at p; another follows the last only if there are others.
 * end: where the document ends, from which on none is. */
uint64_t block_starts(const Pattern *pattern, const uint8_t *p, const uint8_t *end);

/* ---- Tables of distinct words (words.c) ---- */

#define LONGEST_INLINE 15 /* bytes of a word that is kept in its slot */
#define LONG_TAG (UINT64_C(0xFF) << 56)

/* A word is identified by `low` and `high`: its bytes in order and its length in the top byte; or
 * for longer words a hash, and LONG_TAG with the place of its bytes. high is 0 in free slots. */
typedef struct {
    uint64_t low, high;
    uint32_t value[4];
} Slot;

/* Slots are a power of two in number, at most half of them taken, probed one after the other. */
typedef struct {
    Slot *slots;
    uint64_t mask; /* number of slots - 1 */
    int64_t words;
    uint8_t *bytes; /* of longer words: length, then bytes */
    int64_t bytes_used, bytes_room;
} WordTable;

/* A word that is looked up. */
typedef struct {
    const uint8_t *start;
    int64_t length;
    uint64_t low, high, hash;
} Word;

#ifndef LLMGPU_HASH_MASK /* tests let words collide */
#define LLMGPU_HASH_MASK UINT64_MAX
#endif

/* Random numbers of this process, see llmgpu_set_hash_keys in words.c. All hashes of tables depend on
 * them, so that nobody can choose words that collide; no result does. */
extern uint64_t hash_keys[4];

/* Multiply, and fold the product of 128 bits: its low half xor its high half. */
static inline uint64_t fold(uint64_t a, uint64_t b)
{
#ifdef __SIZEOF_INT128__
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
#else
    uint64_t low_a = a & UINT32_MAX, high_a = a >> 32, low_b = b & UINT32_MAX, high_b = b >> 32;
    uint64_t middle = low_a * high_b + (low_a * low_b >> 32);
    uint64_t other = high_a * low_b + (middle & UINT32_MAX);
    return a * b ^ (high_a * high_b + (middle >> 32) + (other >> 32));
#endif
}

/* Hash two numbers by a folded product of both, each xor a key: which numbers collide depends on the
 * keys, unlike with an invertible mix between keys. */
static inline uint64_t mix_words(uint64_t low, uint64_t high)
{
    return fold(low ^ hash_keys[0], high ^ hash_keys[1]) & LLMGPU_HASH_MASK;
}

uint64_t hash_long(const uint8_t *start, int64_t length);

/* By length, the bytes of the first eight that belong to a word; 16 later, those of the next eight. */
extern const uint64_t word_masks[32];

/* Make what identifies the word of `length` bytes, 1 or more, at `start`. */
static inline void set_word(Word *word, const uint8_t *start, int64_t length)
{
    uint64_t low, high;

    if (UNLIKELY(length > LONGEST_INLINE)) {
        low = hash_long(start, length);
        high = UINT64_MAX; /* in no slot: the bytes have to be compared */
        word->hash = low;
    } else {
        /* Without branches on the length, which are hard to predict. */
        low = load64(start) & word_masks[length];
        high = (load64(start + 8) & word_masks[16 + length]) | (uint64_t)length << 56;
        word->hash = mix_words(low, high);
    }
    word->start = start;
    word->length = length;
    word->low = low;
    word->high = high;
}

int table_init(WordTable *table, int64_t slots);
void table_free(WordTable *table);

/* Return the slot of a word, or the free one where it belongs. */
Slot *table_find(const WordTable *table, const Word *word);

static inline int slot_is_free(const Slot *slot)
{
    return slot->high == 0;
}

/* Put a new word into the table; return its slot, with values undefined, or NULL without memory. */
Slot *table_insert(WordTable *table, const Word *word);

/* Return the bytes of the word in a slot, and its length; `room` may be used for 16 bytes. */
const uint8_t *slot_word(const WordTable *table, const Slot *slot, uint8_t *room, int64_t *length);

/* Make room for `needed` items of `size` bytes in an array that grows; 0, or NO_MEMORY. */
int grow(void **items, int64_t *room, int64_t needed, size_t size);

/* Return zeros in memory with few page table entries; NULL without memory. Free it by its size. */
void *zero_pages(size_t bytes);
void free_pages(void *pages, size_t bytes);

/* ---- Words with ids that threads share (shared_words.c) ---- */

#define MOST_INLINE 3 /* ids of a word that are kept in its slot */

typedef struct SharedWords SharedWords;

/* value: the number of ids, and the ids or a pointer to them. */
typedef struct SharedSlots {
    Slot *slots;
    uint64_t mask;
    struct SharedSlots *older;
} SharedSlots;

/* Return the slots, which may be replaced by others any time; these stay as they are. */
const SharedSlots *shared_table(const SharedWords *words);

/* Return the slot of a word, or NULL. */
const Slot *shared_find(const SharedSlots *table, const Word *word);

/* Keep a word with its ids, if there is room. */
void shared_insert(SharedWords *words, const Word *word, const uint32_t *ids, int64_t count);

/* ---- Vocabularies (matching.c) ---- */

typedef struct Vocabulary Vocabulary;

/* Memory for the matching of one thread with one vocabulary; see long_words.c. */
typedef struct {
    void *symbols, *heap, *windows[2];
    int64_t symbol_room, heap_room, window_room[2];
    int stages;
} Scratch;

void scratch_free(Scratch *scratch);

/* Whether words are matched by the longest token first. */
int is_greedy(const Vocabulary *vocabulary);

/* Write the ids of a word to `ids`, which has room for one for each byte; NO_ID for a byte without
 * a token. Returns how many, or NO_MEMORY. */
int64_t match_word(const Vocabulary *vocabulary, Scratch *scratch, const uint8_t *word,
                   int64_t length, uint32_t *ids);

/* Write the longest tokens from `at` on that start before `stop` and end by `limit`; return how
 * many, and where the last one ends in `at`. */
int64_t match_greedily(const Vocabulary *vocabulary, const uint8_t *text, int64_t *at, int64_t stop,
                       int64_t limit, uint32_t *ids);

/* Return the length of the first part of a word when it is cut where no token can lie across. */
int64_t first_part(const Vocabulary *vocabulary, const uint8_t *word, int64_t length);

/* ---- Encoding (encode.c, parts.c) ---- */

/* A text that is encoded.
 *
 * text: `length` bytes, then padding. marks: see `pretoken_ends`.
 * entry: where the first token starts; at 0 a pre-token does.
 * main_end: no token that starts from there on is wanted; pre-tokens end there, except those that
 *     are cut anywhere (RULE_NONE and greedy matching).
 * starts: int64_t (num_starts,), where documents begin in the text, ascending. For the first
 *     `own_starts` of them token_starts becomes the number of ids before it. */
typedef struct {
    const uint8_t *text, *marks;
    int64_t length, main_end, entry;
    const int64_t *starts;
    int64_t num_starts, own_starts, *token_starts;
} Text;

#define MOST_WAITING 4 /* parts that a thread has encoded */

/* A part of a text, with its ids until it is known how many are before them.
 *
 * number: of the part, from 0. first: where it starts in the text. begin: how many ids are before
 * those of the part; -1 as long as that is not known. */
typedef struct {
    uint32_t *ids;
    int64_t room, count, number, first, begin;
    Text text;
    int is_free;
} TextPart;

/* What one thread encodes with, but for the words. */
typedef struct {
    const Pattern *pattern;
    const Vocabulary *vocabulary;
    SharedWords *shared; /* during a call */
    Scratch scratch;
    uint8_t *padded; /* a copy of a text, or of a part of a file */
    int64_t padded_room;
    TextPart parts[MOST_WAITING];
    int64_t threads; /* in the first of as many encoders */
} Encoder;

/* Whether tokens may lie across pre-tokens, of which a document is one. */
int cuts_anywhere(const Encoder *encoder);

/* Write the ids of the words that start in a text, with room for as many as there are bytes up to
 * main_end, and 3 more; *stopped becomes where the last ends. Returns how many, or NO_MEMORY. */
int64_t encode_text(Encoder *encoder, const Text *text, uint32_t *ids, int64_t *stopped);

/* Write the ids of a document without padding, which is copied to where there is some, with room for
 * 3 more ids than bytes. Returns how many, or NO_MEMORY. Words are those of encoder->shared. */
int64_t encode_copy(Encoder *encoder, const uint8_t *text, int64_t length, uint32_t *ids);

/* Run a function in up to `threads` threads, the caller's included, until all return. */
void run_in_threads(void *(*function)(void *), void *argument, int64_t threads);

#endif
