/* The declarations that the files for language models share: threads, and products by NumPy's
 * library.
 *
 * Arrays are float, in C order, unless a comment says otherwise. The bits of a result depend
 * neither on the number of threads nor on the processor's vectors. The bits of a product depend on
 * NumPy's library.
 */
#ifndef LLMGPU_TENSORS_H
#define LLMGPU_TENSORS_H

#include "engine.h"

#include <math.h>

/* The logarithm, computed in double precision: once rounded, all C libraries give the same bits. */
static inline float log_of(float x)
{
    return (float)log((double)x);
}

/* ---- Threads (threads.c) ---- */

typedef struct Threads Threads;

/* A function that computes the items from `start` to `stop` of a job; thread: the thread's number,
   from 0. */
typedef void (*Job)(const void *arguments, int64_t start, int64_t stop, int64_t thread);

int64_t thread_count(const Threads *threads);

/* Compute `count` items of a job in all threads, `step` items at a time. Only one job runs at a
   time; further calls wait. */
void run_job(Threads *threads, Job job, const void *arguments, int64_t count, int64_t step);

/* Return the fewest items for which a step is worth a thread; elements: number of elements of an
   item. */
int64_t worthwhile_step(int64_t elements);

/* ---- Matrix products (products.c) ---- */

/* NumPy's cblas_sgemm, whose integers have 64 bits or the size of an int. It must compute in one
 * thread, and several threads may call it. */
typedef struct {
    void *sgemm;
    int has_64_bits;
} Blas;

/* A matrix: its first element, whether it is stored transposed, and the number of elements from the
 * start of a stored row to the start of the next. */
typedef struct {
    const float *data;
    int is_transposed;
    int64_t stride;
} Matrix;

/* Compute out = scale * left right + keep * out. left: (rows, inner), right: (inner, columns). */
void multiply(const Blas *blas, float scale, Matrix left, Matrix right, float keep, float *out,
              int64_t out_stride, int64_t rows, int64_t columns, int64_t inner);

/* ---- Rows (rows.c) ---- */

/* Replace `n` scores by softmax's numerators; write the largest score and the numerators' sum. */
void softmax_numerators(float *scores, int64_t n, float *largest, float *total);

/* Replace scores by probabilities; their log-sum-exp is known. */
void exp_shifted(float *scores, int64_t n, float shift);

float dot(const float *a, const float *b, int64_t n);

#endif
