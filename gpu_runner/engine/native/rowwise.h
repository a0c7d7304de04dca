/* Row-wise operations for one number format of activations.
 *
 * Included once per format by elementwise.c, which defines NAME(f), ACT and its loads and stores of vectors. Sums and
 * products are in fp32 whatever the format; a result is rounded once, when it is stored. */

/* out[r] = values[r] / sqrt(mean(values[r]^2) + epsilon) * weight; `width` is a multiple of VL. */
int NAME(rms_norm)(const struct norm *n)
{
    const long rows = n->rows, width = n->width;
#pragma omp parallel for num_threads(n->threads) if (n->threads > 1 && rows * width > PARALLEL_FROM)
    for (long r = 0; r < rows; r++) {
        const ACT *in = (const ACT *)n->values + r * width, *weight = n->weight;
        ACT *to = (ACT *)n->out + r * width;
        vf squares[4] = {{0}, {0}, {0}, {0}};
        for (long i = 0, k = 0; i < width; i += VL, k = (k + 1) & 3) {
            const vf value = ACT_LOAD(in + i);
            squares[k] += value * value;
        }
        const float mean = sum_of((squares[0] + squares[1]) + (squares[2] + squares[3])) / width;
        const vf scale = splat(1.0f / sqrtf(mean + n->epsilon));
        for (long i = 0; i < width; i += VL)
            ACT_STORE(to + i, ACT_LOAD(in + i) * scale * ACT_LOAD(weight + i));
    }
    return 0;
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
