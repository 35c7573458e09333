/* Threads that share one table of words, under ThreadSanitizer: each encodes texts of random words, and
 * compares what its ids spell with the text. The table grows, or is full, or has hardly any room.
 * Threads of the engine do the same with parts of one text.
 * Threads that share the items of jobs do each once. Threads that read a file all find its end. */
#include <pthread.h>
#include <stdio.h>

#include "tensors.h"

#define THREADS 4
#define TEXT_BYTES 300000
#define PAIRS 26 /* tokens of a space and a letter, after those of single bytes */

#define PIECES_BYTES (16 << 20) /* several pieces of a file */

#define ITEMS 100
#define JOBS 3000

Threads *llmgpu_threads_new(int64_t count);
void llmgpu_threads_free(Threads *threads);

int64_t llmgpu_read(int descriptor, uint8_t *target, int64_t length, int64_t offset, int threads);

Pattern *llmgpu_pattern_new(const char *kernel, int digits, int whole_at_end,
                            const uint8_t *classes);
Vocabulary *llmgpu_vocabulary_new(const uint8_t *data, const int64_t *offsets,
                                  const int64_t *tokens, int64_t count, const uint32_t *merges,
                                  int64_t num_merges, int takes_whole, uint32_t unknown,
                                  const uint32_t *nodes, const uint32_t *edges);
SharedWords *llmgpu_shared_words_new(int64_t most_bytes);
void llmgpu_shared_words_free(SharedWords *words);
Encoder *llmgpu_encoder_new(const Pattern *pattern, const Vocabulary *vocabulary, int64_t threads);
void llmgpu_encoder_free(Encoder *encoders);
int64_t llmgpu_encode(Encoder *encoders, SharedWords *shared, const uint8_t *text,
                      const uint8_t *marks, int descriptor, int64_t offset, int64_t length,
                      int64_t main_end, int64_t entry, const int64_t *starts, int64_t num_starts,
                      int64_t own_starts, int64_t *token_starts, int64_t part_bytes,
                      uint32_t *ids, int64_t *stopped);
int64_t llmgpu_encode_document(Encoder *encoder, SharedWords *words, const uint8_t *text,
                               int64_t length, int64_t part_bytes, uint32_t *ids);

static uint8_t classes[0x110000], text[TEXT_BYTES + TEXT_PADDING];
static Pattern *pattern;
static Vocabulary *vocabulary;
static SharedWords *words;
static int mistakes;

static int spells(const uint32_t *ids, int64_t count, const uint8_t *from)
{
    const uint8_t *at = from;

    for (int64_t k = 0; k < count; k++) {
        if (ids[k] < 256) {
            if (*at++ != ids[k])
                return 0;
        } else {
            if (*at++ != ' ' || *at++ != 'a' + (ids[k] - 256))
                return 0;
        }
    }
    return at == text + TEXT_BYTES;
}

static void *encode(void *number)
{
    Encoder *encoder = llmgpu_encoder_new(pattern, vocabulary, 1);
    uint32_t *ids = malloc((TEXT_BYTES + 3) * sizeof *ids);

    for (int64_t times = 1; times <= 3; times++) {
        const uint8_t *from = text + (int64_t)(intptr_t)number * 7919 * times;
        int64_t length = text + TEXT_BYTES - from;
        int64_t count = llmgpu_encode_document(encoder, words, from, length, 1, ids);
        if (!spells(ids, count, from))
            __atomic_fetch_add(&mistakes, 1, __ATOMIC_RELAXED);
    }
    free(ids);
    llmgpu_encoder_free(encoder);
    return NULL;
}

/* Encode one text in several threads, in parts of many sizes. */
static void encode_in_parts(void)
{
    Encoder *encoder = llmgpu_encoder_new(pattern, vocabulary, THREADS);
    uint32_t *ids = malloc((TEXT_BYTES + 3) * sizeof *ids);
    int64_t stopped;

    for (int64_t bytes = 50; bytes < TEXT_BYTES; bytes *= 3) {
        int64_t count = llmgpu_encode(encoder, words, text, NULL, -1, 0, TEXT_BYTES, TEXT_BYTES, 0,
                                      NULL, 0, 0, NULL, bytes, ids, &stopped);
        mistakes += stopped != TEXT_BYTES || !spells(ids, count, text);
    }
    free(ids);
    llmgpu_encoder_free(encoder);
}

static void make_vocabulary(void)
{
    static uint8_t data[256 + 2 * PAIRS + TEXT_PADDING];
    static int64_t offsets[256 + PAIRS + 1], tokens[256 + PAIRS];

    for (int k = 0; k < 256 + PAIRS; k++) {
        tokens[k] = k;
        offsets[k] = k < 256 ? k : 256 + 2 * (k - 256);
        data[offsets[k]] = k < 256 ? (uint8_t)k : ' ';
        if (k >= 256)
            data[offsets[k] + 1] = (uint8_t)('a' + k - 256);
    }
    offsets[256 + PAIRS] = 256 + 2 * PAIRS;
    for (int byte = 'a'; byte <= 'z'; byte++)
        classes[byte] = 2; /* a small letter */
    classes[' '] = 6;
    pattern = llmgpu_pattern_new("cl100k", 3, 1, classes);
    vocabulary = llmgpu_vocabulary_new(data, offsets, tokens, 256 + PAIRS, NULL, 0, 1, NO_ID, NULL,
                                       NULL);
}

static void make_text(void)
{
    uint64_t random = 88172645463325252u;
    int left = 0;

    for (int64_t k = 0; k < TEXT_BYTES; k++, left--) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        text[k] = left == 0 ? ' ' : (uint8_t)('a' + random % 5);
        if (left == 0)
            left = (int)(random >> 40) % 23 + 2;
    }
}

static void check_reading(void)
{
    FILE *file = tmpfile();
    uint8_t *target = malloc(PIECES_BYTES);

    if (fwrite(text, 1, 10, file) != 10 || fflush(file) != 0)
        mistakes++;
    for (int times = 0; times < 20; times++)
        mistakes += llmgpu_read(fileno(file), target, PIECES_BYTES, 0, THREADS) != 10;
    free(target);
    fclose(file);
}

static void count_items(const void *arguments, int64_t start, int64_t stop, int64_t thread)
{
    (void)thread;
    for (int64_t item = start; item < stop; item++)
        ++*((int64_t *const *)arguments)[item];
}

static void check_jobs(void)
{
    Threads *threads = llmgpu_threads_new(THREADS);
    int64_t counts[ITEMS] = {0}, *items[ITEMS];

    for (int64_t k = 0; k < ITEMS; k++)
        items[k] = &counts[k];
    for (int64_t job = 0; job < JOBS; job++)
        run_job(threads, count_items, items, ITEMS, 1 + job % 30);
    llmgpu_threads_free(threads);
    for (int64_t k = 0; k < ITEMS; k++)
        mistakes += counts[k] != JOBS;
}

int main(void)
{
    int64_t rooms[] = {INT64_C(384) << 20, INT64_C(3) << 20, 100000};

    make_vocabulary();
    make_text();
    for (int k = 0; k < 3; k++) {
        pthread_t threads[THREADS];
        words = llmgpu_shared_words_new(rooms[k]);
        for (intptr_t n = 0; n < THREADS; n++)
            pthread_create(threads + n, NULL, encode, (void *)(n + 1));
        for (int n = 0; n < THREADS; n++)
            pthread_join(threads[n], NULL);
        encode_in_parts();
        llmgpu_shared_words_free(words);
    }
    check_jobs();
    check_reading();
    printf("%d mistakes\n", mistakes);
    return mistakes != 0;
}
