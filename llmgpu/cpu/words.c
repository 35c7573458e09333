/* Tables of distinct words, and counting words in such a table. */
#define _DEFAULT_SOURCE /* for mmap and madvise */
#include "engine.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#define PLACE_MASK ((UINT64_C(1) << 56) - 1)
#define FIRST_SLOTS 4096
#define BATCH 128 /* words whose slots are prefetched at a time */
#ifndef LEAST_ROOM
#define LEAST_ROOM 1024 /* items for which memory is allocated at first */
#endif

#define LOWEST(bytes) ((UINT64_C(1) << 8 * (bytes)) - 1)
#define ALL UINT64_MAX

const uint64_t word_masks[32] = {
    0, LOWEST(1), LOWEST(2), LOWEST(3), LOWEST(4), LOWEST(5), LOWEST(6), LOWEST(7),
    ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL,
    0, 0, 0, 0, 0, 0, 0, 0,
    0, LOWEST(1), LOWEST(2), LOWEST(3), LOWEST(4), LOWEST(5), LOWEST(6), LOWEST(7),
};

int grow(void **items, int64_t *room, int64_t needed, size_t size)
{
    if (needed <= *room)
        return 0;
    int64_t more = needed > 2 * *room ? needed : 2 * *room;
    if (more < LEAST_ROOM)
        more = LEAST_ROOM;
    if ((uint64_t)more > SIZE_MAX / size)
        return NO_MEMORY;
    void *larger = realloc(*items, (size_t)more * size);
    if (larger == NULL)
        return NO_MEMORY;
    *items = larger;
    *room = more;
    return 0;
}

#if defined(__linux__)
#define HUGE_PAGE ((size_t)2 << 20)

/* Look-ups touch random pages, and the processor has to translate each page's address. If pages are
   large, the translations of all pages fit into its cache for addresses. */
void *zero_pages(size_t bytes)
{
    if (bytes < HUGE_PAGE)
        return calloc(bytes, 1);
    if (bytes > SIZE_MAX - HUGE_PAGE)
        return NULL;
    uint8_t *pages = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return NULL;
    size_t before = -(uintptr_t)pages & (HUGE_PAGE - 1);
    if (before)
        munmap(pages, before);
    munmap(pages + before + bytes, HUGE_PAGE - before);
    madvise(pages + before, bytes, MADV_HUGEPAGE); /* may fail: then the pages are small */
    return pages + before;
}

void free_pages(void *pages, size_t bytes)
{
    if (bytes < HUGE_PAGE)
        free(pages);
    else if (pages)
        munmap(pages, bytes);
}
#else
void *zero_pages(size_t bytes)
{
    return calloc(bytes, 1);
}

void free_pages(void *pages, size_t bytes)
{
    (void)bytes;
    free(pages);
}
#endif

uint64_t hash_keys[4] = {UINT64_C(0x9E3779B97F4A7C15), UINT64_C(0xC2B2AE3D27D4EB4F),
                         UINT64_C(0xFF51AFD7ED558CCD), UINT64_C(0x94D049BB133111EB)};

/* Set the keys of all hashes, four random numbers, before the first table is made. Later calls have
 * no effect, because existing tables depend on the keys. */
API void llmgpu_set_hash_keys(const uint64_t *keys)
{
    static int are_set = 0;

    if (!are_set)
        memcpy(hash_keys, keys, sizeof hash_keys);
    are_set = 1;
}

/* Hash a word of 16 bytes or more: its length, its bytes sixteen at a time, and the last
 * sixteen. */
uint64_t hash_long(const uint8_t *start, int64_t length)
{
    uint64_t hash = hash_keys[0] ^ (uint64_t)length;

    for (int64_t at = 0; at < length - 16; at += 16)
        hash = fold(hash ^ load64(start + at), hash_keys[2] ^ load64(start + at + 8));
    start += length - 16;
    return fold(hash ^ load64(start), hash_keys[3] ^ load64(start + 8)) & LLMGPU_HASH_MASK;
}

int table_init(WordTable *table, int64_t slots)
{
    memset(table, 0, sizeof *table);
    table->slots = zero_pages((size_t)slots * sizeof *table->slots);
    table->mask = (uint64_t)slots - 1;
    return table->slots == NULL ? NO_MEMORY : 0;
}

static void free_slots(WordTable *table)
{
    free_pages(table->slots, (size_t)(table->mask + 1) * sizeof *table->slots);
}

void table_free(WordTable *table)
{
    free_slots(table);
    free(table->bytes);
}

static int64_t long_length(const WordTable *table, const Slot *slot)
{
    int64_t length;

    memcpy(&length, table->bytes + (slot->high & PLACE_MASK), sizeof length);
    return length;
}

