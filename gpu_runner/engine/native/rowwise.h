/* Row-wise operations for one number format of activations.
 *
 * Included once per format by elementwise.c, which defines NAME(f), ACT and its loads and stores of vectors. Sums and
 * products are in fp32 whatever the format; a result is rounded once, when it is stored. */

/* out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight; `width` is a multiple of VL. */
void NAME(rms_norm)(const ACT *x, const ACT *weight, ACT *out, long rows, long width, float eps, int threads)
{
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * width > PARALLEL_FROM)
    for (long r = 0; r < rows; r++) {
        const ACT *in = x + r * width;
        ACT *to = out + r * width;
        vf squares[4] = {{0}, {0}, {0}, {0}};
        for (long i = 0, k = 0; i < width; i += VL, k = (k + 1) & 3) {
            const vf value = ACT_LOAD(in + i);
            squares[k] += value * value;
        }
        const float mean = sum_of((squares[0] + squares[1]) + (squares[2] + squares[3])) / width;
        const vf scale = splat(1.0f / sqrtf(mean + eps));
        for (long i = 0; i < width; i += VL)
            ACT_STORE(to + i, ACT_LOAD(in + i) * scale * ACT_LOAD(weight + i));
    }
}

/* out[r] = silu(both[r][:width]) * both[r][width:]; `width` is a multiple of VL. */
void NAME(silu_mul)(const ACT *both, ACT *out, long rows, long width, int threads)
{
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * width > PARALLEL_FROM)
    for (long r = 0; r < rows; r++) {
        const ACT *gate = both + 2 * r * width, *up = gate + width;
        for (long i = 0; i < width; i += VL)
            ACT_STORE(out + r * width + i, silu(ACT_LOAD(gate + i)) * ACT_LOAD(up + i));
    }
}
