/* Products of activations with packed weights on AMX tiles: bf16, and fp32 from three bf16 parts of each operand.
 *
 * out = values weight^T, then bias, residual or gate. Weights lie in panels of 32 outputs whose inputs are innermost in
 * the order in which they are read (see model/tiled.py). A block of 32 rows by one panel is summed in four tiles, input
 * by input in one fixed order, so that a row's result does not depend, in any bit, on the rows beside it.
 *
 * fp32: x = x1 + x2 + x3 exactly, each part of eight significant bits, rounded to nearest so that what is left has
 * either sign. Of the nine products the six with i + j <= 4 are summed, the small ones first; those left out are below
 * 2^-24 of the product, less than one rounding of fp32. Few rows are multiplied by vectors instead, in one order of
 * their own. Numbers below 2^-126 count as zero, as AMX has it. */

#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "amx.h"
#include "finish.h"
#include "parts.h"
#include "vectors.h"

#ifdef HEADWAY_AMX
#define NEAR_BYTES (896 << 10) /* of values, which every panel reads again: what leaves room in a cache of 2 MiB */
#define MOST_ROWS 512 /* of a block of values: each block reads the whole weight */
#define SETTLE_STEPS 8 /* before sums that were just stored are read: sooner, reading waits for all stores */
#define SPLIT_STEPS 12 /* of panels in parts, of which two have to lie near beside the values */
#define FEW_ROWS 48 /* up to which vectors are faster in fp32 */
#define FEW_TOGETHER 12 /* rows whose sums fit the registers */
#define SOON_BYTES 2048 /* ahead of what few rows read: as far as memory takes to answer */
#define FAR_FROM_BLOCKS 8 /* of rows: from which a panel is brought near during the one before */
#define NEXT_BYTES 1024 /* just before tiles are loaded: the rest of a step and half of the next, in order */
#define AWAKE_STEPS 4 /* between two stores of a tile: after 0.65 us without one the next waits for 0.25 us */

static inline long least(long a, long b) { return a < b ? a : b; }
static inline long equal_shares(long count, long most, long multiple) /* equal parts of at most `most`, rounded up */
{
    const long parts = (count + most - 1) / most;
    return ((count + parts - 1) / parts + multiple - 1) / multiple * multiple;
}

/* Memory of one thread or of one call that is kept for the next. */
struct room {
    void *at;
    size_t bytes;
};

static void *room_for(struct room *room, size_t bytes)
{
    if (room->bytes < bytes) {
        free(room->at);
        room->at = aligned_alloc(64, (bytes + 63) / 64 * 64);
        room->bytes = room->at ? bytes : 0;
    }
    return room->at;
}

/* One block of values by one panel over some inputs. */
struct block {
    const char *values, *panel; /* [steps][parts][2][tile] each: two tiles of 16 rows or of 16 outputs */
    long steps;
    const char *ahead; /* what will be read next, to be brought near meanwhile */
    struct splitting *next; /* the panel that will be multiplied next, in fp32 */
    long ahead_bytes, split, finished; /* for each step: bytes ahead, pairs of the next panel, rows of what is pending */
    long settle; /* steps before the first of these rows */
    float *awake; /* room for a tile that nobody reads */
    int stream;
};

#define MULTIPLY                                                                                                       \
    _tile_dpbf16ps(0, 4, 6);                                                                                           \
    _tile_dpbf16ps(1, 4, 7);                                                                                           \
    if (tall) {                                                                                                        \
        _tile_dpbf16ps(2, 5, 6);                                                                                       \
        _tile_dpbf16ps(3, 5, 7);                                                                                       \
    }
#define LOAD_VALUES(part)                                                                                              \
    _tile_loadd(4, values + (part) * 2 * TILE, TILE_BYTES);                                                            \
    if (tall)                                                                                                          \
        _tile_loadd(5, values + (part) * 2 * TILE + TILE, TILE_BYTES);
#define LOAD_PANEL(part)                                                                                               \
    _tile_loadd(6, panel + (part) * 2 * TILE, TILE_BYTES);                                                             \
    _tile_loadd(7, panel + (part) * 2 * TILE + TILE, TILE_BYTES);

