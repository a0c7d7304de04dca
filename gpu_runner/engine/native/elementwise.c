/* Row-wise fp32 operations that PyTorch does in several passes over memory. Rows are independent and each is computed
 * in one fixed order, whatever their number. */

#include <math.h>

#include "vectors.h"

#define PARALLEL_FROM 65536 /* elements from which a second thread pays */

/* out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight; `width` is a multiple of VL. */
void rms_norm(const float *x, const float *weight, float *out, long rows, long width, float eps, int threads)
{
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * width > PARALLEL_FROM)
    for (long r = 0; r < rows; r++) {
        const float *in = x + r * width;
        float *to = out + r * width;
        vf squares[4] = {{0}, {0}, {0}, {0}};
        for (long i = 0, k = 0; i < width; i += VL, k = (k + 1) & 3)
            squares[k] += load(in + i) * load(in + i);
        const float mean = sum_of((squares[0] + squares[1]) + (squares[2] + squares[3])) / width;
        const vf scale = splat(1.0f / sqrtf(mean + eps));
        for (long i = 0; i < width; i += VL)
            store(to + i, load(in + i) * scale * load(weight + i));
    }
}

/* out[r] = silu(both[r][:width]) * both[r][width:]; `width` is a multiple of VL. */
void silu_mul(const float *both, float *out, long rows, long width, int threads)
{
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * width > PARALLEL_FROM)
    for (long r = 0; r < rows; r++) {
        const float *gate = both + 2 * r * width, *up = gate + width;
        for (long i = 0; i < width; i += VL) {
            const vf x = load(gate + i), zero = {0};
            const vi positive = (vi)(x > zero);
            /* e = exp(-|x|) keeps the exponential in its range: sigmoid(x) is 1 / (1 + e) or e / (1 + e). */
            const vf low = select_(positive, -x, x);
            const vf e = exponential(select_((vi)(low < -100.0f), splat(-100.0f), low));
            store(out + r * width + i, x * select_(positive, splat(1.0f), e) / (e + 1.0f) * load(up + i));
        }
    }
}
