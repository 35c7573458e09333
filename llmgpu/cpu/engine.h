/* The declarations that the files of the CPU engine share: reading bytes, patterns, and tables of
 * distinct words.
 *
 * The engine is plain C99 for GCC and Clang, without Python's API, so that one library serves every
 * Python. The only global state are the hash keys, which are set once. So threads may call all
 * functions, each with objects of its own, unless a comment says that threads may share an object.
 *
 * A text is followed by TEXT_PADDING readable bytes of any value. Lengths and positions are
 * int64_t. Functions that allocate return NO_MEMORY or NULL if there is no memory. Their objects
 * stay valid.
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
#define TOO_SLOW (-3)
#define NO_ID UINT32_MAX

/* The lowest bit of each of eight bytes, and the top bit of each. */
#define ONES UINT64_C(0x0101010101010101)
#define TOPS UINT64_C(0x8080808080808080)

/* Return the eight bytes from p on as a number; the first byte is the lowest. */
static inline uint64_t load64(const uint8_t *p)
{
    uint64_t value;
    memcpy(&value, p, sizeof value);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    return value;
}

/* Return the number of bytes before the first byte whose top bit is set; top_bits is not 0. */
static inline int64_t bytes_before(uint64_t top_bits)
{
    return __builtin_ctzll(top_bits) >> 3;
}

/* ---- UTF-8 (texts.c) ---- */

static inline int is_continuation(uint8_t byte)
{
    return (byte & 0xC0) == 0x80;
}

/* Decode the character beyond ASCII at p; return its number of bytes, 0 if it is not valid
 * UTF-8. */
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

/* Return the position of the first invalid UTF-8 sequence in a text; `length` if there is none. */
API int64_t llmgpu_valid_utf8(const uint8_t *text, int64_t length);

/* ---- Patterns (pretokens.c) ---- */

/* An instruction of expressions.c, with its operands. */
typedef struct {
    int32_t operation, a, b, c;
} Instruction;

#define MOST_EXPRESSIONS 16

/* The first instruction of an expression, and a set of bits: the first character of a match has at
 * least one of them. has_ascii: whether a character of ASCII has one of them. */
typedef struct {
    int32_t at;
    uint32_t bits;
    int has_ascii;
} FirstStep;

/* The tables of automata.c: a head, then for each state and column the next state and the flags. The
 * number of a state is the position of its first entry. */
typedef struct {
    const uint16_t *next, *flags;
} Automaton;

/* How to decode a character by its first byte. The next two bytes are valid if
 * `(second << 8 | third) & mask == valid`. The code point has the bits `own` of the first byte, then
 * six bits of each next byte, without the last `unused` bits. If the first byte begins no character of
 * up to three bytes, no next bytes are valid. */
typedef struct {
    uint16_t mask, valid;
    uint8_t own, unused;
} Lead;

/* Expressions that cut text one after the other: by automata, or without these by instructions.
 * bits, ascii: the bits of each class of characters, and of each character of ASCII.
 * num_classes: the number of classes, which is also the column of the end of a text.
 * pairs: pairs[0][a] + pairs[1][b] is the column of the characters a and b of ASCII; NULL without
 *     such columns. */
typedef struct {
    const Instruction *code;
    FirstStep first[MOST_EXPRESSIONS];
    Automaton automata[MOST_EXPRESSIONS];
    int levels, num_automata, num_classes;
    const uint16_t (*pairs)[128];
    uint32_t bits[256], ascii[128];
    Lead leads[256];
} Expressions;

/* Rules of patterns. RULE_MARKS is for patterns without a rule in pretokens.c. The rules from
 * OTHER_RULES on are listed there, because no other file knows them. */
enum pattern_rule { RULE_MARKS, RULE_NONE, RULE_GPT2, RULE_CL100K, RULE_O200K, OTHER_RULES };

/* A pattern that cuts text. Threads may share a pattern.
 *
 * digits: the most numbers in a pre-token (RULE_CL100K).
 * whole_at_end: whether white space at the end of a document is one pre-token (RULE_CL100K).
 * classes: uint8_t (0x110000,), the class of each code point, as in unicode_classes.py; with
 *     RULE_NEIGHBOURS, bits that tell where text may be cut, as in neighbours.py; with expressions,
 *     the class by which `bits` is indexed.
 * kinds: the kind of each byte, with a bit for each class; 0 if a character beyond ASCII may begin
 *     with the byte.
 * expressions: mark the starts of pre-tokens (RULE_MARKS); NULL if Python marks them.
 */
