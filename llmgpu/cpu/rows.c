/* The operations of a language model on rows or single elements of tensors, in several threads. */
#include "tensors.h"

#define LANES 16 /* sums that are computed side by side */
#define SUM_BLOCK 2048 /* numbers summed in float; sums of more numbers are added in double */
#define NORM_ROWS 64 /* rows that make one partial sum of a weight's gradient */

/* Vectors, which may be at any address of a number. */
typedef float Vector __attribute__((vector_size(LANES / 2 * 4), aligned(4), may_alias));
typedef int32_t Mask __attribute__((vector_size(LANES / 2 * 4), aligned(4), may_alias));

typedef struct {
    const float *x, *weight, *grad_out;
    float *out, *inverse_rms, *grad_x, *partials;
    int64_t rows, width;
    float epsilon;
} Norm;

typedef struct {
    float *x;
    const float *cosines, *sines;
    const uint32_t *positions;
    int64_t width, head_dim;
    int is_inverse;
} Rotation;

typedef struct {
    const float *gate, *up, *grad_out;
    float *out, *grad_gate, *grad_up;
} Swiglu;

typedef struct {
    float *parameter, *first, *second;
    const float *gradient;
    float clip_scale, one_minus_beta1, one_minus_beta2, root_of_correction2, epsilon, decay, rate;
} Adamw;

typedef struct {
    float (*dot)(const float *, const float *, int64_t);
    float (*sum)(const float *, int64_t);
    int (*are_finite)(const float *, int64_t);
    float (*largest)(const float *, int64_t);
    void (*exp_shifted)(float *, int64_t, float);
    void (*rescale)(float *, int64_t, float, float, float);
    void (*norm)(const Norm *, int64_t);
    void (*norm_backward)(const Norm *, int64_t, float *);
    void (*rotate)(const Rotation *, int64_t);
    void (*swiglu)(const Swiglu *, int64_t, int64_t);
    void (*swiglu_backward)(const Swiglu *, int64_t, int64_t);
    void (*adamw)(const Adamw *, int64_t, int64_t);
} Kernels;

#pragma GCC diagnostic ignored "-Wpsabi" /* no vector is passed to a function */

#define NAME(name) plain_##name
#define TARGET
#include "row_kernels.h"

#if defined(__x86_64__) && !defined(LLMGPU_PLAIN)
#define NAME(name) avx2_##name
#define TARGET __attribute__((target("avx2")))
#include "row_kernels.h"

#if defined(__clang__)
#define WIDEST ""
#else
#define WIDEST ",prefer-vector-width=512"
#endif
#define NAME(name) avx512_##name
#define TARGET __attribute__((target("avx512f,avx512vl,avx512dq" WIDEST)))
#include "row_kernels.h"
#endif

