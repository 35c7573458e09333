/* Matrix products in several threads, which call NumPy's BLAS library, and attention, which
 * consists of such products.
 *
 * A product is divided into parts of whole rows or columns. The caller gives the largest number of
 * parts: the number of threads, if the bits of the library's sums do not depend on the number of
 * rows and columns of a product that is too large for the library's small kernels. Otherwise the
 * number must not depend on the number of threads.
 */
#include "tensors.h"

#define ALIGNMENT 64 /* rows or columns of a part are a multiple of this */
#define LEAST_PART (INT64_C(1) << 22) /* multiplications; a smaller part is not worth a thread */
#define BLOCK 64 /* queries whose scores are computed at a time */

enum { ROW_MAJOR = 101, AS_IT_IS = 111, TRANSPOSED = 112 }; /* constants of CBLAS */

typedef void (*Sgemm64)(int, int, int, int64_t, int64_t, int64_t, float, const float *, int64_t,
                        const float *, int64_t, float, float *, int64_t);
typedef void (*Sgemm)(int, int, int, int, int, int, float, const float *, int, const float *, int,
                      float, float *, int);

void multiply(const Blas *blas, float scale, Matrix left, Matrix right, float keep, float *out,
              int64_t out_stride, int64_t rows, int64_t columns, int64_t inner)
{
    int of_left = left.is_transposed ? TRANSPOSED : AS_IT_IS;
    int of_right = right.is_transposed ? TRANSPOSED : AS_IT_IS;

    if (blas->has_64_bits)
        ((Sgemm64)blas->sgemm)(ROW_MAJOR, of_left, of_right, rows, columns, inner, scale, left.data,
                               left.stride, right.data, right.stride, keep, out, out_stride);
    else
        ((Sgemm)blas->sgemm)(ROW_MAJOR, of_left, of_right, (int)rows, (int)columns, (int)inner,
                             scale, left.data, (int)left.stride, right.data, (int)right.stride,
                             keep, out, (int)out_stride);
}

typedef struct {
    Blas blas;
    Matrix left, right;
    const float *addend;
    float *out;
    int64_t rows, columns, inner, parts;
} Product;

static void multiply_parts(const void *arguments, int64_t start, int64_t stop, int64_t thread)
{
    const Product *p = arguments;
    int64_t longer = p->rows >= p->columns ? p->rows : p->columns, units = longer / ALIGNMENT;
    int64_t from = start * units / p->parts * ALIGNMENT;
    int64_t to = stop == p->parts ? longer : stop * units / p->parts * ALIGNMENT;
    int64_t rows = p->rows, columns = p->columns;
    Matrix left = p->left, right = p->right;
    float *out = p->out;
    const float *addend = p->addend;

    (void)thread;
    if (p->rows >= p->columns) {
        left.data += from * (left.is_transposed ? 1 : left.stride);
        rows = to - from;
        out += from * columns;
    } else {
        right.data += from * (right.is_transposed ? right.stride : 1);
        columns = to - from;
        out += from;
    }
    if (addend != NULL && addend != p->out)
        for (int64_t row = 0; row < rows; row++)
            memcpy(out + row * p->columns, addend + (out - p->out) + row * p->columns,
                   (size_t)columns * sizeof *out);
    multiply(&p->blas, 1.0f, left, right, addend != NULL ? 1.0f : 0.0f, out, p->columns, rows,
             columns, p->inner);
}

/* Compute out = left right + addend in at most `most_parts` parts. left: (rows, inner), right:
 * (inner, columns), each stored as it is or transposed. addend: (rows, columns), may be `out`
 * itself, or NULL. */
API void llmgpu_multiply(Threads *threads, void *sgemm, int has_64_bits, const float *left,
                         int left_transposed, const float *right, int right_transposed,
                         const float *addend, float *out, int64_t rows, int64_t columns,
                         int64_t inner, int64_t most_parts)
{
    int64_t longer = rows >= columns ? rows : columns;
    int64_t parts = rows * columns * inner / LEAST_PART;

    if (rows == 0 || columns == 0)
        return;
    if (parts > most_parts)
        parts = most_parts;
    if (parts > longer / ALIGNMENT)
        parts = longer / ALIGNMENT;
    if (parts < 1)
        parts = 1;
    Product product = {
        .blas = {sgemm, has_64_bits},
        .left = {left, left_transposed, left_transposed ? rows : inner},
        .right = {right, right_transposed, right_transposed ? inner : columns},
        .addend = addend,
        .out = out,
        .rows = rows,
        .columns = columns,
        .inner = inner,
        .parts = parts,
    };
    run_job(threads, multiply_parts, &product, parts, 1);
}

