/* Products of activations with packed weights on AMX tiles: bf16, whose weights may lie in 12 bits each, and fp32 from
 * three bf16 parts of each operand.
 *
 * out = values weight^T, then bias, residual or gate. Weights lie in panels of 32 outputs whose inputs are innermost in
 * the order in which they are read (see model/tiled.py). A block of 32 rows by one panel is summed in four tiles, input
 * by input in one fixed order, so that a row's result does not depend, in any bit, on the rows beside it.
 *
 * fp32: x = x1 + x2 + x3 exactly, each part of eight significant bits. Those of values are rounded to nearest, so that
 * what is left has either sign and errors are not all on one side; those of weights, of which there are more to split,
 * are cut off, which takes a third fewer operations. Of the nine products the six with i + j <= 4 are summed, the small
 * ones first; each of those left out is below 2^-23 of the product, about one rounding of fp32. Few rows are multiplied
 * by vectors instead, in one order of their own. Numbers below 2^-126 count as zero, as AMX has it. */

#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "amx.h"
#include "few_rows.h"
#include "finish.h"
#include "parts.h"
#include "unpack.h"
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
#define ALONE_STEPS 4 /* expanded at a time for a single block of rows: two such chunks stay in the first cache */
#define EXPANDED_STEPS 64 /* at a time for more, whose sums are loaded and stored for each chunk */
#define MANY_BLOCKS 3 /* of rows: from which values pass by, so that a chunk of a panel may stay in the first cache */
#define STAYING_STEPS 14 /* expanded at a time then */
#define UNPACK_AHEAD 8192 /* bytes from what is unpacked to what is asked for: as far as memory takes to answer */
#define FAR_FROM_BLOCKS 8 /* of rows: from which a panel is brought near during the one before */
#define NEXT_BYTES 1024 /* just before tiles are loaded: the rest of a step and half of the next, in order */
#define AWAKE_STEPS 4 /* between two stores of a tile: after 0.65 us without one the next waits for 0.25 us */

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
    struct unpacking *next; /* what will be multiplied next */
    long ahead_bytes, finished; /* each step: bytes ahead, rows of what is pending */
    long unpacked; /* pairs of the next, `turns` times each step */
    long settle; /* steps before the first of these rows */
    float *awake; /* room for a tile that nobody reads */
    int stream, turns, many; /* many: blocks of rows by the same panel */
};

/* Values of many blocks would push the panel out of the first cache between two of its products; those of few are
 * needed again for the next panel. */
static inline void load_values_4(const struct block *b, const char *values)
{
    if (b->many)
        _tile_stream_loadd(4, values, TILE_BYTES);
    else
        _tile_loadd(4, values, TILE_BYTES);
}

static inline void load_values_5(const struct block *b, const char *values)
{
    if (b->many)
        _tile_stream_loadd(5, values, TILE_BYTES);
    else
        _tile_loadd(5, values, TILE_BYTES);
}

#define MULTIPLY                                                                                                       \
    _tile_dpbf16ps(0, 4, 6);                                                                                           \
    _tile_dpbf16ps(1, 4, 7);                                                                                           \
    if (tall) {                                                                                                        \
        _tile_dpbf16ps(2, 5, 6);                                                                                       \
        _tile_dpbf16ps(3, 5, 7);                                                                                       \
    }
#define LOAD_VALUES(part)                                                                                              \
    load_values_4(b, values + (part) * 2 * TILE);                                                                      \
    if (tall)                                                                                                          \
        load_values_5(b, values + (part) * 2 * TILE + TILE);
#define LOAD_PANEL(part)                                                                                               \
    _tile_loadd(6, panel + (part) * 2 * TILE, TILE_BYTES);                                                             \
    _tile_loadd(7, panel + (part) * 2 * TILE + TILE, TILE_BYTES);

