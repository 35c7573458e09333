/* A table of words with their ids that threads share without waiting for each other.
 *
 * - A word is never changed or removed. A thread claims a slot by setting `high` to CLAIMED, fills
 *   the slot, and publishes it by setting `high` to the word's own value. Readers load `high`
 *   first. A thread that meets a claimed slot treats its word as new, and does not put the word
 *   into the table.
 * - One thread at a time makes a larger table and copies the slots, while the others use the old
 *   table. A word that is put into the old table too late is not copied. It counts as new once
 *   more, and gets the same ids. Old tables stay until the end, because threads may still read
 *   them.
 * - Bytes and ids for which a slot has no room are in chunks. A thread takes room in a chunk by
 *   adding to `used`.
 * - A table at its limit accepts no more words. The table is spent when more words were turned away
 *   than it holds. Then it is time to start another table.
 */
#include "engine.h"

#include <sched.h>

#define FIRST_SLOTS 4096 /* a quarter stays free, for words of 1,024 threads at once */
#define SMALL_TABLE (1 << 18) /* slots; a smaller table grows early and fourfold */
#define CLAIMED UINT64_C(1)   /* no word has this `high`, since its length would be 0 */
#define PLACE_MASK ((UINT64_C(1) << 56) - 1)
#define CHUNK_BYTES (1 << 18)

typedef struct Chunk {
    struct Chunk *older;
    int64_t used; /* bytes; more than CHUNK_BYTES if requests failed */
    uint64_t bytes[CHUNK_BYTES / 8];
} Chunk;

struct SharedWords {
    SharedSlots *table;
    char apart[64 - sizeof(SharedSlots *)]; /* counts, written often, need their own cache line */
    int64_t words, missed, most_bytes;
    int64_t bytes; /* of all tables and chunks */
    Chunk *chunk;
    char is_growing;
};

static SharedSlots *new_table(uint64_t slots)
{
    SharedSlots *table = malloc(sizeof *table);

    if (table == NULL)
        return NULL;
    table->older = NULL;
    table->mask = slots - 1;
    table->slots = zero_pages(slots * sizeof(Slot));
    if (table->slots == NULL) {
        free(table);
        return NULL;
    }
    return table;
}

API void llmgpu_shared_words_free(SharedWords *words)
{
    if (words == NULL)
        return;
    for (SharedSlots *table = words->table, *older; table; table = older) {
        older = table->older;
        free_pages(table->slots, (table->mask + 1) * sizeof(Slot));
        free(table);
    }
    for (Chunk *chunk = words->chunk, *older; chunk; chunk = older) {
        older = chunk->older;
        free(chunk);
    }
    free(words);
}

/* Return an empty table, which threads may share, of up to about `most_bytes`; NULL without
 * memory. */
API SharedWords *llmgpu_shared_words_new(int64_t most_bytes)
{
    SharedWords *words = calloc(1, sizeof *words);

    if (words == NULL)
        return NULL;
    words->most_bytes = most_bytes;
    words->bytes = FIRST_SLOTS * sizeof(Slot);
    words->table = new_table(FIRST_SLOTS);
    if (words->table == NULL) {
        free(words);
        return NULL;
    }
    return words;
}

/* Return whether it is time to start another table. */
API int llmgpu_shared_words_spent(const SharedWords *words)
{
    return __atomic_load_n(&words->missed, __ATOMIC_RELAXED) >
           __atomic_load_n(&words->words, __ATOMIC_RELAXED);
}

const SharedSlots *shared_table(const SharedWords *words)
{
    return __atomic_load_n(&words->table, __ATOMIC_ACQUIRE);
}

static inline uint64_t load_high(const Slot *slot)
{
    return __atomic_load_n(&slot->high, __ATOMIC_ACQUIRE);
}

/* Return whether a slot with this `high` holds the word. */
static int holds(const Slot *slot, uint64_t high, const Word *word)
{
    if (slot->low != word->low)
        return 0;
    if (word->length <= LONGEST_INLINE)
        return high == word->high;
    if (high < LONG_TAG)
        return 0;
    const uint8_t *kept = (const uint8_t *)(uintptr_t)(high & PLACE_MASK);
    int64_t length;
    memcpy(&length, kept, sizeof length);
    return length == word->length && memcmp(kept + sizeof length, word->start, (size_t)length) == 0;
}

const Slot *shared_find(const SharedSlots *table, const Word *word)
{
    for (uint64_t at = word->hash;; at++) {
        const Slot *slot = table->slots + (at & table->mask);
        uint64_t high = load_high(slot);
        if (high <= CLAIMED)
            return NULL;
        if (holds(slot, high, word))
            return slot;
    }
}

static void copy_slots(const SharedSlots *from, SharedSlots *to)
{
    for (uint64_t k = 0; k <= from->mask; k++) {
        const Slot *slot = from->slots + k;
        uint64_t high = load_high(slot);
        if (high <= CLAIMED)
            continue;
        uint64_t at = high >= LONG_TAG ? slot->low : mix_words(slot->low, high);
        while (to->slots[at & to->mask].high != 0)
            at++;
        Slot *copy = to->slots + (at & to->mask);
        copy->low = slot->low;
        copy->high = high;
        memcpy(copy->value, slot->value, sizeof copy->value);
    }
}

