/* What the files for language models share: threads, and matrix products of NumPy's library.
 *
 * Arrays are float, in C order, unless a comment says otherwise. The bits of a result depend neither
 * on the number of threads nor on the processor's vectors; those of a product on NumPy's library.
 */
#ifndef LLMGPU_TENSORS_H
#define LLMGPU_TENSORS_H

#include "engine.h"

#include <math.h>

/* In double precision, where the C libraries agree once it is rounded. */
static inline float log_of(float x)
{
    return (float)log((double)x);
}

/* ---- Threads (threads.c) ---- */

typedef struct Threads Threads;

/* Do the items from `start` up to `stop` of a job; `thread` counts from 0. */
typedef void (*Job)(const void *arguments, int64_t start, int64_t stop, int64_t thread);

int64_t thread_count(const Threads *threads);

/* Do `count` items of a job, `step` at a time, in all threads; one call at a time. */
void run_job(Threads *threads, Job job, const void *arguments, int64_t count, int64_t step);

/* Return how many items make a step that is worth a thread, by the elements of an item. */
int64_t worthwhile_step(int64_t elements);

/* ---- Matrix products (products.c) ---- */

/* cblas_sgemm, whose whole numbers have 64 bits or those of an int. It has to compute with one
 * thread, and may be called from several. */
typedef struct {
    void *sgemm;
    int has_64_bits;
} Blas;

/* A matrix: where it begins, whether it is stored transposed, and the elements from row to row. */
typedef struct {
    const float *data;
    int is_transposed;
    int64_t stride;
} Matrix;

/* out = scale * left right + keep * out, (rows, inner) and (inner, columns). */
void multiply(const Blas *blas, float scale, Matrix left, Matrix right, float keep, float *out,
              int64_t out_stride, int64_t rows, int64_t columns, int64_t inner);

/* ---- Rows (rows.c) ---- */

/* Compute softmax's numerators of `n` scores in place; return the largest score and the sum. */
void softmax_numerators(float *scores, int64_t n, float *largest, float *total);

/* Scores become probabilities by their log-sum-exp. */
void exp_shifted(float *scores, int64_t n, float shift);

float dot(const float *a, const float *b, int64_t n);

#endif
