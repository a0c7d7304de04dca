/* Row-wise operations that PyTorch does in several passes over memory. Rows are independent and each is computed in one
 * fixed order, whatever their number. */

#include <math.h>

#include "vectors.h"

#define PARALLEL_FROM 65536 /* elements from which a second thread pays */

struct norm {
    const void *values, *weight; /* [rows][width]; [width] */
    void *out; /* [rows][width] */
    int64_t rows, width, threads;
    float epsilon;
};

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(f) JOIN(f, FORMAT)

#define FORMAT f32
#define ACT float
#define ACT_LOAD load
#define ACT_STORE store
#include "rowwise.h"
#undef FORMAT
#undef ACT
#undef ACT_LOAD
#undef ACT_STORE

#define FORMAT bf16
#define ACT uint16_t
#define ACT_LOAD bf16_load
#define ACT_STORE bf16_store
#include "rowwise.h"

/* tokens[r] = place of the largest of x[r], the first of equal ones; margins[r] = how far the next one lies below it.
 * `width` is a multiple of VL. */
void best_f32(const float *x, int64_t *tokens, float *margins, long rows, long width, int threads)
{
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * width > PARALLEL_FROM)
    for (long r = 0; r < rows; r++) {
        const float *in = x + r * width;
        vf best = splat(-INFINITY), next = best;
        vi at = {0};
        for (long i = 0; i < width; i += VL) {
            const vf value = load(in + i);
            const vi above = (vi)(value > best);
            const vf less = select_(above, best, value);
            next = select_((vi)(less > next), less, next);
            best = select_(above, value, best);
            at = ((vi){0} + (int32_t)i & above) | (at & ~above);
        }
        int lane = 0;
        for (int k = 1; k < VL; k++)
            if (best[k] > best[lane] || (best[k] == best[lane] && at[k] < at[lane]))
                lane = k;
        float second = next[lane];
        for (int k = 0; k < VL; k++)
            if (k != lane && best[k] > second)
                second = best[k];
        tokens[r] = at[lane] + lane;
        margins[r] = best[lane] - second;
    }
}
