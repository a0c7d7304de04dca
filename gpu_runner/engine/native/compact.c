/* Packs weights of bf16 into 12 bits each, once, when a model is loaded. See compact.h. */

#include "compact.h"

#define STEP_WEIGHTS 1024 /* of two tiles, [2][16 pairs of inputs][16 outputs][2] */
#define ROW_WEIGHTS 32

static inline uint8_t exponent_of(uint16_t bits) { return bits >> 7 & 0xff; }

/* Add to counts[e] how many of the weights have the exponent e. */
void count_exponents(const uint16_t *weights, int64_t count, int64_t counts[256])
{
    for (int64_t i = 0; i < count; i++)
        counts[exponent_of(weights[i])]++;
}

struct packing {
    const uint16_t *tiles; /* [panels][steps][1024] */
    uint8_t *packed; /* [panels][steps][8][192] */
    uint8_t place[256]; /* of each exponent among those with a code, or CODES */
    uint32_t *first; /* as in `struct code` */
    struct patch *patches; /* room for all weights whose exponent has no code */
    int64_t panels, steps; /* steps: of one panel */
};

/* A row of one tile, its pair of inputs for 16 outputs; returns whether any of it has no code. */
static int pack_row(const struct packing *p, const uint16_t *row, int half, int pair, uint8_t *group)
{
    uint8_t *bytes = group + pair % 2 * 64 + half * 8, *codes = group + 128 + half * 8, seen = 0;
    for (int lane = 0; lane < 4; lane++, row += 8, bytes += 16, codes += 16)
        for (int i = 0; i < 8; i++) {
            const uint8_t place = p->place[exponent_of(row[i])];
            bytes[i] = (row[i] >> 8 & 0x80) | (row[i] & 0x7f);
            codes[i] |= place % CODES << pair % 2 * 4;
            seen |= place;
        }
    return seen & CODES;
}

/* One step, whose weights begin at `at` of their panel; returns where the next patch goes. */
static struct patch *pack_step(
    const struct packing *p, const uint16_t *tiles, uint32_t at, uint8_t *to, struct patch *patch)
{
    for (int row = 0; row < STEP_WEIGHTS / ROW_WEIGHTS; row++, tiles += ROW_WEIGHTS, at += ROW_WEIGHTS) {
        const int pair = row % TILE_ROWS;
        if (!pack_row(p, tiles, row / TILE_ROWS, pair, to + pair / 2 * GROUP_BYTES))
            continue;
        for (int i = 0; i < ROW_WEIGHTS; i++)
            if (p->place[exponent_of(tiles[i])] == CODES)
                *patch++ = (struct patch){at + i, tiles[i]};
    }
    return patch;
}

/* `packed` must be zero before. */
void pack_compact(const struct packing *p)
{
    struct patch *patch = p->patches;
    for (int64_t s = 0; s < p->panels * p->steps; s++) {
        p->first[s] = patch - p->patches;
        patch = pack_step(p, p->tiles + s * STEP_WEIGHTS, s % p->steps * STEP_WEIGHTS,
                          p->packed + s * (STEP_WEIGHTS * 3 / 2), patch);
    }
    p->first[p->panels * p->steps] = patch - p->patches;
}