#define MULTIPLY_IN_TURNS(then)                                                                                        \
    _tile_dpbf16ps(0, 4, 6);                                                                                           \
    then;                                                                                                              \
    _tile_dpbf16ps(1, 4, 7);                                                                                           \
    if (b->turns > 1)                                                                                                  \
        then;                                                                                                          \
    if (tall)                                                                                                          \
        _tile_dpbf16ps(2, 5, 6);                                                                                       \
    if (b->turns > 2)                                                                                                  \
        then;                                                                                                          \
    if (tall)                                                                                                          \
        _tile_dpbf16ps(3, 5, 7);                                                                                       \
    if (b->turns > 2)                                                                                                  \
        then;

#define PRODUCTS 6 /* of two parts each: */
#define MULTIPLY_PARTS(then)                                                                                           \
    LOAD_VALUES(2) LOAD_PANEL(0) MULTIPLY then                                                                         \
    LOAD_VALUES(1) MULTIPLY then                                                                                       \
    LOAD_PANEL(1) MULTIPLY then                                                                                        \
    LOAD_VALUES(0) MULTIPLY then                                                                                       \
    LOAD_PANEL(2) MULTIPLY then                                                                                        \
    LOAD_PANEL(0) MULTIPLY then

/* Unpack some pairs of what is next, and bring near what comes UNPACK_AHEAD later. */
static inline __attribute__((always_inline)) void unpack_near(
    const struct product *p, struct unpacking *next, long pairs, const int form)
{
    const char *ahead = next->from + UNPACK_AHEAD, *reach = ahead + pairs * step_bytes(form) / TILE_ROWS;
    for (; ahead < reach; ahead += 64)
        __builtin_prefetch(ahead, 0, 2);
    unpack_pairs(next, p->code, pairs, form);
}

/* How many times a step some of what is next is unpacked: once for many blocks of rows, else so often that there is a
 * little to do behind each product. Measured, 288 vector operations behind 24 products take their time besides, a sixth
 * of them behind each four products take none. */
static inline int turns_of(long blocks, const int form)
{
    if (form == FP32)
        return blocks <= MIXED_BLOCKS ? PRODUCTS : 1;
    return blocks <= 2 ? 4 : blocks <= 4 ? 2 : 1;
}

/* Add the products of a block to tiles 0 to 3 while what is pending is finished, and what is next is unpacked. `tall`:
 * more than 16 rows. */