/* ---- Attention ---- */

/* The arguments of attention. starts: uint32_t (batch * seq,), the first key that each query sees.
 * scores: has room for 2 * BLOCK * seq numbers for each thread. The other fields are those of
 * AttentionTensors and AttentionGradients. */
typedef struct {
    Blas blas;
    const float *q, *k, *v;
    float *out, *log_sum_exp;
    const float *grad_out;
    float *grad_q, *grad_k, *grad_v;
    const uint32_t *starts;
    float *scores;
    int64_t batch, seq, heads, kv_heads, head_dim;
    float scale;
} Attention;

/* A block of queries of a head: where its rows begin in the queries and in the keys, and the
 * numbers of queries and keys. */
typedef struct {
    int64_t query, key, rows, keys, first;
} Block;

static Block block_of(const Attention *a, int64_t sequence, int64_t head, int64_t first)
{
    int64_t group = a->heads / a->kv_heads, rows = a->seq - first < BLOCK ? a->seq - first : BLOCK;

    return (Block){
        .query = ((sequence * a->seq + first) * a->heads + head) * a->head_dim,
        .key = (sequence * a->seq * a->kv_heads + head / group) * a->head_dim,
        .rows = rows,
        .keys = first + rows,
        .first = first,
    };
}

/* Compute the scores of a block's queries for all of its keys: (rows, keys). */
static void block_scores(const Attention *a, const Block *b, float *scores)
{
    multiply(&a->blas, a->scale, (Matrix){a->q + b->query, 0, a->heads * a->head_dim},
             (Matrix){a->k + b->key, 1, a->kv_heads * a->head_dim}, 0.0f, scores, b->keys, b->rows,
             b->keys, a->head_dim);
}

/* Set the scores in a row to 0, except the scores of the keys from `first` to `seen`, which the
 * query sees. */
static void clear_unseen(float *row, int64_t first, int64_t seen, int64_t keys)
{
    memset(row, 0, (size_t)first * sizeof *row);
    memset(row + seen, 0, (size_t)(keys - seen) * sizeof *row);
}

static void attend(const void *arguments, int64_t start, int64_t stop, int64_t thread)
{
    const Attention *a = arguments;
    float *scores = a->scores + thread * 2 * BLOCK * a->seq;
    int64_t width = a->heads * a->head_dim;

    for (int64_t item = start; item < stop; item++)
        for (int64_t first = 0; first < a->seq; first += BLOCK) {
            int64_t sequence = item / a->heads, head = item % a->heads;
            Block b = block_of(a, sequence, head, first);
            block_scores(a, &b, scores);
            float totals[BLOCK];
            for (int64_t i = 0; i < b.rows; i++) {
                float *row = scores + i * b.keys, largest;
                int64_t query = sequence * a->seq + first + i, seen = first + i + 1;
                int64_t from = a->starts[query];
                softmax_numerators(row + from, seen - from, &largest, &totals[i]);
                clear_unseen(row, from, seen, b.keys);
                a->log_sum_exp[query * a->heads + head] = largest + log_of(totals[i]);
            }
            multiply(&a->blas, 1.0f, (Matrix){scores, 0, b.keys},
                     (Matrix){a->v + b.key, 0, a->kv_heads * a->head_dim}, 0.0f, a->out + b.query,
                     width, b.rows, a->head_dim, b.keys);
            for (int64_t i = 0; i < b.rows; i++)
                for (int64_t d = 0; d < a->head_dim; d++)
                    a->out[b.query + i * width + d] /= totals[i];
        }
}

/* Compute attention's output and log_sum_exp; see Operations.attention. */
API void llmgpu_attention(Threads *threads, void *sgemm, int has_64_bits, const float *q,
                          const float *k, const float *v, float *out, float *log_sum_exp,
                          const uint32_t *starts, float *scores, int64_t batch, int64_t seq,
                          int64_t heads, int64_t kv_heads, int64_t head_dim, float scale)
{
    Attention a = {
        .blas = {sgemm, has_64_bits},
        .q = q, .k = k, .v = v, .out = out, .log_sum_exp = log_sum_exp, .starts = starts,
        .scores = scores, .batch = batch, .seq = seq, .heads = heads, .kv_heads = kv_heads,
        .head_dim = head_dim, .scale = scale,
    };
    run_job(threads, attend, &a, batch * heads, 1);
}