/* Return the functions for the vectors of this processor. */
static const Kernels *kernels_here(void)
{
#if defined(__x86_64__) && !defined(LLMGPU_PLAIN)
    if (__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return &avx512_kernels;
    if (__builtin_cpu_supports("avx2"))
        return &avx2_kernels;
#endif
    return &plain_kernels;
}

float dot(const float *a, const float *b, int64_t n)
{
    return kernels_here()->dot(a, b, n);
}

void exp_shifted(float *scores, int64_t n, float shift)
{
    kernels_here()->exp_shifted(scores, n, shift);
}

void softmax_numerators(float *scores, int64_t n, float *largest, float *total)
{
    const Kernels *kernels = kernels_here();

    *largest = kernels->largest(scores, n);
    kernels->exp_shifted(scores, n, *largest);
    *total = kernels->sum(scores, n);
}

/* ---- RMS norm ---- */

static void norm_rows(const void *arguments, int64_t start, int64_t stop, int64_t thread)
{
    const Kernels *kernels = kernels_here();

    (void)thread;
    for (int64_t row = start; row < stop; row++)
        kernels->norm(arguments, row);
}

API void llmgpu_rms_norm(Threads *threads, const float *x, const float *weight, float *out,
                         float *inverse_rms, int64_t rows, int64_t width, float epsilon)
{
    Norm norm = {.x = x, .weight = weight, .out = out, .inverse_rms = inverse_rms, .rows = rows,
                 .width = width, .epsilon = epsilon};
    run_job(threads, norm_rows, &norm, rows, worthwhile_step(width));
}

static void norm_backward_blocks(const void *arguments, int64_t start, int64_t stop, int64_t thread)
{
    const Norm *p = arguments;
    const Kernels *kernels = kernels_here();

    (void)thread;
    for (int64_t block = start; block < stop; block++) {
        int64_t row = block * NORM_ROWS;
        int64_t end = p->rows - row < NORM_ROWS ? p->rows : row + NORM_ROWS;
        float *partial = p->partials + block * p->width;
        memset(partial, 0, (size_t)p->width * sizeof *partial);
        for (; row < end; row++)
            kernels->norm_backward(p, row, partial);
    }
}

/* Add to the gradients of x and of the weight. partials: has room for (rows / NORM_ROWS rounded up,
 * width) numbers. */
API void llmgpu_rms_norm_backward(Threads *threads, const float *x, const float *weight,
                                  float *inverse_rms, const float *grad_out, float *grad_x,
                                  float *grad_weight, float *partials, int64_t rows, int64_t width)
{
    Norm norm = {.x = x, .weight = weight, .grad_out = grad_out, .inverse_rms = inverse_rms,
                 .grad_x = grad_x, .partials = partials, .rows = rows, .width = width};
    int64_t blocks = (rows + NORM_ROWS - 1) / NORM_ROWS;

    run_job(threads, norm_backward_blocks, &norm, blocks, worthwhile_step(NORM_ROWS * width));
    for (int64_t block = 0; block < blocks; block++)
        for (int64_t i = 0; i < width; i++)
            grad_weight[i] += partials[block * width + i];
}

/* ---- Rotation and activation ---- */

static void rotate_rows(const void *arguments, int64_t start, int64_t stop, int64_t thread)
{
    const Kernels *kernels = kernels_here();

    (void)thread;
    for (int64_t row = start; row < stop; row++)
        kernels->rotate(arguments, row);
}

API void llmgpu_rotary(Threads *threads, float *x, const float *cosines, const float *sines,
                       const uint32_t *positions, int64_t rows, int64_t width, int64_t head_dim,
                       int is_inverse)
{
    Rotation rotation = {x, cosines, sines, positions, width, head_dim, is_inverse};
    run_job(threads, rotate_rows, &rotation, rows, worthwhile_step(width));
}

static void activate(const void *arguments, int64_t start, int64_t stop, int64_t thread)
{
    (void)thread;
    kernels_here()->swiglu(arguments, start, stop);
}

API void llmgpu_swiglu(Threads *threads, const float *gate, const float *up, float *out,
                       int64_t elements)
{
    Swiglu swiglu = {.gate = gate, .up = up, .out = out};
    run_job(threads, activate, &swiglu, elements, worthwhile_step(1));
}

static void activate_backward(const void *arguments, int64_t start, int64_t stop, int64_t thread)
{
    (void)thread;
    kernels_here()->swiglu_backward(arguments, start, stop);
}

API void llmgpu_swiglu_backward(Threads *threads, const float *gate, const float *up,
                                const float *grad_out, float *grad_gate, float *grad_up,
                                int64_t elements)
{
    Swiglu swiglu = {gate, up, grad_out, NULL, grad_gate, grad_up};
    run_job(threads, activate_backward, &swiglu, elements, worthwhile_step(1));
}

/* ---- Cross-entropy ---- */

typedef struct {
    float *logits;
    const uint32_t *targets;
    float *losses, *smoothing, *z_losses;
    const float *params;
    int64_t width, tokens;
} Loss;

/* Write the parts of a row's loss, and replace its finite logits by the gradient; see
 * `_loss_and_gradient` in ids.py. */
static void row_loss(const Loss *p, int64_t row, float *logits, uint32_t target)
{
    const Kernels *kernels = kernels_here();
    const float inv_norm = p->params[0], alpha = p->params[1], beta = p->params[2];
    const float spread = alpha * p->params[3];
    int64_t n = p->tokens;
    float largest = kernels->largest(logits, n), distance = logits[target] - largest;
    float loss = -distance, smoothing = 0.0f;

    if (alpha > 0.0f) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += (double)(logits[i] - largest);
        float mean = (float)(sum / (double)n);
        smoothing = alpha * (distance - mean);
    }
    kernels->exp_shifted(logits, n, largest);
    /* Sum the other tokens apart from the target: their share 1 - p is then exact even if p is
     * nearly 1. */
    float of_target = logits[target];
    logits[target] = 0.0f;
    float rest = kernels->sum(logits, n), total = rest + of_target;
    float log_sum_exp = largest + log_of(total), z_loss = beta * log_sum_exp * log_sum_exp;
    /* If the target has the largest logit, `rest` may be too small to change 1 + rest. */
    loss += of_target == 1.0f ? (float)log1p((double)rest) : log_of(total);
    p->losses[row] = loss;
    p->smoothing[row] = smoothing;
    p->z_losses[row] = z_loss;
    float pull = 2.0f * beta * log_sum_exp, factor = (1.0f + pull) / total;
    kernels->rescale(logits, n, factor, spread, inv_norm);
    logits[target] = ((pull * of_target - rest) / total + alpha - spread) * inv_norm;
}