const uint8_t *slot_word(const WordTable *table, const Slot *slot, uint8_t *room, int64_t *length)
{
    if (slot->high >= LONG_TAG) {
        *length = long_length(table, slot);
        return table->bytes + (slot->high & PLACE_MASK) + sizeof *length;
    }
    *length = (int64_t)(slot->high >> 56);
    for (int k = 0; k < 8; k++) {
        room[k] = (uint8_t)(slot->low >> 8 * k);
        room[8 + k] = (uint8_t)(slot->high >> 8 * k);
    }
    return room;
}

static int is_long_word(const WordTable *table, const Slot *slot, const Word *word)
{
    if (slot->high < LONG_TAG || long_length(table, slot) != word->length)
        return 0;
    const uint8_t *bytes = table->bytes + (slot->high & PLACE_MASK) + sizeof word->length;
    return memcmp(bytes, word->start, (size_t)word->length) == 0;
}

Slot *table_find(const WordTable *table, const Word *word)
{
    uint64_t at = word->hash & table->mask;

    for (;; at = (at + 1) & table->mask) {
        Slot *slot = table->slots + at;
        if (slot_is_free(slot))
            return slot;
        if (slot->low != word->low)
            continue;
        if (LIKELY(slot->high == word->high) ||
            (word->length > LONGEST_INLINE && is_long_word(table, slot, word)))
            return slot;
    }
}

static int widen(WordTable *table)
{
    WordTable wider;
    uint64_t slots = 2 * (table->mask + 1);

    if (slots > SIZE_MAX / sizeof(Slot) || table_init(&wider, (int64_t)slots) != 0)
        return NO_MEMORY;
    for (uint64_t at = 0; at <= table->mask; at++) {
        const Slot *slot = table->slots + at;
        if (slot_is_free(slot))
            continue;
        uint64_t to = slot->high >= LONG_TAG ? slot->low : mix_words(slot->low, slot->high);
        while (!slot_is_free(wider.slots + (to & wider.mask)))
            to++;
        wider.slots[to & wider.mask] = *slot;
    }
    free_slots(table);
    table->slots = wider.slots;
    table->mask = wider.mask;
    return 0;
}

/* Append a word to the bytes of a table, and write its position to `place`; return 0 or NO_MEMORY.
 * There are TEXT_PADDING bytes of room after the last word, because callers look up parts of
 * words. */
static int keep_bytes(WordTable *table, const Word *word, uint64_t *place)
{
    int64_t length = word->length, used = table->bytes_used;
    int64_t after = used + (int64_t)sizeof length + length;
    void *bytes = table->bytes;

    if (grow(&bytes, &table->bytes_room, after + TEXT_PADDING, 1) != 0)
        return NO_MEMORY;
    table->bytes = bytes;
    memcpy(table->bytes + used, &length, sizeof length);
    memcpy(table->bytes + used + sizeof length, word->start, (size_t)length);
    table->bytes_used = after;
    *place = (uint64_t)used;
    return 0;
}

Slot *table_insert(WordTable *table, const Word *word)
{
    uint64_t high = word->high, place;

    if (2 * (uint64_t)(table->words + 1) > table->mask && widen(table) != 0)
        return NULL;
    if (word->length > LONGEST_INLINE) {
        if (keep_bytes(table, word, &place) != 0)
            return NULL;
        high = LONG_TAG | place;
    }
    Slot *slot = table_find(table, word);
    slot->low = word->low;
    slot->high = high;
    table->words++;
    return slot;
}

/* ---- Counting ---- */

/* Words and their counts. The count of a word is in the first 64 bits of its slot's value. */
typedef struct {
    const Pattern *pattern;
    WordTable table;
} Counter;

API void llmgpu_counter_free(Counter *counter)
{
    if (counter)
        table_free(&counter->table);
    free(counter);
}

/* Return an empty counter for one thread; NULL without memory. `pattern` must outlive the
 * counter. */
API Counter *llmgpu_counter_new(const Pattern *pattern)
{
    Counter *counter = calloc(1, sizeof *counter);

    if (counter == NULL)
        return NULL;
    counter->pattern = pattern;
    if (table_init(&counter->table, FIRST_SLOTS) != 0) {
        llmgpu_counter_free(counter);
        return NULL;
    }
    return counter;
}

static int count_word(WordTable *table, const Word *word, int64_t more)
{
    int64_t count = 0;
    Slot *slot = table_find(table, word);

    if (UNLIKELY(slot_is_free(slot))) {
        slot = table_insert(table, word);
        if (slot == NULL)
            return NO_MEMORY;
    } else {
        memcpy(&count, slot->value, sizeof count);
    }
    count += more;
    memcpy(slot->value, &count, sizeof count);
    return 0;
}

/* Set up to BATCH words of a document from *at on, and prefetch their slots. Move *at to the end of
 * the last word; return the number of words. */