/* Return whether a table should grow. Fewer words collide in a table that is at most a quarter full.
 * A large table grows when it is half full, because clearing twice the memory would take longer
 * than collisions do. */
static int is_crowded(const SharedSlots *table, uint64_t words)
{
    return (table->mask < SMALL_TABLE ? 4 : 2) * words > table->mask;
}

/* Make a larger table, unless another thread does so or the limit is reached. */
static void grow_table(SharedWords *words)
{
    if (__atomic_test_and_set(&words->is_growing, __ATOMIC_ACQUIRE))
        return;
    SharedSlots *table = words->table; /* only the thread that lets it grow replaces it */
    uint64_t slots = (table->mask + 1) * (table->mask < SMALL_TABLE ? 4 : 2);
    int64_t more = (int64_t)(slots * sizeof(Slot));
    uint64_t known = (uint64_t)__atomic_load_n(&words->words, __ATOMIC_RELAXED);
    SharedSlots *larger = NULL;

    if (is_crowded(table, known) &&
        __atomic_load_n(&words->bytes, __ATOMIC_RELAXED) <= words->most_bytes - more)
        larger = new_table(slots);
    if (larger) {
        copy_slots(table, larger);
        larger->older = table;
        __atomic_fetch_add(&words->bytes, more, __ATOMIC_RELAXED);
        __atomic_store_n(&words->table, larger, __ATOMIC_RELEASE);
    }
    __atomic_clear(&words->is_growing, __ATOMIC_RELEASE);
}

/* Return room for some bytes, aligned to 8; NULL at the limit or without memory. */
static void *keep_room(SharedWords *words, int64_t bytes)
{
    bytes = (bytes + 7) & ~INT64_C(7);
    for (;;) {
        Chunk *chunk = __atomic_load_n(&words->chunk, __ATOMIC_ACQUIRE);
        if (chunk) {
            int64_t used = __atomic_fetch_add(&chunk->used, bytes, __ATOMIC_RELAXED);
            if (used <= CHUNK_BYTES - bytes)
                return (uint8_t *)chunk->bytes + used;
        }
        int64_t taken = __atomic_load_n(&words->bytes, __ATOMIC_RELAXED);
        Chunk *next = taken > words->most_bytes - CHUNK_BYTES ? NULL : malloc(sizeof *next);
        if (next == NULL)
            return NULL;
        next->older = chunk;
        next->used = 0;
        if (__atomic_compare_exchange_n(&words->chunk, &chunk, next, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
            __atomic_fetch_add(&words->bytes, CHUNK_BYTES, __ATOMIC_RELAXED);
        else
            free(next); /* another thread was faster */
    }
}

/* Fill a slot for a word; return 0, or NO_MEMORY if the chunks lack room for bytes or ids. */
static int fill_slot(SharedWords *words, Slot *slot, const Word *word, const uint32_t *ids,
                     int64_t count)
{
    int64_t id_bytes = count > MOST_INLINE ? count * (int64_t)sizeof *ids : 0;
    int64_t word_bytes = word->length > LONGEST_INLINE ? (int64_t)sizeof(int64_t) + word->length : 0;

    memset(slot, 0, sizeof *slot);
    slot->low = word->low;
    slot->high = word->high;
    slot->value[0] = (uint32_t)count;
    if (id_bytes == 0)
        memcpy(slot->value + 1, ids, (size_t)count * sizeof *ids);
    if (id_bytes + word_bytes == 0)
        return 0;
    uint8_t *room = keep_room(words, id_bytes + word_bytes);
    if (room == NULL)
        return NO_MEMORY;
    if (word_bytes) {
        slot->high = LONG_TAG | (uint64_t)(uintptr_t)room;
        memcpy(room, &word->length, sizeof word->length);
        memcpy(room + sizeof word->length, word->start, (size_t)word->length);
    }
    if (id_bytes) {
        const uint8_t *place = memcpy(room + word_bytes, ids, (size_t)id_bytes);
        memcpy(slot->value + 1, &place, sizeof place);
    }
    return 0;
}

void shared_insert(SharedWords *words, const Word *word, const uint32_t *ids, int64_t count)
{
    uint64_t known = (uint64_t)__atomic_load_n(&words->words, __ATOMIC_RELAXED);
    Slot filled;

    if (is_crowded(shared_table(words), known)) {
        grow_table(words);
        if (__atomic_load_n(&words->is_growing, __ATOMIC_RELAXED))
            sched_yield(); /* lets that thread run, if there are too few processors */
    }
    const SharedSlots *table = shared_table(words);
    if (4 * known > 3 * table->mask || fill_slot(words, &filled, word, ids, count) != 0) {
        __atomic_fetch_add(&words->missed, 1, __ATOMIC_RELAXED);
        return;
    }
    for (uint64_t at = word->hash;; at++) {
        Slot *slot = table->slots + (at & table->mask);
        uint64_t high = load_high(slot);
        if (high == 0 && __atomic_compare_exchange_n(&slot->high, &high, CLAIMED, 0,
                                                     __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
            slot->low = filled.low;
            memcpy(slot->value, filled.value, sizeof slot->value);
            __atomic_store_n(&slot->high, filled.high, __ATOMIC_RELEASE);
            __atomic_fetch_add(&words->words, 1, __ATOMIC_RELAXED);
            return;
        }
        if (high == CLAIMED || holds(slot, high, word))
            return;
    }
}