/* Add the products of a block to tiles 0 to 3 while what is pending is finished; `tall`: more than 16 rows. */
static inline __attribute__((always_inline)) void multiply(
    const struct product *p, const struct block *b, struct pending *done, const int parts, const int tall, const int wide)
{
    const char *values = b->values, *panel = b->panel, *ahead = b->ahead, *reach = ahead;
    for (long s = 0; s < b->steps; s++) {
        if (parts == 3)
            split_pairs(b->next, b->split);
        else
            for (reach += b->ahead_bytes; ahead < reach; ahead += 64)
                __builtin_prefetch(ahead, 0, 2);
        finish_rows(p, done, s < b->settle ? 0 : b->finished, b->stream, wide);
        if (parts == 3) {
            LOAD_VALUES(2) LOAD_PANEL(0) MULTIPLY
            LOAD_VALUES(1) MULTIPLY
            LOAD_PANEL(1) MULTIPLY
            LOAD_VALUES(0) MULTIPLY
            LOAD_PANEL(2) MULTIPLY
            LOAD_PANEL(0) MULTIPLY
        } else {
            LOAD_VALUES(0) LOAD_PANEL(0) MULTIPLY
        }
        if (s % (parts == 3 ? AWAKE_STEPS / 2 : AWAKE_STEPS) == 0)
            _tile_stored(4, b->awake, TILE_BYTES);
        values += parts * 2 * TILE;
        panel += parts * 2 * TILE;
    }
}

/* Sums of a block are [32][32]: two tiles side by side, and two below. */
static inline void load_sums(const float *sums)
{
    _tile_loadd(0, sums, PANEL * 4);
    _tile_loadd(1, sums + 16, PANEL * 4);
    _tile_loadd(2, sums + TILE_ROWS * PANEL, PANEL * 4);
    _tile_loadd(3, sums + TILE_ROWS * PANEL + 16, PANEL * 4);
}

static inline void store_sums(float *sums)
{
    _tile_stored(0, sums, PANEL * 4);
    _tile_stored(1, sums + 16, PANEL * 4);
    _tile_stored(2, sums + TILE_ROWS * PANEL, PANEL * 4);
    _tile_stored(3, sums + TILE_ROWS * PANEL + 16, PANEL * 4);
}