static int64_t next_words(const Counter *counter, const uint8_t *text, const uint8_t *marks,
                          int64_t *at, int64_t limit, int64_t stop, Word *words)
{
    const uint8_t *p = text + *at, *last = text + stop, *end = text + limit, *block;
    const Slot *slots = counter->table.slots;
    uint64_t mask = counter->table.mask;
    int64_t ends[BATCH];
    Word *word = words;

    do {
        block = p;
        if (has_block(p, last, end))
            word = add_block(counter->pattern, &p, end, word, slots, mask);
    } while (p > block && word - words <= BATCH - BLOCK);
    *at = p - text;
    if (word > words)
        return word - words;
    int64_t count = pretoken_ends(counter->pattern, text, marks, *at, limit, stop, ends, BATCH);
    for (int64_t k = 0; k < count; *at = ends[k++])
        add_word(word++, text + *at, ends[k] - *at, slots, mask);
    return count;
}

static int64_t count_document(Counter *counter, const uint8_t *text, const uint8_t *marks,
                              int64_t at, int64_t limit, int64_t stop, int64_t most)
{
    Word words[BATCH];

    while (at < stop) {
        int64_t count = next_words(counter, text, marks, &at, limit, stop, words);
        for (const Word *word = words; word < words + count; word++) {
            if (word->length > most)
                return word->length;
            if (count_word(&counter->table, word, 1) != 0)
                return NO_MEMORY;
        }
    }
    return 0;
}

/* Count the pre-tokens that start in the first `main_end` bytes of a text of `length` bytes. A
 * pre-token starts at 0. Return 0, NO_MEMORY, or the length of a pre-token of more than `most`
 * bytes. The counts are undefined unless 0 is returned.
 *
 * marks: see `pretoken_ends`. starts: int64_t (num_starts,), where documents begin, ascending. */
API int64_t llmgpu_count(Counter *counter, const uint8_t *text, const uint8_t *marks,
                         int64_t length, int64_t main_end, const int64_t *starts,
                         int64_t num_starts, int64_t most)
{
    int64_t at = 0, next = 0, status;

    while (at < main_end) {
        while (next < num_starts && starts[next] <= at)
            next++;
        int64_t limit = next < num_starts ? starts[next] : length;
        int64_t stop = limit < main_end ? limit : main_end;
        if ((status = count_document(counter, text, marks, at, limit, stop, most)) != 0)
            return status;
        at = stop;
    }
    return 0;
}

/* Add the words and counts of another counter; return 0 or NO_MEMORY. */
API int llmgpu_counter_absorb(Counter *counter, const Counter *other)
{
    uint8_t room[TEXT_PADDING + LONGEST_INLINE + 1] = {0};
    int64_t count, length;
    Word word;

    for (uint64_t at = 0; at <= other->table.mask; at++) {
        const Slot *slot = other->table.slots + at;
        if (slot_is_free(slot))
            continue;
        const uint8_t *start = slot_word(&other->table, slot, room, &length);
        set_word(&word, start, length);
        memcpy(&count, slot->value, sizeof count);
        if (count_word(&counter->table, &word, count) != 0)
            return NO_MEMORY;
    }
    return 0;
}

/* Return the number of words. bytes, unless NULL, and table_bytes: set to the bytes of all words
 * and of the table. */
API int64_t llmgpu_counter_size(const Counter *counter, int64_t *bytes, int64_t *table_bytes)
{
    const WordTable *table = &counter->table;
    int64_t length, total = 0;
    uint8_t room[16];

    *table_bytes = (int64_t)((table->mask + 1) * sizeof(Slot)) + table->bytes_room;
    if (bytes) {
        for (uint64_t at = 0; at <= table->mask; at++)
            if (!slot_is_free(table->slots + at)) {
                slot_word(table, table->slots + at, room, &length);
                total += length;
            }
        *bytes = total;
    }
    return table->words;
}

/* Write the words end to end to `data`, and the ends and counts of the words. */
API void llmgpu_counter_take(const Counter *counter, uint8_t *data, int64_t *ends, int64_t *counts)
{
    const WordTable *table = &counter->table;
    int64_t length, total = 0, words = 0;
    uint8_t room[16];

    for (uint64_t at = 0; at <= table->mask; at++) {
        const Slot *slot = table->slots + at;
        if (slot_is_free(slot))
            continue;
        const uint8_t *word = slot_word(table, slot, room, &length);
        memcpy(data + total, word, (size_t)length);
        total += length;
        memcpy(counts + words, slot->value, sizeof *counts);
        ends[words++] = total;
    }
}

/* Return the checksum of the sources that this library was built from. */
API uint32_t llmgpu_sources(void)
{
#ifdef LLMGPU_SOURCES
    return LLMGPU_SOURCES;
#else
    return 0;
#endif
}