static inline __attribute__((always_inline)) void multiply(
    const struct product *p, const struct block *b, struct pending *done, const int form, const int tall,
    const int wide)
{
    const char *values = b->values, *panel = b->panel, *ahead = b->ahead, *reach = ahead;
    const long parts = parts_of(form);
    struct unpacking next = *b->next;
    for (long s = 0; s < b->steps; s++) {
        for (reach += b->ahead_bytes; ahead < reach; ahead += 64)
            __builtin_prefetch(ahead, 0, 2);
        finish_rows(p, done, s < b->settle ? 0 : b->finished, b->stream, wide);
        if (form == FP32 && b->turns > 1) {
            MULTIPLY_PARTS(unpack_near(p, &next, b->unpacked, form);)
        } else if (form == FP32) {
            unpack_pairs(&next, p->code, b->unpacked, form);
            MULTIPLY_PARTS()
        } else {
            LOAD_VALUES(0) LOAD_PANEL(0)
            if (form == COMPACT) {
                MULTIPLY_IN_TURNS(unpack_near(p, &next, b->unpacked, form))
            } else {
                MULTIPLY
            }
        }
        if (s % (form == FP32 ? AWAKE_STEPS / 2 : AWAKE_STEPS) == 0)
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

/* How a product is cut: rows of a block of values, steps of one pass over the panels, and steps of a panel that lie
 * there in parts at a time. */
struct cut {
    long rows, steps, chunk;
};

/* Most steps that are unpacked at a time for a block of `rows`. */
static inline long most_unpacked(long rows, const int form)
{
    if (form == FP32)
        return rows <= MIXED_BLOCKS * PANEL ? MIXED_STEPS : SPLIT_STEPS;
    if (rows > (MANY_BLOCKS - 1) * PANEL)
        return STAYING_STEPS;
    return rows <= PANEL ? ALONE_STEPS : EXPANDED_STEPS;
}

static struct cut cut_of(const struct product *p, const int form)
{
    const long parts = parts_of(form);
    const long fit = NEAR_BYTES / (p->inputs / STEP * TILE_BYTES) / PANEL * PANEL; /* rows of bf16 in one pass */
    const long most = parts == 3 ? MOST_ROWS : fit < LEAST_ROWS ? PASS_ROWS : least(fit, MOST_ROWS);
    const long rows = equal_shares(p->rows, most, PANEL), near = NEAR_BYTES / (rows * TILE_BYTES * parts);
    const long steps = equal_shares(p->inputs / STEP, near, 1);
    const long chunk = form == TILES ? steps : equal_shares(steps, most_unpacked(rows, form), 1);
    return (struct cut){rows, steps, chunk};
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
    char *unpacked[2]; /* room for a chunk of a panel as tiles, and for the next one */
    long panel, step, steps; /* the chunk that is unpacked: its panel, and its steps of the pass */
    float *sums[3]; /* [rows][32] each: of a panel, and of the two before, which GATE finishes meanwhile */
    struct unpacking next;
    struct pending done;
    float awake[TILE / 4] __attribute__((aligned(64))); /* whole cache lines */
};

/* Where a panel's inputs of a pass lie from `step` of it on. */
static inline const char *weight_of(
    const struct product *p, const struct pass *pass, long panel, long step, const int form)
{
    return (const char *)p->weight + (panel * (p->inputs / STEP) + pass->step + step) * step_bytes(form);
}

/* Begin to unpack the chunk at `step` of a panel, or the next panel's first one, into the room that is free; the panels
 * of this thread end at `end`. */
static void unpack_next(
    const struct product *p, const struct pass *pass, struct own *own, long panel, long step, long end, const int form)
{
    if (step == pass->steps) {
        panel++;
        step = 0;
    }
    own->panel = panel;
    own->step = step;
    own->steps = panel < end ? least(pass->chunk, pass->steps - step) : 0;
    own->next = (struct unpacking){weight_of(p, pass, panel, step, form), own->unpacked[1], own->steps * TILE_ROWS};
}

/* The chunk that was unpacked last, to be multiplied now. */
static const char *unpacked_chunk(const struct product *p, const struct pass *pass, struct own *own, const int form)
{
    char *ready = own->unpacked[1];
    unpack_pairs(&own->next, p->code, own->next.left, form);
    if (form == COMPACT)
        put_patches(p->code, own->panel * (p->inputs / STEP), pass->step + own->step, own->steps, ready);
    own->unpacked[1] = own->unpacked[0];
    written_before_tiles();
    return own->unpacked[0] = ready;
}

/* All rows of a pass by a chunk of a panel. The sums of a single block of rows stay in their tiles between chunks. */
static inline __attribute__((always_inline)) void do_chunk(
    const struct product *p, const struct pass *pass, struct own *own, struct block *block, const int form,
    const int wide)
{
    const long parts = parts_of(form);
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
            multiply(p, block, &own->done, form, 1, wide);
        else
            multiply(p, block, &own->done, form, 0, wide);
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
    const int form, const int wide)
{
    const long blocks = (pass->rows + PANEL - 1) / PANEL, settle = least(SETTLE_STEPS, pass->steps / 2);
    const char *weight = weight_of(p, pass, panel, 0, form);
    struct block block = {
        .panel = weight,
        .before = pass->step ? pass->sums + panel * pass->rows * PANEL : NULL,
        .sums = sums,
        /* With many blocks the next panel comes near during all of them; with few the panel itself in the first. */
        .ahead = is_far(pass) ? weight + pass->steps * 2 * TILE : weight + NEXT_BYTES,
        .next = &own->next,
        .ahead_bytes = form != TILES ? 0 : !is_far(pass) ? 2 * TILE : panel + 1 < end ? 2 * TILE / blocks : 0,
        .turns = turns_of(blocks, form),
        .many = blocks >= MANY_BLOCKS,
        .finished = PANEL / (pass->steps - settle) + 1,
        .settle = settle,
        .awake = own->awake,
        .stream = pass->stream,
    };
    const long turns = block.turns * blocks, pairs = pairs_at_once(form);
    block.unpacked = (TILE_ROWS + turns * pairs - 1) / (turns * pairs) * pairs;
    written_before_tiles();
    for (; block.step < pass->steps; block.step += block.steps) {
        block.steps = least(pass->chunk, pass->steps - block.step);
        if (form != TILES) {
            block.panel = unpacked_chunk(p, pass, own, form);
            unpack_next(p, pass, own, panel, block.step + block.steps, end, form);
        }
        do_chunk(p, pass, own, &block, form, wide);
        block.before = sums;
    }
    finish_rows(p, &own->done, pass->rows, pass->stream, wide);
}

/* One thread's part of a pass: the panels [begin, end). A chunk is unpacked while the one before is multiplied. */
static inline __attribute__((always_inline)) void do_panels(
    const struct product *p, const struct pass *pass, struct own *own, long begin, long end, const int form,
    const int wide)
{
    if (form != TILES)
        unpack_next(p, pass, own, begin, 0, end, form);
    for (long panel = begin; panel < end; panel++) {
        float *sums = pass->last ? own->sums[panel % 3] : pass->sums + panel * pass->rows * PANEL;
        do_panel(p, pass, own, panel, end, sums, form, wide);
        if (pass->last && (p->finish != GATE || panel % 2))
            own->done = (struct pending){sums, own->sums[(panel + 2) % 3], panel, pass->first, pass->rows};
    }
    finish_rows(p, &own->done, pass->rows, pass->stream, wide);
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
static inline __attribute__((always_inline)) int run(const struct product *p, const int form, const int wide)
{
    const long parts = parts_of(form);
    static __thread struct room values_room, sums_room, own_room; /* the first two of the calling thread */
    const long panels = p->outputs / PANEL;
    if (form == FP32 && p->rows <= FEW_ROWS) {
#pragma omp parallel num_threads(p->threads) if (p->threads > 1)
        do_few_rows(p, first_panel(panels, 0), first_panel(panels, 1));
        return 0;
    }
    if (!p->rows)
        return 0;
    const struct cut cut = cut_of(p, form);
    const long all = p->inputs / STEP;
    char *values = room_for(&values_room, cut.rows * cut.steps * TILE_BYTES * parts);
    float *sums = cut.steps < all ? room_for(&sums_room, cut.rows * p->outputs * sizeof(float)) : NULL;
    int failed = !values || (cut.steps < all && !sums);
    if (failed)
        return 1;
#pragma omp parallel num_threads(p->threads) if (p->threads > 1) reduction(| : failed)
    {
        const long chunk = form != TILES ? cut.chunk * parts * 2 * TILE : 0, held = cut.rows * PANEL * sizeof(float);
        char *room = room_for(&own_room, 2 * chunk + 3 * held);
        struct own own = {.unpacked = {room, room + chunk}};
        failed = !room;
        for (int i = 0; room && i < 3; i++)
            own.sums[i] = (float *)(room + 2 * chunk + i * held);
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
                    do_panels(p, &pass, &own, first_panel(panels, 0), first_panel(panels, 1), form, wide);
#pragma omp barrier
            }
        }
        _tile_release();
        _mm_sfence(); /* streamed results are there for every thread */
    }
    return failed;
}

int multiply_bf16(const struct product *p) 
{
    if (p->code)
        return p->finish == WIDEN ? run(p, COMPACT, 1) : run(p, COMPACT, 0);
    return p->finish == WIDEN ? run(p, TILES, 1) : run(p, TILES, 0);
}
int multiply_f32(const struct product *p) { return run(p, FP32, 1); }
#else
int multiply_bf16(const struct product *p) { return (void)p, 1; }
int multiply_f32(const struct product *p) { return (void)p, 1; }
#endif
