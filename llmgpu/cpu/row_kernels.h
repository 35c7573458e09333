/* Functions on rows of numbers. rows.c includes this file once for each kind of vectors: NAME makes
 * the names of functions, which differ between the kinds, and TARGET states which instructions the
 * functions may use. All kinds compute the same bits, because all add the same LANES sums in the
 * same order.
 */

/* exp(x), within 2 units in the last place: 2^n times a polynomial of the remainder, from
 * Cephes. */
static inline TARGET float NAME(exp_of)(float x)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    float bounded = x < -105.0f ? -105.0f : x, shifted, n, r, y, scale[2];
    int32_t bits, half, exponents[2];

    bounded = bounded > 89.0f ? 89.0f : bounded;
    shifted = bounded * 1.44269504f + shift;
    n = shifted - shift;
    r = bounded - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;
    /* Multiply by two factors, because 2^n may be out of range though the result is in range. */
    memcpy(&bits, &shifted, sizeof bits);
    bits -= 0x4B400000;
    half = bits >> 1;
    exponents[0] = (int32_t)((uint32_t)(half + 127) << 23);
    exponents[1] = (int32_t)((uint32_t)(bits - half + 127) << 23);
    memcpy(&scale[0], &exponents[0], sizeof scale[0]);
    memcpy(&scale[1], &exponents[1], sizeof scale[1]);
    return y * scale[0] * scale[1];
}

static inline TARGET float NAME(sigmoid)(float x)
{
    return 1.0f / (1.0f + NAME(exp_of)(-x));
}

/* Sum TERM(type) for i = 0 to n - 1. TERM is an expression of AT(type, array), which stands for
 * array[i], or for a vector from array[i] on. LANES sums side by side make the sum of a SUM_BLOCK,
 * and the sums of blocks are added in double precision. */
#define AT(type, array) (*(const type *)((array) + i_))
#define SUM(result, n, TERM)                                                                       \
    do {                                                                                           \
        double all_ = 0;                                                                           \
        for (int64_t i_ = 0; i_ < (n);) {                                                          \
            int64_t end_ = (n)-i_ < SUM_BLOCK ? (n) : i_ + SUM_BLOCK;                              \
            Vector sums_[2] = {{0}, {0}};                                                          \
            float rest_ = 0;                                                                       \
            for (; i_ + LANES <= end_; i_ += LANES / 2) {                                          \
                sums_[0] += TERM(Vector);                                                          \
                i_ += LANES / 2;                                                                   \
                sums_[1] += TERM(Vector);                                                          \
            }                                                                                      \
            for (; i_ < end_; i_++)                                                                \
                rest_ += TERM(float);                                                              \
            sums_[0] += sums_[1];                                                                  \
            for (int lane_ = 0; lane_ < LANES / 2; lane_++)                                        \
                all_ += (double)sums_[0][lane_];                                                   \
            all_ += (double)rest_;                                                                 \
        }                                                                                          \
        (result) = (float)all_;                                                                    \
    } while (0)

static TARGET float NAME(dot)(const float *a, const float *b, int64_t n)
{
    float sum;
#define TERM(type) (AT(type, a) * AT(type, b))
    SUM(sum, n, TERM);
#undef TERM
    return sum;
}

static TARGET float NAME(sum)(const float *a, int64_t n)
{
    float sum;
#define TERM(type) AT(type, a)
    SUM(sum, n, TERM);
#undef TERM
    return sum;
}

static TARGET int NAME(are_finite)(const float *a, int64_t n)
{
    float sum;
#define TERM(type) (AT(type, a) * 0.0f)
    SUM(sum, n, TERM);
#undef TERM
    return sum == 0.0f;
}

/* Return the largest number; NaN counts as -inf. */
static TARGET float NAME(largest)(const float *a, int64_t n)
{
    float found = -INFINITY;
    Vector lanes = found - (Vector){0};
    int64_t i_ = 0;

    for (; i_ + LANES / 2 <= n; i_ += LANES / 2) {
        Vector x = AT(Vector, a);
        Mask is_larger = x > lanes;
        lanes = (Vector)((is_larger & (Mask)x) | (~is_larger & (Mask)lanes));
    }
    for (; i_ < n; i_++)
        found = a[i_] > found ? a[i_] : found;
    for (int lane = 0; lane < LANES / 2; lane++)
        found = lanes[lane] > found ? lanes[lane] : found;
    return found;
}

static TARGET void NAME(exp_shifted)(float *scores, int64_t n, float shift)
{
    for (int64_t i = 0; i < n; i++)
        scores[i] = NAME(exp_of)(scores[i] - shift);
}

