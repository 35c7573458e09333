/* Byte pair encoding of one long word with a heap of its pairs, window by window.
 * A heap and its symbols take 24 bytes for each byte of a word, so a word of more than MOST_AT_ONCE
 * bytes is merged in windows, if every pair with a token ranks after all pairs that make the token.
 * llmgpu/bpe/encoding/matching.py proves that windows give the word's tokens, and has the same
 * algorithm. With any other vocabulary, or if two windows don't fit together, the whole word is
 * merged with one heap.
 */
#include "matching.h"

/* In bytes; tests make both smaller. */
#ifndef MOST_AT_ONCE
#define MOST_AT_ONCE (1 << 16)
#define WINDOW (1 << 13)
#endif
#define LEAST_TOKENS 8 /* the fewest tokens of a window that is cut */
#define FIRST_CUT 7    /* the first border is tried after 7 eighths of a window's tokens, */
#define LAST_CUT 3     /* and the last border after 3 */
#define MOST_STEPS (1 << 29) /* limit for the bytes read to check whether windows may be merged */
#define GONE (-1)
#define APART (-2) /* returned if windows don't fit together */

enum { STAGES_UNKNOWN, STAGES, NO_STAGES };

/* A symbol of a word, stored at the place of its first byte. before, after: places of its
 * neighbours; after is GONE once the symbol is merged into the symbol before. rank: the rank of the
 * pair of this symbol and the next one. */
typedef struct {
    int32_t before, after;
    uint32_t id, rank;
} Symbol;

/* A pair that waits to be merged: its rank in the upper half, its place in the lower. */
typedef uint64_t Waiting;

typedef struct {
    Waiting *pairs;
    int64_t count;
} Heap;

static void sift_down(Heap *heap, int64_t at)
{
    Waiting moved = heap->pairs[at];

    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && heap->pairs[child + 1] < heap->pairs[child])
            child++;
        if (heap->pairs[child] >= moved)
            break;
        heap->pairs[at] = heap->pairs[child];
        at = child;
    }
    heap->pairs[at] = moved;
}

