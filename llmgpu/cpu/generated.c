/* Generating blocks of text. llmgpu/text/generated.py defines the blocks, and generates the same
   bytes with NumPy. */
#include "engine.h"

#include <math.h>

#define ENTRY 24 /* bytes of an entry for a frequent word: 20 for its text, its length at LENGTH */
#define LENGTH 20
#define MULTIPLIER 0xDA942042E4DD58B5u

/* A generator of random numbers: PCG64 DXSM (M. O'Neill), 128 bits of state and an increment. */
typedef struct {
    uint64_t low, high, step_low, step_high;
} Random;

static uint64_t high_product(uint64_t a, uint64_t b)
{
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (uint32_t)middle;
    return a1 * b1 + (middle >> 32) + (other >> 32);
}

static uint64_t next_random(Random *random)
{
    uint64_t low = random->low, found = random->high;
    found = (found ^ found >> 32) * MULTIPLIER;
    found = (found ^ found >> 48) * (low | 1);
    random->high = random->high * MULTIPLIER + high_product(low, MULTIPLIER) + random->step_high;
    random->low = low * MULTIPLIER + random->step_low;
    random->high += random->low < random->step_low;
    return found;
}

/* Write four bytes: a cell's bytes, lowest first, then zeros. Return where the next bytes go. */
static inline uint8_t *put_cell(uint8_t *out, uint32_t cell)
{
    out[0] = (uint8_t)cell;
    out[1] = (uint8_t)(cell >> 8);
    out[2] = (uint8_t)(cell >> 16);
    out[3] = (uint8_t)(cell >> 24);
    return out + ((70 - __builtin_clzll((uint64_t)cell << 1 | 1)) >> 3);
}

/* Write the word that has a given rank in frequency; return where the next bytes go. */
static uint8_t *spell(uint64_t rank, const uint32_t *syllables, const uint32_t *codas, uint8_t *out)
{
    int count = 1 + (rank >= 1 << 6) + (rank >= 1 << 11) + (rank >= 1 << 19);
    uint64_t number = rank * 0x9E3779B97F4A7C15u, mixed = rank * 0xD1B54A32D192ED03u;
    number &= ((uint64_t)1 << 8 * count) - 1;
    number ^= number >> 4 * count;
    int script = (int)(mixed >> 58) > 61 ? (int)(mixed >> 58) - 61 : 0;
    for (int place = 0; place < count; place++)
        out = put_cell(out, syllables[256 * script + (uint8_t)(number >> 8 * place)]);
    return script ? out : put_cell(out, codas[mixed >> 55 & 7]);
}

static uint64_t rare_rank(uint64_t random, double table_words)
{
    double share = (double)(random + 1) / 0x1p40;
    double rank = table_words / (share * sqrt(share));
    return (uint64_t)(rank - (double)(uint64_t)(rank * 0x1p-32) * 0x1p32);
}

/* The tables that blocks are made of.
 *
 * words: number of words of a block. ranks: (draws,), ranks below table_words; how often a rank
 * occurs in the table decides how often it is drawn.
 * frequent: (table_words, ENTRY), the words of these ranks. syllables (768,), codas (8,) and ends
 *     (256,): cells. ends_sentence: (256,), whether each of `ends` ends a sentence.
 */
typedef struct {
    int64_t words, draws, table_words;
    const uint16_t *ranks;
    const uint8_t *frequent;
    const uint32_t *syllables, *codas, *ends;
    const uint8_t *ends_sentence;
} Material;

static uint8_t *put_block(Random random, const Material *from, uint8_t *at)
{
    int begins_sentence = 1;
    for (int64_t word = 0; word < from->words; word++) {
        uint64_t drawn = next_random(&random);
        uint8_t *begin = at;
        if ((int64_t)(drawn & 0xFFFF) < from->draws) {
            const uint8_t *entry = from->frequent + ENTRY * from->ranks[drawn & 0xFFFF];
            memcpy(at, entry, LENGTH);
            at += entry[LENGTH];
        } else {
            uint64_t rank = rare_rank(drawn >> 24, (double)from->table_words);
            at = spell(rank, from->syllables, from->codas, at);
        }
        if (begins_sentence && *begin >= 'a' && *begin <= 'z')
            *begin ^= 0x20;
        uint8_t end = word + 1 < from->words ? (uint8_t)(drawn >> 16) : 255;
        at = put_cell(at, from->ends[end]);
        begins_sentence = from->ends_sentence[end];
    }
    return at;
}

/* Write blocks end to end to `out`, which has room for LENGTH bytes for each word and 4 more.
 *
 * states: uint64_t (blocks, 4), the state and the increment of each block's generator, lower half
 *     first. sizes: int64_t (blocks,), set to the bytes of each block.
 */
API void llmgpu_generate_blocks(const uint64_t *states, int64_t blocks, const Material *from,
                                uint8_t *out, int64_t *sizes)
{
    for (int64_t block = 0; block < blocks; block++) {
        const uint64_t *state = states + 4 * block;
        Random random = {state[0], state[1], state[2], state[3]};
        uint8_t *end = put_block(random, from, out);
        sizes[block] = end - out;
        out = end;
    }
}