static inline void zero_sums(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* How a product is cut: rows of a block of values, and steps of one pass over the panels. */
struct cut {
    long rows, steps;
};

static struct cut cut_of(const struct product *p, const int parts)
{
    const long rows = equal_shares(p->rows, MOST_ROWS, PANEL), near = NEAR_BYTES / (rows * TILE_BYTES * parts);
    return (struct cut){rows, equal_shares(p->inputs / STEP, parts == 3 ? least(near, SPLIT_STEPS) : near, 1)};
}

/* Rows [first, first + rows) and steps [step, step + steps): what one pass over the panels multiplies. */
struct pass {
    long first, rows, step, steps;
    char *values; /* in tiles: [rows / 32][steps][parts][2][tile] */
    float *sums; /* [panel][rows][32] between two passes, or NULL where one is enough */
    int last, stream; /* whether sums are complete after it; whether results go past the caches */
};

/* 16 rows of a pass from `row` on. */
static inline __attribute__((always_inline)) void place_values(
    const struct product *p, const struct pass *pass, long row, const int parts)
{
    const long size = parts == 3 ? sizeof(float) : sizeof(uint16_t), stride = p->inputs * size;
    const char *from = (const char *)p->values + (pass->first + row) * stride + pass->step * STEP * size;
    char *to = pass->values + row * pass->steps * parts * TILE_BYTES;
    if (row % PANEL)
        to -= (pass->steps * parts - 1) * TILE; /* the second tiles of a block lie right behind the first ones */
    place_rows(from, stride, pass->rows - row, pass->steps, to, parts);
}

/* What a thread keeps from panel to panel. */
struct own {
    char *split[2]; /* room for a panel in parts, and for the next one */
    float *sums[3]; /* [rows][32] each: of a panel, and of the two before, which GATE finishes meanwhile */
    struct splitting next;
    struct pending done;
    float awake[TILE / 4] __attribute__((aligned(64))); /* whole cache lines */
};

/* Where a panel's inputs of a pass lie. */
static inline const char *weight_of(const struct product *p, const struct pass *pass, long panel, long step_bytes)
{
    return (const char *)p->weight + (panel * (p->inputs / STEP) + pass->step) * step_bytes;
}

/* Begin to split a panel, unless there is none before `end`, into the room that is free. */
static void split_next(const struct product *p, const struct pass *pass, struct own *own, long panel, long end)
{
    const char *from = weight_of(p, pass, panel, STEP * PANEL * sizeof(float));
    own->next = (struct splitting){(const float *)from, own->split[1], panel < end ? pass->steps * TILE_ROWS : 0};
}

/* A block: its sums go to `sums`, from those in `before` on, while some of what is pending is finished. */
static inline __attribute__((always_inline)) void do_block(
    const struct product *p, struct pending *done, const struct block *block, const float *before, float *sums,
    int tall, const int parts, const int wide)
{
    if (before)
        load_sums(before);
    else
        zero_sums();
    if (tall)
        multiply(p, block, done, parts, 1, wide);
    else
        multiply(p, block, done, parts, 0, wide);
    store_sums(sums);
}

/* All rows of a pass by a panel, whose sums go to `sums`, [rows][32]; the panels of this thread end at `end`. */
static inline __attribute__((always_inline)) void do_panel(
    const struct product *p, const struct pass *pass, struct own *own, long panel, long end, float *sums,
    const int parts, const int wide)
{
    const long blocks = (pass->rows + PANEL - 1) / PANEL, steps = pass->steps, settle = least(SETTLE_STEPS, steps / 2);
    const int far = blocks >= FAR_FROM_BLOCKS;
    const char *weight = parts == 3 ? own->split[0] : weight_of(p, pass, panel, 2 * TILE);
    const float *before = pass->step ? pass->sums + panel * pass->rows * PANEL : NULL;
    struct block block = {
        .values = pass->values,
        .panel = weight,
        .steps = steps,
        /* With many blocks the next panel comes near during all of them; with few the panel itself in the first. */
        .ahead = far ? weight + steps * 2 * TILE : weight + NEXT_BYTES,
        .next = &own->next,
        .ahead_bytes = !far ? 2 * TILE : panel + 1 < end ? 2 * TILE / blocks : 0,
        .split = (TILE_ROWS + blocks - 1) / blocks,
        .finished = PANEL / (steps - settle) + 1,
        .settle = settle,
        .awake = own->awake,
        .stream = pass->stream,
    };
    written_before_tiles();
    for (long row = 0; row < pass->rows; row += PANEL) {
        do_block(p, &own->done, &block, before ? before + row * PANEL : NULL, sums + row * PANEL,
                 pass->rows - row > TILE_ROWS, parts, wide);
        block.values += steps * parts * 2 * TILE;
        block.ahead += steps * block.ahead_bytes;
        block.settle = 0;
        if (!far)
            block.ahead_bytes = 0;
    }
    finish_rows(p, &own->done, pass->rows, pass->stream, wide);
}

/* One thread's part of a pass: the panels [begin, end). In fp32 each is split while the one before is multiplied. */
static inline __attribute__((always_inline)) void do_panels(
    const struct product *p, const struct pass *pass, struct own *own, long begin, long end, const int parts,
    const int wide)
{
    if (parts == 3)
        split_next(p, pass, own, begin, end);
    for (long panel = begin; panel < end; panel++) {
        if (parts == 3) {
            char *ready = own->split[1];
            split_pairs(&own->next, own->next.left);
            own->split[1] = own->split[0];
            own->split[0] = ready;
            split_next(p, pass, own, panel + 1, end);
        }
        float *sums = pass->last ? own->sums[panel % 3] : pass->sums + panel * pass->rows * PANEL;
        do_panel(p, pass, own, panel, end, sums, parts, wide);
        if (pass->last && (p->finish != GATE || panel % 2))
            own->done = (struct pending){sums, own->sums[(panel + 2) % 3], panel, pass->first, pass->rows};
    }
    finish_rows(p, &own->done, pass->rows, pass->stream, wide);
}

/* Sums of `rows` rows by one panel in fp32 vectors, input by input. */
static inline __attribute__((always_inline)) void sum_rows(
    const float *values, long inputs, const float *weight, float *sums, const int rows)
{
    vf left[FEW_TOGETHER], right[FEW_TOGETHER];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
        left[r] = right[r] = (vf){0};
    for (long i = 0; i < inputs; i++, weight += PANEL) {
        const vf x = load(weight), y = load(weight + 16);
        __builtin_prefetch((const char *)weight + SOON_BYTES, 0, 3);
        __builtin_prefetch((const char *)weight + SOON_BYTES + 64, 0, 3);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            const vf value = splat(values[r * inputs + i]);
            left[r] += value * x;
            right[r] += value * y;
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        store(sums + r * PANEL, left[r]);
        store(sums + r * PANEL + 16, right[r]);
    }
}

/* fp32 by vectors alone: to split a weight into parts costs more than multiplying a few rows by it. */
static void do_few_rows(const struct product *p, long begin, long end)
{
    float sums[2][FEW_ROWS * PANEL];
    for (long panel = begin; panel < end; panel++) {
        const float *weight = (const float *)p->weight + panel * PANEL * p->inputs;
        for (long row = 0, rows; row < p->rows; row += rows) {
            const float *values = (const float *)p->values + row * p->inputs;
            float *to = sums[panel % 2] + row * PANEL;
            const long left = p->rows - row;
            rows = left >= FEW_TOGETHER ? FEW_TOGETHER : left >= 4 ? 4 : left >= 2 ? 2 : 1;
            if (rows == FEW_TOGETHER)
                sum_rows(values, p->inputs, weight, to, FEW_TOGETHER);
            else if (rows == 4)
                sum_rows(values, p->inputs, weight, to, 4);
            else if (rows == 2)
                sum_rows(values, p->inputs, weight, to, 2);
            else
                sum_rows(values, p->inputs, weight, to, 1);
        }
        if (p->finish == GATE && panel % 2 == 0)
            continue;
        struct pending done = {sums[panel % 2], sums[0], panel, 0, p->rows};
        finish_rows(p, &done, p->rows, streams(p, 1), 1);
    }
    _mm_sfence();
}

/* The first panel of this thread's share, of that `further` threads on; shares are of whole pairs. */
static long first_panel(long panels, int further)
{
    int thread = 0, threads = 1;
#ifdef _OPENMP
    thread = omp_get_thread_num();
    threads = omp_get_num_threads();
#endif
    return least(panels, (panels + 1) / 2 * (thread + further) / threads * 2);
}

/* 0 when done, 1 when memory ran out. */
static inline __attribute__((always_inline)) int run(const struct product *p, const int parts, const int wide)
{
    static __thread struct room values_room, sums_room, own_room; /* the first two of the calling thread */
    const long panels = p->outputs / PANEL;
    if (parts == 3 && p->rows <= FEW_ROWS) {
#pragma omp parallel num_threads(p->threads) if (p->threads > 1)
        do_few_rows(p, first_panel(panels, 0), first_panel(panels, 1));
        return 0;
    }
    if (!p->rows)
        return 0;
    const struct cut cut = cut_of(p, parts);
    const long all = p->inputs / STEP;
    char *values = room_for(&values_room, cut.rows * cut.steps * TILE_BYTES * parts);
    float *sums = cut.steps < all ? room_for(&sums_room, cut.rows * p->outputs * sizeof(float)) : NULL;
    int failed = !values || (cut.steps < all && !sums);
    if (failed)
        return 1;
#pragma omp parallel num_threads(p->threads) if (p->threads > 1) reduction(| : failed)
    {
        const long split = parts == 3 ? cut.steps * parts * 2 * TILE : 0, held = cut.rows * PANEL * sizeof(float);
        char *room = room_for(&own_room, 2 * split + 3 * held);
        struct own own = {.split = {room, room + split}};
        failed = !room;
        for (int i = 0; room && i < 3; i++)
            own.sums[i] = (float *)(room + 2 * split + i * held);
        shape_tiles((const uint8_t[8]){16, 16, 16, 16, 16, 16, 16, 16});
        for (long first = 0; first < p->rows; first += cut.rows) {
            for (long step = 0; step < all; step += cut.steps) {
                const long rows = least(cut.rows, p->rows - first), steps = least(cut.steps, all - step);
                const struct pass pass = {first, rows, step, steps, values, sums, step + steps == all, streams(p, wide)};
#pragma omp for schedule(static)
                for (long row = 0; row < (pass.rows + PANEL - 1) / PANEL * PANEL; row += TILE_ROWS)
                    place_values(p, &pass, row, parts);
                if (!failed)
                    do_panels(p, &pass, &own, first_panel(panels, 0), first_panel(panels, 1), parts, wide);
#pragma omp barrier
            }
        }
        _tile_release();
        _mm_sfence(); /* streamed results are there for every thread */
    }
    return failed;
}

int multiply_bf16(const struct product *p) { return p->finish == WIDEN ? run(p, 1, 1) : run(p, 1, 0); }
int multiply_f32(const struct product *p) { return run(p, 3, 1); }
#else
int multiply_bf16(const struct product *p) { return (void)p, 1; }
int multiply_f32(const struct product *p) { return (void)p, 1; }
#endif