typedef struct {
    int rule;
    int digits;
    int whole_at_end;
    const uint8_t *classes;
    Expressions *expressions;
    uint8_t kinds[256];
} Pattern;

/* Write the ends of the pre-tokens of a document that start before `stop`, and return their number,
 * `room` at most. The first pre-token starts at position `at`.
 *
 * marks: uint8_t, 1 where pre-tokens start (RULE_MARKS); NULL for other rules.
 * limit: where the document ends.
 */
int64_t pretoken_ends(const Pattern *pattern, const uint8_t *text, const uint8_t *marks, int64_t at,
                      int64_t limit, int64_t stop, int64_t *ends, int64_t room);

/* Mark the starts of pre-tokens in documents by expressions (expressions.c); return 0, or TOO_SLOW
 * if matching takes too many steps. starts: where documents start. marks: uint8_t (length,). */
int64_t mark_expressions(const Pattern *pattern, const uint8_t *text, int64_t length,
                         const int64_t *starts, int64_t num_starts, uint8_t *marks);

/* Mark the bounds of pre-tokens in a text by an automaton of the pattern (automata.c). Return
 * `steps` less the bytes that were read again; a negative number if there were more than `steps`.
 * marks: uint8_t (length,), zeros. */
int64_t run_automaton(const Pattern *pattern, const Automaton *automaton, const uint8_t *text,
                      int64_t length, uint8_t *marks, int64_t steps);

/* Return the last position in (from, at] at which a pre-token certainly starts; `from` if none is
 * found.
 * Certainly: whatever text precedes `from` or follows `limit`, and whether or not the document ends
 * there. */
int64_t last_certain_start(const Pattern *pattern, const uint8_t *text, const uint8_t *marks,
                           int64_t from, int64_t at, int64_t limit);

/* Return the end of the contraction that begins with the apostrophe at p; NULL if there is none. */
const uint8_t *contraction_end(const uint8_t *p, const uint8_t *end, int any_case);

/* Return the end of the pre-token that starts at p, by the rule of neighbours (pieces.c). */
const uint8_t *neighbours_end(const uint8_t *joined, const uint8_t *p, const uint8_t *end);

/* Return whether a text that begins at `start` may be cut at p > start, by the rule of
 * neighbours. */
int neighbours_part(const uint8_t *joined, const uint8_t *start, const uint8_t *p,
                    const uint8_t *end);

#if defined(__SSE2__) && !defined(LLMGPU_PLAIN) /* tests leave the blocks out */
#define HAS_BLOCKS 1
#else
#define HAS_BLOCKS 0
#endif

#define BLOCK 64       /* bytes, with a bit each */
#define LEAST_BLOCK 16 /* the fewest bytes at the end of a document for which a block pays off */

/* Return whether there is a block at p before `last`, for documents that end at `end`. */
static inline int has_block(const uint8_t *p, const uint8_t *last, const uint8_t *end)
{
    return HAS_BLOCKS && (last - p >= BLOCK || (last == end && last - p >= LEAST_BLOCK));
}

/* Return a bit for each byte of the block at p at which a pre-token certainly ends, by the rules of
 * gpt2, cl100k and o200k (blocks.c). A pre-token must start at p. Return 0 if no end is certain, for
 * other rules, and for text at which pretokens.c is faster. end: where the document ends; no
 * returned bit is at or after `end`. */
uint64_t block_ends(const Pattern *pattern, const uint8_t *p, const uint8_t *end);

/* ---- Tables of distinct words (words.c) ---- */

#define LONGEST_INLINE 15 /* the most bytes of a word that are stored in its slot */
#define LONG_TAG (UINT64_C(0xFF) << 56)

/* A slot of a table. `low` and `high` identify the word: they have its bytes in order, and its
 * length in the top byte. For a word of more than LONGEST_INLINE bytes, `low` is its hash, and
 * `high` is LONG_TAG with the place of its bytes. In free slots, `high` is 0. */
typedef struct {
    uint64_t low, high;
    uint32_t value[4];
} Slot;

/* A hash table of words. The number of slots is a power of two. At most half of the slots are
 * taken. Slots are probed one after the other. */
