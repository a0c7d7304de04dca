/* Weights on their way from how they lie in memory to the tiles that are multiplied. */

#ifndef HEADWAY_UNPACK_H
#define HEADWAY_UNPACK_H

#include "compact.h"
#include "parts.h"

#ifdef HEADWAY_AMX
/* How a weight lies in memory: bf16 in tiles; bf16 in 12 bits; fp32, which becomes three parts. */
enum form { TILES, COMPACT, FP32 };

static inline __attribute__((always_inline)) long parts_of(const int form) { return form == FP32 ? 3 : 1; }
static inline __attribute__((always_inline)) long pairs_at_once(const int form) { return form == COMPACT ? 2 : 1; }
static inline __attribute__((always_inline)) long step_bytes(const int form) /* of a panel, in memory */
{
    return form == FP32 ? STEP * PANEL * sizeof(float) : form == COMPACT ? TILE_ROWS / 2 * GROUP_BYTES : 2 * TILE;
}

/* Inputs of a panel to be unpacked, `left` pairs of them, into [steps][parts][2][tile]. */
struct unpacking {
    const char *from;
    char *to;
    long left;
};

/* Unpack `count` pairs of them, a multiple of `pairs_at_once`, as far as there are so many. */
static inline __attribute__((always_inline)) void unpack_pairs(
    struct unpacking *work, const struct code *code, long count, const int form)
{
    const long pairs = pairs_at_once(form), bytes = pairs * step_bytes(form) / TILE_ROWS;
    for (; count > 0 && work->left > 0; count -= pairs) {
        if (form == COMPACT)
            expand_group(code, work->from, work->to, work->to + TILE);
        else
            split_pair((const float *)work->from, work->to);
        work->from += bytes;
        work->left -= pairs;
        work->to += pairs * TILE_BYTES + (work->left % TILE_ROWS ? 0 : (2 * parts_of(form) - 1) * TILE);
    }
}
#endif

#endif
