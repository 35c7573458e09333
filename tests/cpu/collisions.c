/* Words that collide under one key of the hashes, under other keys: prints, for words of each length
 * and for pairs, how many share the fullest of BUCKETS buckets under new keys. It is linked with
 * words.c alone, which takes a tenth of the time of all sources. */
#include <stdio.h>

#include "engine.h"

#define WORDS 2000
#define BUCKETS 1024
#define KEYS 5

/* Counting, in words.c, calls both; hashes call neither. */
int64_t pretoken_ends(const Pattern *pattern, const uint8_t *text, const uint8_t *marks, int64_t at,
                      int64_t limit, int64_t stop, int64_t *ends, int64_t room)
{
    (void)pattern, (void)text, (void)marks, (void)at, (void)limit, (void)stop, (void)ends, (void)room;
    return 0;
}

uint64_t block_ends(const Pattern *pattern, const uint8_t *p, const uint8_t *end)
{
    (void)pattern, (void)p, (void)end;
    return 0;
}

static uint64_t state = 1;

static uint64_t draw(void)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return state ^ state >> 29;
}

static void draw_keys(void)
{
    for (int k = 0; k < 4; k++)
        hash_keys[k] = draw();
}

/* Return the bucket of a word; of length 0: of a pair of numbers. */
static uint64_t bucket(const uint8_t *bytes, int64_t length)
{
    Word word;

    if (length == 0)
        return mix_words(load64(bytes), 0) % BUCKETS;
    set_word(&word, bytes, length);
    return word.hash % BUCKETS;
}

int main(void)
{
    static uint8_t words[WORDS][64 + TEXT_PADDING];
    static const int64_t lengths[] = {0, 5, 8, 12, 15, 16, 24, 40, 64};

    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
        int64_t length = lengths[n];
        draw_keys();
        for (int count = 0; count < WORDS;) {
            for (int k = 0; k < (length ? length : 8); k++)
                words[count][k] = (uint8_t)('a' + draw() % 26);
            count += bucket(words[count], length) == 7;
        }
        int most = 0;
        for (int keys = 0; keys < KEYS; keys++) {
            int counts[BUCKETS] = {0};
            draw_keys();
            for (int k = 0; k < WORDS; k++) {
                int *found = counts + bucket(words[k], length);
                if (++*found > most)
                    most = *found;
            }
        }
        printf("%d %d\n", (int)length, most);
    }
    return 0;
}