/* Compute a = (factor a - shift) scale. */
static TARGET void NAME(rescale)(float *a, int64_t n, float factor, float shift, float scale)
{
    for (int64_t i = 0; i < n; i++)
        a[i] = (a[i] * factor - shift) * scale;
}

static TARGET void NAME(norm)(const Norm *p, int64_t row)
{
    int64_t n = p->width;
    const float *x = p->x + row * n, *weight = p->weight;
    float *out = p->out + row * n;
    float r = 1.0f / sqrtf(NAME(dot)(x, x, n) / (float)n + p->epsilon);

    p->inverse_rms[row] = r;
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i] * r * weight[i];
}

/* Add to a row of the gradient of x, and to `for_weight`, which has a partial sum of the weight's
 * gradient. */
static TARGET void NAME(norm_backward)(const Norm *p, int64_t row, float *restrict for_weight)
{
    int64_t n = p->width;
    const float *x = p->x + row * n, *weight = p->weight, *grad_out = p->grad_out + row * n;
    float *restrict grad_x = p->grad_x + row * n;
    float r = p->inverse_rms[row], mean, share;

#define TERM(type) (AT(type, grad_out) * r * AT(type, weight) * AT(type, x))
    SUM(mean, n, TERM);
#undef TERM
    /* Subtract the part of the gradient in the direction of the row, because the norm cancels
       changes of the row's length. */
    share = r * r * (mean / (float)n);
    for (int64_t i = 0; i < n; i++) {
        float gradient = grad_out[i] * r;
        for_weight[i] += gradient * x[i];
        grad_x[i] += gradient * weight[i] - x[i] * share;
    }
}

static TARGET void NAME(rotate)(const Rotation *p, int64_t row)
{
    int64_t half = p->head_dim / 2;
    const float *cosine = p->cosines + p->positions[row] * half;
    const float *sine = p->sines + p->positions[row] * half;
    float sign = p->is_inverse ? -1.0f : 1.0f;

    for (float *left = p->x + row * p->width; left < p->x + (row + 1) * p->width;
         left += p->head_dim) {
        float *restrict right = left + half;
        for (int64_t i = 0; i < half; i++) {
            float a = left[i], b = right[i], s = sine[i] * sign;
            left[i] = a * cosine[i] - b * s;
            right[i] = b * cosine[i] + a * s;
        }
    }
}

static TARGET void NAME(swiglu)(const Swiglu *p, int64_t start, int64_t stop)
{
    const float *gate = p->gate, *up = p->up;
    float *restrict out = p->out;

    for (int64_t i = start; i < stop; i++)
        out[i] = gate[i] * NAME(sigmoid)(gate[i]) * up[i];
}

static TARGET void NAME(swiglu_backward)(const Swiglu *p, int64_t start, int64_t stop)
{
    const float *gate = p->gate, *up = p->up, *gradient = p->grad_out;
    float *restrict grad_gate = p->grad_gate, *restrict grad_up = p->grad_up;

    for (int64_t i = start; i < stop; i++) {
        float x = gate[i], s = NAME(sigmoid)(x), g = gradient[i];
        grad_up[i] = g * (x * s);
        grad_gate[i] = g * (up[i] * (s * (1.0f + x * (1.0f - s))));
    }
}

static TARGET void NAME(adamw)(const Adamw *p, int64_t start, int64_t stop)
{
    Adamw c = *p; /* a copy, so that the compiler sees that it does not change */
    float *restrict parameter = c.parameter, *restrict first = c.first;
    float *restrict second = c.second;

    for (int64_t i = start; i < stop; i++) {
        float g = c.gradient[i] * c.clip_scale;
        float m = first[i] + (g - first[i]) * c.one_minus_beta1;
        float v = second[i] + (g * g - second[i]) * c.one_minus_beta2;
        float denominator = sqrtf(v) / c.root_of_correction2 + c.epsilon;
        first[i] = m;
        second[i] = v;
        parameter[i] = parameter[i] * c.decay - m / denominator * c.rate;
    }
}

static const Kernels NAME(kernels) = {
    NAME(dot),     NAME(sum),  NAME(are_finite),    NAME(largest), NAME(exp_shifted),
    NAME(rescale), NAME(norm), NAME(norm_backward), NAME(rotate),  NAME(swiglu),
    NAME(swiglu_backward), NAME(adamw),
};
#undef AT
#undef SUM
#undef NAME
#undef TARGET
