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
#define LEAST_ROWS 128 /* rather than which several passes are taken, whose sums lie near too if rows are PASS_ROWS */
#define PASS_ROWS 256
#define SETTLE_STEPS 8 /* before sums that were just stored are read: sooner, reading waits for all stores */
#define MIXED_BLOCKS 4 /* of rows: up to which splitting counts, and is mixed with multiplying */
#define MIXED_STEPS 2 /* in parts at a time then: two such chunks stay in the first cache */
#define SPLIT_STEPS 12 /* in parts at a time else: two such chunks lie near beside the values */
#define SPLIT_AHEAD 8192 /* bytes from what is split to what is asked for: as far as memory takes to answer */
#define FEW_ROWS 14 /* up to which vectors are faster in fp32: their sums fit the registers */
#define FEW_INPUTS 64 /* that are summed at a time there */
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

/* A block of values by some inputs of a panel. */
struct block {
    const char *values, *panel; /* [steps][parts][2][tile] each: two tiles of 16 rows or of 16 outputs */
    long step, steps; /* of a pass: the first of these, and how many */
    const float *before; /* sums of earlier inputs, [rows][32], or NULL */
    float *sums; /* [rows][32] */
    const char *ahead; /* what will be read next, to be brought near meanwhile */
    struct splitting *next; /* what will be multiplied next, in fp32 */
    long ahead_bytes, finished; /* each step: bytes ahead, rows of what is pending */
    long split; /* pairs of the next after each product of two parts if `mixed`, else each step */
    long settle; /* steps before the first of these rows */
    float *awake; /* room for a tile that nobody reads */
    int stream, mixed;
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

#define PRODUCTS 6 /* of two parts each: */
#define MULTIPLY_PARTS(then)                                                                                           \
    LOAD_VALUES(2) LOAD_PANEL(0) MULTIPLY then                                                                         \
    LOAD_VALUES(1) MULTIPLY then                                                                                       \
    LOAD_PANEL(1) MULTIPLY then                                                                                        \
    LOAD_VALUES(0) MULTIPLY then                                                                                       \
    LOAD_PANEL(2) MULTIPLY then                                                                                        \
    LOAD_PANEL(0) MULTIPLY then

/* Split some pairs, and bring near what comes SPLIT_AHEAD later. */
static inline __attribute__((always_inline)) void split_mixed(struct splitting *next, long pairs)
{
    const char *ahead = (const char *)next->from + SPLIT_AHEAD, *reach = ahead + pairs * 2 * PANEL * sizeof(float);
    for (; ahead < reach; ahead += 64)
        __builtin_prefetch(ahead, 0, 2);
    split_pairs(next, pairs);
}

/* Add the products of a block to tiles 0 to 3 while what is pending is finished, and in fp32 the next inputs are split.
 * Where that takes as long as multiplying, it is done in between: measured, 288 vector operations behind 24 products
 * take their time besides, a sixth of them behind each four products take none. `tall`: more than 16 rows. */
static inline __attribute__((always_inline)) void multiply(
    const struct product *p, const struct block *b, struct pending *done, const int parts, const int tall,
    const int wide)
{
    const char *values = b->values, *panel = b->panel, *ahead = b->ahead, *reach = ahead;
    struct splitting next = *b->next;
    for (long s = 0; s < b->steps; s++) {
        for (reach += b->ahead_bytes; ahead < reach; ahead += 64)
            __builtin_prefetch(ahead, 0, 2);
        finish_rows(p, done, s < b->settle ? 0 : b->finished, b->stream, wide);
        if (parts == 3 && b->mixed) {
            MULTIPLY_PARTS(split_mixed(&next, b->split);)
        } else if (parts == 3) {
            split_pairs(&next, b->split);
            MULTIPLY_PARTS()
        } else {
            LOAD_VALUES(0) LOAD_PANEL(0) MULTIPLY
        }
        if (s % (parts == 3 ? AWAKE_STEPS / 2 : AWAKE_STEPS) == 0)
            _tile_stored(4, b->awake, TILE_BYTES);
        values += parts * 2 * TILE;
        panel += parts * 2 * TILE;
    }
    *b->next = next;
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

/* Tiles as high as a single block of values is, whose products take that much less time; else all of 16 rows. */
static void shape_for(long rows)
{
    const uint8_t high = least(rows, TILE_ROWS), low = rows > PANEL ? TILE_ROWS : rows > high ? rows - high : 1;
    shape_tiles((const uint8_t[8]){high, high, low, low, high, low, TILE_ROWS, TILE_ROWS});
}

/* Whether so few rows are multiplied by a panel that splitting it takes as long. */
static inline int is_mixed(long rows) { return rows <= MIXED_BLOCKS * PANEL; }

/* How a product is cut: rows of a block of values, steps of one pass over the panels, and steps of a panel that lie
 * there in parts at a time. */
struct cut {
    long rows, steps, chunk;
};

static struct cut cut_of(const struct product *p, const int parts)
{
    const long fit = NEAR_BYTES / (p->inputs / STEP * TILE_BYTES) / PANEL * PANEL; /* rows of bf16 in one pass */
    const long most = parts == 3 ? MOST_ROWS : fit < LEAST_ROWS ? PASS_ROWS : least(fit, MOST_ROWS);
    const long rows = equal_shares(p->rows, most, PANEL), near = NEAR_BYTES / (rows * TILE_BYTES * parts);
    const long steps = equal_shares(p->inputs / STEP, near, 1);
    const long chunk = parts == 1 ? steps : is_mixed(rows) ? MIXED_STEPS : SPLIT_STEPS;
    return (struct cut){rows, steps, equal_shares(steps, chunk, 1)};
}

/* Rows [first, first + rows) and steps [step, step + steps): what one pass over the panels multiplies. */
struct pass {
    long first, rows, step, steps, chunk;
    char *values; /* in tiles: [rows / 32][steps][parts][2][tile] */
    float *sums; /* [panel][rows][32] between two passes, or NULL where one is enough */
    int last, stream; /* whether sums are complete after it; whether results go past the caches */
};

/* Whether a panel is read so many times that the next one has the time to come near. */
static inline int is_far(const struct pass *pass) { return pass->rows > (FAR_FROM_BLOCKS - 1) * PANEL; }

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
    char *split[2]; /* room for a chunk of a panel in parts, and for the next one */
    float *sums[3]; /* [rows][32] each: of a panel, and of the two before, which GATE finishes meanwhile */
    struct splitting next;
    struct pending done;
    float awake[TILE / 4] __attribute__((aligned(64))); /* whole cache lines */
};

/* Where a panel's inputs of a pass lie from `step` of it on. */
static inline const char *weight_of(const struct product *p, const struct pass *pass, long panel, long step, long bytes)
{
    return (const char *)p->weight + (panel * (p->inputs / STEP) + pass->step + step) * bytes;
}

/* Begin to split the chunk at `step` of a panel, or the next panel's first one, into the room that is free; the panels
 * of this thread end at `end`. */
static void split_next(
    const struct product *p, const struct pass *pass, struct own *own, long panel, long step, long end)
{
    if (step == pass->steps) {
        panel++;
        step = 0;
    }
    const char *from = weight_of(p, pass, panel, step, STEP * PANEL * sizeof(float));
    const long pairs = panel < end ? least(pass->chunk, pass->steps - step) * TILE_ROWS : 0;
    own->next = (struct splitting){(const float *)from, own->split[1], pairs};
}

/* The chunk that was split last, to be multiplied now. */
static const char *split_chunk(struct own *own)
{
    char *ready = own->split[1];
    split_pairs(&own->next, own->next.left);
    own->split[1] = own->split[0];
    written_before_tiles();
    return own->split[0] = ready;
}

/* All rows of a pass by a chunk of a panel. The sums of a single block of rows stay in their tiles between chunks. */
static inline __attribute__((always_inline)) void do_chunk(
    const struct product *p, const struct pass *pass, struct own *own, struct block *block, const int parts,
    const int wide)
{
    const int alone = pass->rows <= PANEL, first = !block->step, last = block->step + block->steps == pass->steps;
    block->values = pass->values + block->step * parts * 2 * TILE;
    for (long row = 0; row < pass->rows; row += PANEL) {
        if (first || !alone) {
            if (block->before)
                load_sums(block->before + row * PANEL);
            else
                zero_sums();
        }
        if (pass->rows - row > TILE_ROWS)
            multiply(p, block, &own->done, parts, 1, wide);
        else
            multiply(p, block, &own->done, parts, 0, wide);
        if (last || !alone)
            store_sums(block->sums + row * PANEL);
        block->values += pass->steps * parts * 2 * TILE;
        block->settle -= least(block->settle, block->steps);
        block->ahead += block->steps * block->ahead_bytes;
        if (!is_far(pass))
            block->ahead_bytes = 0;
    }
}

/* All rows of a pass by a panel, whose sums go to `sums`, [rows][32]; the panels of this thread end at `end`. */
static inline __attribute__((always_inline)) void do_panel(
    const struct product *p, const struct pass *pass, struct own *own, long panel, long end, float *sums,
    const int parts, const int wide)
{
    const long blocks = (pass->rows + PANEL - 1) / PANEL, settle = least(SETTLE_STEPS, pass->steps / 2);
    const char *weight = weight_of(p, pass, panel, 0, parts == 3 ? STEP * PANEL * sizeof(float) : 2 * TILE);
    struct block block = {
        .panel = weight,
        .before = pass->step ? pass->sums + panel * pass->rows * PANEL : NULL,
        .sums = sums,
        /* With many blocks the next panel comes near during all of them; with few the panel itself in the first. */
        .ahead = is_far(pass) ? weight + pass->steps * 2 * TILE : weight + NEXT_BYTES,
        .next = &own->next,
        .ahead_bytes = parts == 3 ? 0 : !is_far(pass) ? 2 * TILE : panel + 1 < end ? 2 * TILE / blocks : 0,
        .mixed = is_mixed(pass->rows),
        .finished = PANEL / (pass->steps - settle) + 1,
        .settle = settle,
        .awake = own->awake,
        .stream = pass->stream,
    };
    const long turns = block.mixed ? PRODUCTS * blocks : blocks;
    block.split = (TILE_ROWS + turns - 1) / turns;
    written_before_tiles();
    for (; block.step < pass->steps; block.step += block.steps) {
        block.steps = least(pass->chunk, pass->steps - block.step);
        if (parts == 3) {
            block.panel = split_chunk(own);
            split_next(p, pass, own, panel, block.step + block.steps, end);
        }
        do_chunk(p, pass, own, &block, parts, wide);
        block.before = sums;
    }
    finish_rows(p, &own->done, pass->rows, pass->stream, wide);
}

/* One thread's part of a pass: the panels [begin, end). In fp32 a chunk is split while the one before is multiplied. */
static inline __attribute__((always_inline)) void do_panels(
    const struct product *p, const struct pass *pass, struct own *own, long begin, long end, const int parts,
    const int wide)
{
    if (parts == 3)
        split_next(p, pass, own, begin, 0, end);
    for (long panel = begin; panel < end; panel++) {
        float *sums = pass->last ? own->sums[panel % 3] : pass->sums + panel * pass->rows * PANEL;
        do_panel(p, pass, own, panel, end, sums, parts, wide);
        if (pass->last && (p->finish != GATE || panel % 2))
            own->done = (struct pending){sums, own->sums[(panel + 2) % 3], panel, pass->first, pass->rows};
    }
    finish_rows(p, &own->done, pass->rows, pass->stream, wide);
}

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
        __builtin_prefetch((const char *)weight + SOON_BYTES, 0, 3);
        __builtin_prefetch((const char *)weight + SOON_BYTES + 64, 0, 3);
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

/* fp32 by vectors alone: to split a weight into parts costs more than multiplying a few rows by it. */
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
        const long split = parts == 3 ? cut.chunk * parts * 2 * TILE : 0, held = cut.rows * PANEL * sizeof(float);
        char *room = room_for(&own_room, 2 * split + 3 * held);
        struct own own = {.split = {room, room + split}};
        failed = !room;
        for (int i = 0; room && i < 3; i++)
            own.sums[i] = (float *)(room + 2 * split + i * held);
        shape_for(p->rows);
        for (long first = 0; first < p->rows; first += cut.rows) {
            for (long step = 0; step < all; step += cut.steps) {
                const long rows = least(cut.rows, p->rows - first), steps = least(cut.steps, all - step);
                const struct pass pass = {
                    .first = first,
                    .rows = rows,
                    .step = step,
                    .steps = steps,
                    .chunk = cut.chunk,
                    .values = values,
                    .sums = sums,
                    .last = step + steps == all,
                    .stream = streams(p, wide),
                };
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