typedef struct {
    Slot *slots;
    uint64_t mask; /* number of slots - 1 */
    int64_t words;
    uint8_t *bytes; /* the longer words: for each, its length, then its bytes */
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

/* Random numbers of this process, see llmgpu_set_hash_keys in words.c. All hashes of tables depend
 * on these keys, so that an attacker can't choose words that collide. No result depends on the
 * keys. */
extern uint64_t hash_keys[4];

/* Return the product of 128 bits, folded: its low half xor its high half. */
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

/* Hash two numbers: xor each with a key, and fold the product. The keys decide which numbers
 * collide. With an invertible mix between two keys, the same numbers would collide for all keys. */
static inline uint64_t mix_words(uint64_t low, uint64_t high)
{
    return fold(low ^ hash_keys[0], high ^ hash_keys[1]) & LLMGPU_HASH_MASK;
}

uint64_t hash_long(const uint8_t *start, int64_t length);

/* Masks by the length of a word: word_masks[length] for its first eight bytes, word_masks[16 +
 * length] for the next eight. */
extern const uint64_t word_masks[32];

/* Set the fields of a word of `length` bytes, 1 or more, at `start`. */
static inline void set_word(Word *word, const uint8_t *start, int64_t length)
{
    uint64_t low, high;

    if (UNLIKELY(length > LONGEST_INLINE)) {
        low = hash_long(start, length);
        high = UINT64_MAX; /* in no slot, so the bytes are compared */
        word->hash = low;
    } else {
        /* Use masks, because branches on the length are hard to predict. */
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

/* Return the slot of a word, or the free slot for it. */
Slot *table_find(const WordTable *table, const Word *word);

static inline int slot_is_free(const Slot *slot)
{
    return slot->high == 0;
}

/* Put a new word into the table; return its slot with undefined `value`, or NULL without memory. */
Slot *table_insert(WordTable *table, const Word *word);

/* Return the bytes of the word in a slot, and its length; `room` has 16 bytes for short words. */
const uint8_t *slot_word(const WordTable *table, const Slot *slot, uint8_t *room, int64_t *length);

/* Set the fields of a word, and prefetch its slot. */
static inline void add_word(Word *word, const uint8_t *start, int64_t length, const Slot *slots,
                            uint64_t mask)
{
    set_word(word, start, length);
    __builtin_prefetch(slots + (word->hash & mask));
}

/* Add the words of the block at *p to an array, at `word`, and prefetch their slots. The last word
 * ends at the last certain end in the block, to which *p moves. Return the place after the last
 * word, which is `word` if no end is certain. end: where the document ends. */
static inline Word *add_block(const Pattern *pattern, const uint8_t **p, const uint8_t *end,
                              Word *word, const Slot *slots, uint64_t mask)
{
    const uint8_t *block = *p, *from = block;

    for (uint64_t ends = block_ends(pattern, block, end); ends; ends &= ends - 1) {
        const uint8_t *to = block + __builtin_ctzll(ends);
        add_word(word++, from, to - from, slots, mask);
        from = to;
    }
    *p = from;
    return word;
}

/* Make room for `needed` items of `size` bytes in an array; return 0 or NO_MEMORY. */
int grow(void **items, int64_t *room, int64_t needed, size_t size);

/* Return zeroed memory, in large pages if possible; NULL without memory. `free_pages` frees it. */
void *zero_pages(size_t bytes);
void free_pages(void *pages, size_t bytes);

/* ---- Words with ids that threads share (shared_words.c) ---- */

#define MOST_INLINE 3 /* the most ids of a word that are stored in its slot */

typedef struct SharedWords SharedWords;

/* A table of shared words. A slot's value is the number of ids, then the ids or a pointer to
 * them. */
typedef struct SharedSlots {
    Slot *slots;
    uint64_t mask;
    struct SharedSlots *older;
} SharedSlots;

/* Return the current table. Another thread may replace it at any time; the returned table stays
 * valid. */
const SharedSlots *shared_table(const SharedWords *words);

/* Return the slot of a word, or NULL if the word is not in the table. */
const Slot *shared_find(const SharedSlots *table, const Word *word);

/* Put a word with its ids into the table, if there is room. */
void shared_insert(SharedWords *words, const Word *word, const uint32_t *ids, int64_t count);

/* ---- Vocabularies (matching.c) ---- */

typedef struct Vocabulary Vocabulary;

/* Memory of one thread for matching with one vocabulary; see long_words.c. */
typedef struct {
    void *symbols, *heap, *windows[2];
    int64_t symbol_room, heap_room, window_room[2];
    int stages;
} Scratch;

void scratch_free(Scratch *scratch);

/* Return whether the vocabulary matches the longest token first. */
int is_greedy(const Vocabulary *vocabulary);

/* Write the ids of a word; return the number of ids, or NO_MEMORY. `ids` has room for an id for
 * each byte. NO_ID stands for a byte without a token. */
int64_t match_word(const Vocabulary *vocabulary, Scratch *scratch, const uint8_t *word,
                   int64_t length, uint32_t *ids);

/* Write the ids of the longest tokens from position *at on that start before `stop` and end at
 * `limit` or before. Return their number; *at is set to the end of the last token. */
int64_t match_greedily(const Vocabulary *vocabulary, const uint8_t *text, int64_t *at, int64_t stop,
                       int64_t limit, uint32_t *ids);

/* Return the length of a word's first part, if the word is cut where no token can extend across. */
int64_t first_part(const Vocabulary *vocabulary, const uint8_t *word, int64_t length);

/* ---- Encoding (encode.c, parts.c) ---- */

/* A text to be encoded.
 *
 * text: `length` bytes, then padding. marks: see `pretoken_ends`.
 * entry: where the first token starts. A pre-token starts at 0.
 * main_end: only tokens that start before it are encoded. A pre-token ends there, unless the text
 *     is cut anywhere (RULE_NONE and greedy matching).
 * starts: int64_t (num_starts,), where documents begin in the text, ascending. token_starts:
 *     int64_t (own_starts,), set to the number of ids before each of the first `own_starts`
 *     documents. */
typedef struct {
    const uint8_t *text, *marks;
    int64_t length, main_end, entry;
    const int64_t *starts;
    int64_t num_starts, own_starts, *token_starts;
} Text;

#define MOST_WAITING 4 /* the most encoded parts that a thread keeps */

/* A part of a text. It keeps its ids until their place is known.
 *
 * number: counts the parts of a text from 0. first: where the part starts in the text. begin: the
 * number of ids before the part's ids; -1 as long as it is unknown. */
typedef struct {
    uint32_t *ids;
    int64_t room, count, number, first, begin;
    Text text;
    int is_free;
} TextPart;

/* The objects with which one thread encodes. The words are shared. */
typedef struct {
    const Pattern *pattern;
    const Vocabulary *vocabulary;
    SharedWords *shared; /* set during a call */
    Scratch scratch;
    uint8_t *padded; /* a copy of a text, or of a part of a file */
    int64_t padded_room;
    TextPart parts[MOST_WAITING];
    int64_t threads; /* the number of encoders in the array; set in the first one */
} Encoder;

/* Return whether a document is one pre-token that may be cut anywhere between tokens. */
int cuts_anywhere(const Encoder *encoder);

/* Write the ids of the words that start in a text; return the number of ids, or NO_MEMORY. `ids`
 * has room for an id for each byte up to main_end, and 3 more. *stopped is set to the end of the
 * last token. */
int64_t encode_text(Encoder *encoder, const Text *text, uint32_t *ids, int64_t *stopped);

/* Set *marks to new memory with the marks of a text, if its pattern has expressions; return 0,
 * NO_MEMORY or TOO_SLOW. starts: where documents start. */
int64_t marks_of(const Pattern *pattern, const uint8_t *text, int64_t length, const int64_t *starts,
                 int64_t num_starts, uint8_t **marks);

/* Write the ids of a document without padding, by copying it; return the number of ids, NO_MEMORY
 * or TOO_SLOW. `ids` has room for an id for each byte, and 3 more. encoder->shared must be set. */
int64_t encode_copy(Encoder *encoder, const uint8_t *text, int64_t length, uint32_t *ids);

/* Write the ids of a document that has padding; otherwise like `encode_copy`. */
int64_t encode_padded(Encoder *encoder, const uint8_t *text, int64_t length, uint32_t *ids);

/* Write the ids of a document that has neither padding nor marks (parts.c). */
API int64_t llmgpu_encode_document(Encoder *encoders, SharedWords *shared, const uint8_t *text,
                                   int64_t length, int64_t part_bytes, uint32_t *ids);

/* Run a function in up to `threads` threads, the caller's included, until all return. */
void run_in_threads(void *(*function)(void *), void *argument, int64_t threads);

#endif
