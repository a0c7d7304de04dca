/* Operands of matmul.c as its tiles read them: bf16 as it comes, fp32 in three parts of bf16. */

#ifndef HEADWAY_PARTS_H
#define HEADWAY_PARTS_H

#include "amx.h"
#include "vectors.h"

#ifdef HEADWAY_AMX
#define PANEL 32 /* outputs of a panel and rows of a block, two tiles each */
#define STEP 32 /* inputs of one tile row */
#define TILE (TILE_ROWS * TILE_BYTES)

static inline long least(long a, long b) { return a < b ? a : b; }

/* The nearest bf16 of each, as floats: eight significant bits. */
static inline vf leading(vf x) { return (vf)(((vu)x + 0x8000) & 0xffff0000); }

/* Pairs of bf16, the upper halves of two vectors, which are what is left of them then. */
static inline void take_pairs(char *to, vf *first, vf *second)
{
    const vu upper = (vu){0} + 0xffff0000;
    *(vu *)to = ((vu)*first >> 16) | ((vu)*second & upper);
    *first -= (vf)((vu)*first & upper);
    *second -= (vf)((vu)*second & upper);
}

/* A pair of inputs of a panel in three parts: a row of each of six tiles. */
static inline __attribute__((always_inline)) void split_pair(const float *from, char *to)
{
    for (long half = 0; half < 2; half++) {
        vf x = load(from + half * 16), y = load(from + PANEL + half * 16);
        take_pairs(to + half * TILE, &x, &y);
        take_pairs(to + half * TILE + 2 * TILE, &x, &y);
        take_pairs(to + half * TILE + 4 * TILE, &x, &y);
    }
}

/* 64 bytes of values for each part of a tile: what 32 inputs of one row become, absent ones zero. */
static inline __attribute__((always_inline)) void place_inputs(const void *from, char *to, const int parts)
{
    if (!from) {
        for (long part = 0; part < parts; part++)
            memset(to + part * 2 * TILE, 0, TILE_BYTES);
    } else if (parts == 1) {
        memcpy(to, from, TILE_BYTES);
    } else {
        for (long half = 0; half < 2; half++) {
            vf x = load((const float *)from + half * 16);
            for (long part = 0; part < parts; part++) {
                const vf a = leading(x);
                *(vh *)(to + part * 2 * TILE + half * 32) = __builtin_convertvector((vu)a >> 16, vh);
                x -= a;
            }
        }
    }
}

/* 16 rows of values, of which the first `rows` are there and lie `stride` bytes apart, to [steps][parts][2][tile], of
 * each two tiles one. Tile by tile: row by row each line would be written into another page. */
static inline __attribute__((always_inline)) void place_rows(
    const char *from, long stride, long rows, long steps, char *to, const int parts)
{
    const long bytes = parts == 1 ? TILE_BYTES : 2 * TILE_BYTES;
    for (long s = 0; s < steps; s++, from += bytes, to += parts * 2 * TILE)
        for (long r = 0; r < TILE_ROWS; r++)
            place_inputs(r < rows ? from + r * stride : NULL, to + r * TILE_BYTES, parts);
}
#endif

#endif
