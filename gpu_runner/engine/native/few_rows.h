/* Products of a few rows of fp32 by vectors alone: splitting a weight into parts costs more than multiplying by it. */

#ifndef HEADWAY_FEW_ROWS_H
#define HEADWAY_FEW_ROWS_H

#include "finish.h"
#include "parts.h"
#include "vectors.h"

#ifdef HEADWAY_AMX
#define FEW_ROWS 14 /* up to which vectors are faster: their sums fit the registers */
#define FEW_INPUTS 64 /* that are summed at a time */
#define SOON_BYTES 4096 /* ahead of what is read: as far as memory takes to answer */

/* Add the products of `rows` rows and some inputs of a panel to `sums`, in fp32 vectors. */
static inline __attribute__((always_inline)) void add_rows(
    const float *values, long stride, const float *weight, long inputs, float *sums, const int rows)
{
    vf left[FEW_ROWS], right[FEW_ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
        left[r] = right[r] = (vf){0};
    for (long i = 0; i < inputs; i++, weight += PANEL) {
        const vf x = load(weight), y = load(weight + 16);
        __builtin_prefetch((const char *)weight + SOON_BYTES, 0, 2); /* into the first cache fewer would be under way */
        __builtin_prefetch((const char *)weight + SOON_BYTES + 64, 0, 2);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            const vf value = splat(values[r * stride + i]);
            left[r] += value * x;
            right[r] += value * y;
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        store(sums + r * PANEL, load(sums + r * PANEL) + left[r]);
        store(sums + r * PANEL + 16, load(sums + r * PANEL + 16) + right[r]);
    }
}

/* Sums of a few rows by a panel, of sums of FEW_INPUTS each: one long sum would round off four times as much. */
static inline __attribute__((always_inline)) void sum_rows(
    const struct product *p, const float *weight, float *sums, const int rows)
{
    memset(sums, 0, rows * PANEL * sizeof(float));
    const float *values = p->values;
    for (long i = 0; i < p->inputs; i += FEW_INPUTS)
        add_rows(values + i, p->inputs, weight + i * PANEL, least(FEW_INPUTS, p->inputs - i), sums, rows);
}

/* All rows by the panels [begin, end). */
static void do_few_rows(const struct product *p, long begin, long end)
{
    float sums[2][FEW_ROWS * PANEL];
    for (long panel = begin; panel < end; panel++) {
        const float *weight = (const float *)p->weight + panel * PANEL * p->inputs;
        switch (p->rows) {
#define CASE(rows)                                                                                                     \
    case rows:                                                                                                         \
        sum_rows(p, weight, sums[panel % 2], rows);                                                                    \
        break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13)
            CASE(FEW_ROWS)
        }
        if (p->finish == GATE && panel % 2 == 0)
            continue;
        struct pending done = {sums[panel % 2], sums[0], panel, 0, p->rows};
        finish_rows(p, &done, p->rows, streams(p, 1), 1);
    }
    _mm_sfence();
}
#endif

#endif