static int push(Heap *heap, Scratch *scratch, Waiting pushed)
{
    int64_t at = heap->count;

    if (grow(&scratch->heap, &scratch->heap_room, at + 1, sizeof(Waiting)) != 0)
        return NO_MEMORY;
    heap->pairs = scratch->heap;
    heap->count++;
    while (at > 0 && pushed < heap->pairs[(at - 1) / 2]) {
        heap->pairs[at] = heap->pairs[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->pairs[at] = pushed;
    return 0;
}

/* Set the rank of the pair of a symbol and the next one; return the id that the pair becomes. */
static uint32_t rank_symbol(const Vocabulary *vocabulary, const uint8_t *word, int64_t length,
                            Symbol *symbols, int32_t place)
{
    Symbol *symbol = symbols + place;
    uint32_t result = NO_ID;

    symbol->rank = NO_ID;
    if (symbol->after < length) {
        const Symbol *next = symbols + symbol->after;
        symbol->rank = rank_of(vocabulary, word + place, next->after - place, symbol->id, next->id,
                               &result);
    }
    return result;
}

static int rank_and_push(const Vocabulary *vocabulary, Scratch *scratch, const uint8_t *word,
                         int64_t length, Heap *heap, int32_t place)
{
    Symbol *symbols = scratch->symbols;

    rank_symbol(vocabulary, word, length, symbols, place);
    if (symbols[place].rank == NO_ID)
        return 0;
    return push(heap, scratch, (uint64_t)symbols[place].rank << 32 | (uint32_t)place);
}

static int start_heap(const Vocabulary *vocabulary, Scratch *scratch, const uint8_t *word,
                      int32_t length, Heap *heap)
{
    if (grow(&scratch->symbols, &scratch->symbol_room, length, sizeof(Symbol)) != 0 ||
        grow(&scratch->heap, &scratch->heap_room, length, sizeof(Waiting)) != 0)
        return NO_MEMORY;
    Symbol *symbols = scratch->symbols;
    heap->pairs = scratch->heap;
    heap->count = 0;
    for (int32_t place = 0; place < length; place++) {
        symbols[place].before = place - 1;
        symbols[place].after = place + 1;
        symbols[place].id = vocabulary->byte_ids[word[place]];
    }
    for (int32_t place = 0; place < length; place++) {
        rank_symbol(vocabulary, word, length, symbols, place);
        if (symbols[place].rank != NO_ID)
            heap->pairs[heap->count++] = (uint64_t)symbols[place].rank << 32 | (uint32_t)place;
    }
    for (int64_t at = heap->count / 2; at-- > 0;)
        sift_down(heap, at);
    return 0;
}

/* Merge a word, and leave its symbols linked in the scratch memory; return 0 or NO_MEMORY. */
static int merge_by_heap(const Vocabulary *vocabulary, Scratch *scratch, const uint8_t *word,
                         int64_t length)
{
    Heap heap;

    if (length >= INT32_MAX || start_heap(vocabulary, scratch, word, (int32_t)length, &heap) != 0)
        return NO_MEMORY;
    Symbol *symbols = scratch->symbols;
    while (heap.count > 0) {
        Waiting best = heap.pairs[0];
        int32_t place = (int32_t)(uint32_t)best;
        heap.pairs[0] = heap.pairs[--heap.count];
        if (heap.count > 0)
            sift_down(&heap, 0);
        Symbol *symbol = symbols + place;
        if (symbol->after == GONE || symbol->rank != best >> 32)
            continue; /* the pair has merged or changed since */
        Symbol *gone = symbols + symbol->after;
        symbol->id = vocabulary->pairs == NULL
                         ? symbol->rank
                         : rank_symbol(vocabulary, word, length, symbols, place);
        symbol->after = gone->after;
        gone->after = GONE;
        if (symbol->after < length)
            symbols[symbol->after].before = place;
        if (rank_and_push(vocabulary, scratch, word, length, &heap, place) != 0)
            return NO_MEMORY;
        if (symbol->before >= 0 &&
            rank_and_push(vocabulary, scratch, word, length, &heap, symbol->before) != 0)
            return NO_MEMORY;
    }
    return 0;
}

/* ---- Whether windows may be merged ---- */

/* Return whether a token can be cut into two tokens. */
static int has_parts(const Vocabulary *vocabulary, const uint8_t *token, int64_t length)
{
    for (int64_t cut = 1; cut < length; cut++)
        if (token_id(vocabulary, token, cut) != NO_ID &&
            token_id(vocabulary, token + cut, length - cut) != NO_ID)
            return 1;
    return 0;
}

/* Return whether any pair that makes a part has rank `rank` or a later rank; id: the part's id,
 * which is the rank of these pairs. */
static int ranks_after(const Vocabulary *vocabulary, const uint8_t *part, int64_t length,
                       uint32_t id, uint32_t rank)
{
    return id >= rank && has_parts(vocabulary, part, length);
}

static int tokens_have_stages(const Vocabulary *vocabulary)
{
    const WordTable *tokens = &vocabulary->tokens;
    uint8_t room[TEXT_PADDING + LONGEST_INLINE + 1] = {0};
    int64_t length, steps = 0;

    for (uint64_t at = 0; at <= tokens->mask; at++) {
        const Slot *slot = tokens->slots + at;
        if (slot_is_free(slot))
            continue;
        const uint8_t *token = slot_word(tokens, slot, room, &length);
        uint32_t rank = slot->value[0];
        if (length >= MOST_STEPS || (steps += length * length) > MOST_STEPS)
            return NO_STAGES;
        for (int64_t cut = 1; cut < length; cut++) {
            uint32_t left = token_id(vocabulary, token, cut);
            if (left == NO_ID)
                continue;
            uint32_t right = token_id(vocabulary, token + cut, length - cut);
            if (right == NO_ID)
                continue;
            if (ranks_after(vocabulary, token, cut, left, rank) ||
                ranks_after(vocabulary, token + cut, length - cut, right, rank))
                return NO_STAGES;
        }
    }
    return STAGES;
}

static int pairs_have_stages(const Vocabulary *vocabulary)
{
    uint32_t most = 0;
    int stages = STAGES;

    for (uint64_t at = 0; at <= vocabulary->pair_mask; at++) {
        const Pair *pair = vocabulary->pairs + at;
        if (pair->key != NO_PAIR && pair->result > most)
            most = pair->result;
    }
    /* made[id]: 1 more than the last rank of the pairs that make an id, 0 if no pair does. */
    uint64_t *made = calloc((size_t)most + 1, sizeof *made);
    if (made == NULL)
        return NO_MEMORY;
    for (uint64_t at = 0; at <= vocabulary->pair_mask; at++) {
        const Pair *pair = vocabulary->pairs + at;
        if (pair->key != NO_PAIR && made[pair->result] < (uint64_t)pair->rank + 1)
            made[pair->result] = (uint64_t)pair->rank + 1;
    }
    for (uint64_t at = 0; at <= vocabulary->pair_mask; at++) {
        const Pair *pair = vocabulary->pairs + at;
        uint64_t left = pair->key >> 32, right = pair->key & UINT32_MAX;
        if (pair->key != NO_PAIR && ((left <= most && made[left] > pair->rank) ||
                                     (right <= most && made[right] > pair->rank)))
            stages = NO_STAGES;
    }
    free(made);
    return stages;
}

/* ---- Windows ---- */

/* A token of a window, and the position in the window at which it begins. */
typedef struct {
    int32_t begin;
    uint32_t id;
} Token;

/* The tokens of `size` bytes of a word, from position `first` on. */
typedef struct {
    const Token *tokens;
    int64_t count, first, size;
} Window;

/* Merge the stretch of a word in a window. which: 0 or 1, the array in the scratch memory into which
   the tokens are written. */
static int merge_window(const Vocabulary *vocabulary, Scratch *scratch, const uint8_t *word,
                        int64_t length, int which, Window *window)
{
    if (window->size > length - window->first)
        window->size = length - window->first;
    if (merge_by_heap(vocabulary, scratch, word + window->first, window->size) != 0 ||
        grow(&scratch->windows[which], &scratch->window_room[which], window->size,
             sizeof(Token)) != 0)
        return NO_MEMORY;
    const Symbol *symbols = scratch->symbols;
    Token *tokens = scratch->windows[which];
    window->tokens = tokens;
    window->count = 0;
    for (int32_t place = 0; place < window->size; place = symbols[place].after) {
        tokens[window->count].begin = place;
        tokens[window->count++].id = symbols[place].id;
    }
    return 0;
}

/* Merge the next window of a word. If it has the same bytes as the window before, as in runs of one
 * character, copy the tokens of that window. */
static int merge_next(const Vocabulary *vocabulary, Scratch *scratch, const uint8_t *word,
                      int64_t length, const Window *window, int which, Window *next)
{
    if (window->size != next->size || next->size > length - next->first ||
        memcmp(word + window->first, word + next->first, (size_t)next->size) != 0)
        return merge_window(vocabulary, scratch, word, length, which, next);
    if (grow(&scratch->windows[which], &scratch->window_room[which], next->size,
             sizeof(Token)) != 0)
        return NO_MEMORY;
    memcpy(scratch->windows[which], window->tokens, (size_t)window->count * sizeof(Token));
    next->tokens = scratch->windows[which];
    next->count = window->count;
    return 0;
}

/* Return whether the token that begins at `last` and the first token of the window after it, merged
 * together, become the same two tokens; or NO_MEMORY. */
static int go_together(const Vocabulary *vocabulary, Scratch *scratch, const uint8_t *word,
                       int64_t last, const Window *after)
{
    int64_t end = after->first + (after->count > 1 ? after->tokens[1].begin : after->size);

    if (merge_by_heap(vocabulary, scratch, word + last, end - last) != 0)
        return NO_MEMORY;
    const Symbol *symbols = scratch->symbols;
    return symbols[after->first - last].after != GONE;
}

/* Return the number of tokens after which a window may end, 0 if there is no such border. Merge the
 * window after the border. */
static int64_t cut_window(const Vocabulary *vocabulary, Scratch *scratch, const uint8_t *word,
                          int64_t length, const Window *window, int which, Window *next)
{
    if (window->count < LEAST_TOKENS)
        return 0;
    for (int eighths = FIRST_CUT; eighths >= LAST_CUT; eighths--) {
        int64_t cut = window->count * eighths / 8;
        next->first = window->first + window->tokens[cut].begin;
        next->size = WINDOW;
        if (merge_next(vocabulary, scratch, word, length, window, which, next) != 0)
            return NO_MEMORY;
        int fits = go_together(vocabulary, scratch, word,
                               window->first + window->tokens[cut - 1].begin, next);
        if (fits != 0)
            return fits < 0 ? fits : cut;
    }
    return 0;
}

/* Write the ids of a word window by window; return the number of ids, NO_MEMORY or APART. */
static int64_t merge_windows(const Vocabulary *vocabulary, Scratch *scratch, const uint8_t *word,
                             int64_t length, uint32_t *ids)
{
    Window window = {NULL, 0, 0, WINDOW}, next = window;
    int64_t count = 0, last = 0; /* where the last token before the window begins */
    int which = 0;

    if (merge_window(vocabulary, scratch, word, length, which, &window) != 0)
        return NO_MEMORY;
    while (window.first + window.size < length) {
        int64_t cut = cut_window(vocabulary, scratch, word, length, &window, !which, &next);
        if (cut < 0)
            return cut;
        if (cut == 0) {
            window.size *= 2;
            if (merge_window(vocabulary, scratch, word, length, which, &window) != 0)
                return NO_MEMORY;
            int fits = window.first == 0 ||
                       go_together(vocabulary, scratch, word, last, &window);
            if (fits != 1)
                return fits == 0 ? APART : fits;
            continue;
        }
        for (int64_t k = 0; k < cut; k++)
            ids[count++] = window.tokens[k].id;
        last = window.first + window.tokens[cut - 1].begin;
        window = next;
        which = !which;
    }
    for (int64_t k = 0; k < window.count; k++)
        ids[count++] = window.tokens[k].id;
    return count;
}

int64_t merge_long(const Vocabulary *vocabulary, Scratch *scratch, const uint8_t *word,
                   int64_t length, uint32_t *ids)
{
    if (length > MOST_AT_ONCE && vocabulary->firsts == NULL) {
        if (scratch->stages == STAGES_UNKNOWN)
            scratch->stages = vocabulary->pairs == NULL ? tokens_have_stages(vocabulary)
                                                        : pairs_have_stages(vocabulary);
        if (scratch->stages == STAGES) {
            int64_t count = merge_windows(vocabulary, scratch, word, length, ids);
            if (count != APART)
                return count;
        }
    }
    if (merge_by_heap(vocabulary, scratch, word, length) != 0)
        return NO_MEMORY;
    const Symbol *symbols = scratch->symbols;
    int64_t count = 0;
    for (int32_t place = 0; place < length; place = symbols[place].after)
        ids[count++] = symbols[place].id;
    return count;
}

void scratch_free(Scratch *scratch)
{
    free(scratch->symbols);
    free(scratch->heap);
    free(scratch->windows[0]);
    free(scratch->windows[1]);
}