/* Turn the scores of a block into probabilities, and the gradients of probabilities into gradients
 * of scores. */
static void score_gradients(const Attention *a, const Block *b, int64_t sequence, int64_t head,
                            float *scores, float *gradients)
{
    int64_t width = a->heads * a->head_dim;

    for (int64_t i = 0; i < b->rows; i++) {
        int64_t query = sequence * a->seq + b->first + i, seen = b->first + i + 1;
        int64_t from = a->starts[query], at = b->query + i * width;
        float *p = scores + i * b->keys, *ds = gradients + i * b->keys;
        exp_shifted(p + from, seen - from, a->log_sum_exp[query * a->heads + head]);
        clear_unseen(p, from, seen, b->keys);
        /* A softmax has ds = p (dp - sum of p dp over the row); that sum is grad . out. */
        float delta = dot(a->grad_out + at, a->out + at, a->head_dim);
        for (int64_t key = from; key < seen; key++)
            ds[key] = (ds[key] - delta) * p[key] * a->scale;
        clear_unseen(ds, from, seen, b->keys);
    }
}

static void attend_backward(const void *arguments, int64_t start, int64_t stop, int64_t thread)
{
    const Attention *a = arguments;
    float *scores = a->scores + thread * 2 * BLOCK * a->seq, *gradients = scores + BLOCK * a->seq;
    int64_t width = a->heads * a->head_dim, kv_width = a->kv_heads * a->head_dim;
    int64_t group = a->heads / a->kv_heads;

    for (int64_t item = start; item < stop; item++) {
        int64_t sequence = item / a->kv_heads, kv_head = item % a->kv_heads;
        for (int64_t key = 0; key < a->seq; key++) {
            int64_t at = (sequence * a->seq + key) * kv_width + kv_head * a->head_dim;
            memset(a->grad_k + at, 0, (size_t)a->head_dim * sizeof(float));
            memset(a->grad_v + at, 0, (size_t)a->head_dim * sizeof(float));
        }
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
            for (int64_t first = 0; first < a->seq; first += BLOCK) {
                Block b = block_of(a, sequence, head, first);
                Matrix grad_out = {a->grad_out + b.query, 0, width};
                block_scores(a, &b, scores);
                multiply(&a->blas, 1.0f, grad_out, (Matrix){a->v + b.key, 1, kv_width}, 0.0f,
                         gradients, b.keys, b.rows, b.keys, a->head_dim);
                score_gradients(a, &b, sequence, head, scores, gradients);
                /* Write the gradients of the block's queries. Add to the gradients of keys
                 * and values. */
                multiply(&a->blas, 1.0f, (Matrix){gradients, 0, b.keys},
                         (Matrix){a->k + b.key, 0, kv_width}, 0.0f, a->grad_q + b.query, width,
                         b.rows, a->head_dim, b.keys);
                multiply(&a->blas, 1.0f, (Matrix){gradients, 1, b.keys},
                         (Matrix){a->q + b.query, 0, width}, 1.0f, a->grad_k + b.key, kv_width,
                         b.keys, a->head_dim, b.rows);
                multiply(&a->blas, 1.0f, (Matrix){scores, 1, b.keys}, grad_out, 1.0f,
                         a->grad_v + b.key, kv_width, b.keys, a->head_dim, b.rows);
            }
    }
}

/* Compute the gradients of queries, keys and values; see Operations.attention_backward. */
API void llmgpu_attention_backward(Threads *threads, void *sgemm, int has_64_bits, const float *q,
                                   const float *k, const float *v, float *out, float *log_sum_exp,
                                   const float *grad_out, float *grad_q, float *grad_k,
                                   float *grad_v, const uint32_t *starts, float *scores,
                                   int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads,
                                   int64_t head_dim, float scale)
{
    Attention a = {
        .blas = {sgemm, has_64_bits},
        .q = q, .k = k, .v = v, .out = out, .log_sum_exp = log_sum_exp, .grad_out = grad_out,
        .grad_q = grad_q, .grad_k = grad_k, .grad_v = grad_v, .starts = starts, .scores = scores,
        .batch = batch, .seq = seq, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim,
        .scale = scale,
    };
    run_job(threads, attend_backward, &a, batch * kv_heads, 1);
}