static void loss_rows(const void *arguments, int64_t start, int64_t stop, int64_t thread)
{
    const Loss *p = arguments;

    (void)thread;
    for (int64_t row = start; row < stop; row++) {
        float *logits = p->logits + row * p->width, replaced = 0.0f;
        memset(logits + p->tokens, 0, (size_t)(p->width - p->tokens) * sizeof *logits);
        if (p->targets[row] < p->tokens) {
            if (kernels_here()->are_finite(logits, p->tokens)) {
                row_loss(p, row, logits, p->targets[row]);
                continue;
            }
            replaced = NAN;
        }
        for (int64_t i = 0; i < p->tokens; i++)
            logits[i] = replaced;
        p->losses[row] = p->smoothing[row] = p->z_losses[row] = replaced;
    }
}

/* Overwrite logits by their gradient, and write the parts of the losses; see
 * Operations.cross_entropy. */
API void llmgpu_cross_entropy(Threads *threads, float *logits, const uint32_t *targets,
                              float *losses, float *smoothing, float *z_losses, const float *params,
                              int64_t rows, int64_t width, int64_t tokens)
{
    Loss loss = {logits, targets, losses, smoothing, z_losses, params, width, tokens};
    run_job(threads, loss_rows, &loss, rows, worthwhile_step(width));
}

/* ---- Gradients ---- */

typedef struct {
    const float *values;
    float *sums;
    int64_t elements, piece;
} Squares;

static void add_squares(const void *arguments, int64_t start, int64_t stop, int64_t thread)
{
    const Squares *p = arguments;

    (void)thread;
    for (int64_t k = start; k < stop; k++) {
        const float *piece = p->values + k * p->piece;
        int64_t left = p->elements - k * p->piece;
        p->sums[k] = dot(piece, piece, left < p->piece ? left : p->piece);
    }
}

/* Write the sum of squares of each piece of `piece` numbers. */
API void llmgpu_reduce_norm_sq(Threads *threads, const float *values, float *sums, int64_t elements,
                               int64_t piece)
{
    Squares squares = {values, sums, elements, piece};
    run_job(threads, add_squares, &squares, (elements + piece - 1) / piece, worthwhile_step(piece));
}

static void update(const void *arguments, int64_t start, int64_t stop, int64_t thread)
{
    (void)thread;
    kernels_here()->adamw(arguments, start, stop);
}

/* The parameters of a step of an optimizer, as in wgsl/lm/hyper.wgsl. */
typedef struct {
    float learning_rate, one_minus_beta1, one_minus_beta2, epsilon, weight_decay, correction1,
        correction2, max_norm, inverse_count, inverse_scale;
    uint32_t slot;
} Hyper;

enum { CLIP_SCALE, NORM, BAD }; /* indices in `stats`, as in llmgpu/lm/ops/optimizer.py */

API void llmgpu_adamw(Threads *threads, float *parameter, const float *gradient, float *first,
                      float *second, const float *stats, const Hyper *hyper, int decays,
                      int64_t elements)
{
    double rate = (double)hyper->learning_rate;
    Adamw adamw = {
        .parameter = parameter,
        .first = first,
        .second = second,
        .gradient = gradient,
        .clip_scale = stats[CLIP_SCALE],
        .one_minus_beta1 = hyper->one_minus_beta1,
        .one_minus_beta2 = hyper->one_minus_beta2,
        .root_of_correction2 = (float)sqrt((double)hyper->correction2),
        .epsilon = hyper->epsilon,
        .decay = decays ? (float)(1 - rate * (double)hyper->weight_decay) : 1.0f,
        .rate = (float)(rate / (double)hyper->correction1),
    };

    if (stats[BAD] == 0.0f)
        run_job(threads, update, &adamw, elements, worthwhile_step(1));
}
