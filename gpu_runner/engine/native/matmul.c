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
#include "parts.h"
#include "vectors.h"

enum finish { WRITE, ADD, GATE, WIDEN }; /* what becomes of the sums; GATE: silu(panel) * next panel */

struct product {
    const void *values, *weight; /* [rows][inputs]; packed */
    const float *bias; /* [outputs] in the order of the panels, or NULL */
    void *out; /* [rows][width]: of the values' format, fp32 for WIDEN */
    int64_t rows, inputs, outputs, width, finish, threads; /* outputs: of all panels; width: those that are real */
};

#ifdef HEADWAY_AMX
#define NEAR_BYTES (832 << 10) /* of values, which every panel reads again: what leaves room in a 2 MiB cache */
#define MOST_ROWS 512
#define STREAM_FROM (1 << 20) /* bytes of results, or of the weight that pushes them out, that go past the caches */
#define SETTLE_STEPS 8 /* before sums that were just stored are read: sooner, reading waits for all stores */
#define SPLIT_STEPS 12 /* of panels in parts, of which two pairs have to lie near beside the values */
#define FEW_ROWS 48 /* up to which vectors are faster in fp32 */
#define FEW_TOGETHER 12 /* rows whose sums fit the registers */
#define SOON_BYTES 2048 /* ahead of what few rows read: as far as memory takes to answer */
#define FAR_FROM_BLOCKS 8 /* of rows: from which a panel is brought near during the pair before */
#define NEXT_BYTES 1024 /* just before tiles are loaded: the rest of a step and half of the next, in order */
#define FEWEST_ROWS 128 /* of a block of values, if there are more: each block reads the whole weight */

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

/* 32 results side by side; `wide`: they are fp32. */
static inline __attribute__((always_inline)) void put_all(void *out, vf x, vf y, int finish, int stream, const int wide)
{
    float *wide_out = out;
    uint16_t *narrow_out = out;
    if (finish == ADD) {
        x += wide ? load(wide_out) : bf16_load(narrow_out);
        y += wide ? load(wide_out + 16) : bf16_load(narrow_out + 16);
    }
    if (wide && stream) {
        _mm512_stream_ps(wide_out, (__m512)x);
        _mm512_stream_ps(wide_out + 16, (__m512)y);
    } else if (wide) {
        store(wide_out, x);
        store(wide_out + 16, y);
    } else {
        const __m512i line = (__m512i)_mm512_cvtne2ps_pbh((__m512)y, (__m512)x);
        if (stream)
            _mm512_stream_si512((__m512i *)out, line);
        else
            _mm512_storeu_si512(out, line);
    }
}

/* The same where a width that is no multiple of 32 may have only `count` of them. */
static inline __attribute__((always_inline)) void put(
    void *out, vf x, vf y, long count, int finish, int stream, const int wide)
{
    if (count >= PANEL) {
        put_all(out, x, y, finish, stream, wide);
    } else {
        char few[PANEL * sizeof(float)];
        const long bytes = count * (wide ? sizeof(float) : sizeof(uint16_t));
        memcpy(few, out, bytes);
        put_all(few, x, y, finish, 0, wide);
        memcpy(out, few, bytes);
    }
}

/* Sums of a block that are complete and become results while the next block is multiplied: the tiles' own units do
 * that, and those of vectors would be idle. */
struct pending {
    const float *sums; /* of the next row */
    long stride, panel, panels, row, left;
};

/* One row of one or two panels becomes results. */
static inline __attribute__((always_inline)) void finish_row(
    const struct product *p, const struct pending *done, int stream, const int wide)
{
    const long size = wide ? sizeof(float) : sizeof(uint16_t);
    char *row = (char *)p->out + done->row * p->width * size;
    vf sums[4];
    for (long i = 0; i < 2 * done->panels; i++)
        sums[i] = load(done->sums + i * 16) + (p->bias ? load(p->bias + done->panel * PANEL + i * 16) : (vf){0});
    if (p->finish == GATE) {
        const long at = done->panel / 2 * PANEL;
        put(row + at * size, silu(sums[0]) * sums[2], silu(sums[1]) * sums[3], p->width - at, WRITE, stream, wide);
        return;
    }
    for (long i = 0; i < done->panels; i++) {
        const long at = (done->panel + i) * PANEL;
        put(row + at * size, sums[2 * i], sums[2 * i + 1], p->width - at, p->finish, stream, wide);
    }
}

/* Up to `count` rows of what is pending. */
static inline __attribute__((always_inline)) void finish_rows(
    const struct product *p, struct pending *done, long count, int stream, const int wide)
{
    for (; count > 0 && done->left > 0; count--, done->left--, done->row++, done->sums += done->stride)
        finish_row(p, done, stream, wide);
}

/* One block of values by one panel over some inputs. */
struct block {
    const char *upper, *lower; /* rows 0 to 15 and 16 to 31 of values, each [steps][parts][tile] */
    const char *panel; /* [steps][parts][2][tile] */
    long steps;
    const char *ahead; /* what will be read next, to be brought near meanwhile */
    struct splitting *next; /* the panel that will be multiplied so next, in fp32 */
    long ahead_bytes, split, finished; /* for each step: bytes ahead, pairs of the next panel, rows of what is pending */
    long settle; /* steps before the first of these rows */
    int stream;
};

static inline void bring_near(const char *from, long bytes)
{
    for (long i = 0; i < bytes; i += 64)
        __builtin_prefetch(from + i, 0, 2);
}

#define MULTIPLY                                                                                                       \
    _tile_dpbf16ps(0, 4, 6);                                                                                           \
    _tile_dpbf16ps(1, 4, 7);                                                                                           \
    if (tall) {                                                                                                        \
        _tile_dpbf16ps(2, 5, 6);                                                                                       \
        _tile_dpbf16ps(3, 5, 7);                                                                                       \
    }
#define LOAD_VALUES(part)                                                                                              \
    _tile_loadd(4, upper + (part) * TILE, TILE_BYTES);                                                                 \
    if (tall)                                                                                                          \
        _tile_loadd(5, lower + (part) * TILE, TILE_BYTES);
#define LOAD_PANEL(part)                                                                                               \
    _tile_loadd(6, panel + (part) * 2 * TILE, TILE_BYTES);                                                             \
    _tile_loadd(7, panel + (part) * 2 * TILE + TILE, TILE_BYTES);

/* Add the products of a block to tiles 0 to 3 while what is pending is finished; `tall`: more than 16 rows. */
static inline __attribute__((always_inline)) void multiply(
    const struct product *p, const struct block *b, struct pending *done, const int parts, const int tall, const int wide)
{
    const char *upper = b->upper, *lower = b->lower, *panel = b->panel, *ahead = b->ahead;
    for (long s = 0; s < b->steps; s++) {
        if (parts == 3)
            split_pairs(b->next, b->split);
        else
            bring_near(ahead, b->ahead_bytes);
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
        upper += parts * TILE;
        lower += parts * TILE;
        panel += parts * 2 * TILE;
        ahead += b->ahead_bytes;
    }
}

static inline void load_sums(const float *sums, long stride)
{
    _tile_loadd(0, sums, stride * 4);
    _tile_loadd(1, sums + 16, stride * 4);
    _tile_loadd(2, sums + TILE_ROWS * stride, stride * 4);
    _tile_loadd(3, sums + TILE_ROWS * stride + 16, stride * 4);
}

static inline void store_sums(float *sums, long stride)
{
    _tile_stored(0, sums, stride * 4);
    _tile_stored(1, sums + 16, stride * 4);
    _tile_stored(2, sums + TILE_ROWS * stride, stride * 4);
    _tile_stored(3, sums + TILE_ROWS * stride + 16, stride * 4);
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
    const long steps = p->inputs / STEP, row_bytes = least(steps, parts == 3 ? SPLIT_STEPS : steps) * TILE_BYTES * parts;
    long most = NEAR_BYTES / row_bytes;
    most = most < FEWEST_ROWS ? FEWEST_ROWS : most > MOST_ROWS ? MOST_ROWS : most;
    const long rows = equal_shares(p->rows, most, PANEL), near = NEAR_BYTES / (rows * TILE_BYTES * parts);
    const long each = parts == 3 ? least(near, SPLIT_STEPS) : near;
    return (struct cut){rows, equal_shares(steps, each < 1 ? 1 : each, 1)};
}

/* Rows [first, first + rows) and steps [step, step + steps): what one pass over the panels multiplies. */
struct pass {
    long first, rows, step, steps;
    char *values; /* in tiles: [rows / 16][steps][parts][tile] */
    float *sums; /* [rows][outputs] between two passes, or NULL where one is enough */
    int stream; /* results go past the caches */
};

static inline __attribute__((always_inline)) void place_values(
    const struct product *p, const struct pass *pass, long row, const int parts)
{
    const long size = parts == 3 ? sizeof(float) : 2;
    const char *from = (const char *)p->values + ((pass->first + row) * p->inputs + pass->step * STEP) * size;
    char *to = pass->values + row / TILE_ROWS * pass->steps * parts * TILE + row % TILE_ROWS * TILE_BYTES;
    place_row(row < pass->rows ? from : NULL, pass->steps, to, parts);
}

/* What a thread keeps from block to block. */
struct own {
    char *split[2]; /* room for a pair of panels in parts, and for the next pair */
    struct splitting next[2];
    struct pending done;
    int turn; /* which of `near` the next sums go to: the others may be pending */
    float near[2][PANEL * PAIR];
};

/* A block of a pass: its sums go to `sums`, while the block before it is finished. */
static inline __attribute__((always_inline)) void do_block(
    const struct product *p, const struct pass *pass, struct pending *done, const struct block *block, float *sums,
    long stride, int tall, const int parts, const int wide)
{
    if (pass->step > 0)
        load_sums(sums, stride);
    else
        zero_sums();
    if (tall)
        multiply(p, block, done, parts, 1, wide);
    else
        multiply(p, block, done, parts, 0, wide);
    store_sums(sums, stride);
}

/* Where a panel's inputs of a pass lie. */
static inline const char *weight_of(const struct product *p, const struct pass *pass, long panel, long step_bytes)
{
    return (const char *)p->weight + (panel * (p->inputs / STEP) + pass->step) * step_bytes;
}

/* Begin to split the pair of panels from `panel` on, up to `end`, into `to`. */
static void split_next(const struct product *p, const struct pass *pass, struct own *own, long panel, long end, char *to)
{
    for (long i = 0; i < 2; i++)
        own->next[i] = (struct splitting){
            (const float *)weight_of(p, pass, panel + i, STEP * PANEL * sizeof(float)),
            to + i * pass->steps * 6 * TILE,
            panel + i < end ? pass->steps * TILE_ROWS : 0,
        };
}

/* All rows of a pass by one or two panels from `panel` on; those of this thread end at `end`. */
static inline __attribute__((always_inline)) void do_pair(
    const struct product *p, const struct pass *pass, struct own *own, long panel, long end, const int parts,
    const int wide)
{
    const long steps = pass->steps, panels = least(2, end - panel), blocks = (pass->rows + PANEL - 1) / PANEL;
    const long held = STEP * PANEL * 2; /* bytes of a panel and step in bf16 */
    /* With many blocks the next pair comes near during all of them; with few the panel itself during the first. */
    const int far = blocks >= FAR_FROM_BLOCKS;
    const long share = far ? ((held + blocks - 1) / blocks + 63) / 64 * 64 : held, strip = steps * parts * TILE;
    const long settle = least(SETTLE_STEPS, steps / 2), left = steps * panels - settle;
    const long finished = (PANEL + left - 1) / left; /* rows for each step */
    const char *weight[2], *ahead[2];
    for (long i = 0; i < panels; i++) {
        weight[i] = parts == 3 ? own->split[0] + i * 2 * strip : weight_of(p, pass, panel + i, held);
        ahead[i] = weight[i] + NEXT_BYTES;
        if (far && panel + i + 2 < end)
            ahead[i] = weight_of(p, pass, panel + i + 2, held);
    }
    written_before_tiles();
    for (long row = 0; row < pass->rows; row += PANEL, own->turn = !own->turn) {
        float *sums = pass->sums ? pass->sums + row * p->outputs + panel * PANEL : own->near[own->turn];
        const long stride = pass->sums ? p->outputs : PAIR, rows = least(PANEL, pass->rows - row);
        for (long i = 0; i < panels; i++, ahead[i - 1] += steps * share) {
            const char *values = pass->values + row / TILE_ROWS * strip;
            const struct block block = {
                .upper = values,
                .lower = values + strip,
                .panel = weight[i],
                .steps = steps,
                .ahead = ahead[i],
                .next = &own->next[i],
                .ahead_bytes = far || row == 0 ? share : 0,
                .split = (TILE_ROWS + blocks - 1) / blocks,
                .finished = finished,
                .settle = i == 0 ? settle : 0,
                .stream = pass->stream,
            };
            do_block(p, pass, &own->done, &block, sums + i * PANEL, stride, rows > TILE_ROWS, parts, wide);
        }
        finish_rows(p, &own->done, PANEL, pass->stream, wide);
        if (pass->step + steps == p->inputs / STEP)
            own->done = (struct pending){sums, stride, panel, panels, pass->first + row, rows};
    }
}

/* One thread's part of a pass: the panels [begin, end), pair by pair. In fp32 each pair is split while the one before
 * is multiplied. */
static inline __attribute__((always_inline)) void do_panels(
    const struct product *p, const struct pass *pass, struct own *own, long begin, long end, const int parts,
    const int wide)
{
    if (parts == 3)
        split_next(p, pass, own, begin, end, own->split[1]);
    for (long panel = begin; panel < end; panel += 2) {
        if (parts == 3) {
            char *ready = own->split[1];
            for (long i = 0; i < 2; i++)
                split_pairs(&own->next[i], own->next[i].left);
            own->split[1] = own->split[0];
            own->split[0] = ready;
            split_next(p, pass, own, panel + 2, end, own->split[1]);
        }
        do_pair(p, pass, own, panel, end, parts, wide);
    }
    finish_rows(p, &own->done, PANEL, pass->stream, wide);
}

/* Whether results fill whole cache lines, in which they would not stay. */
static int streams(const struct product *p, const int wide)
{
    const long row = p->width * (wide ? sizeof(float) : sizeof(uint16_t));
    const long weight = p->inputs * p->outputs * (wide && p->finish != WIDEN ? sizeof(float) : sizeof(uint16_t));
    const int many = p->rows * row >= STREAM_FROM || weight >= STREAM_FROM;
    return many && p->finish != ADD && row % 64 == 0 && (uintptr_t)p->out % 64 == 0;
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
        store(sums + r * PAIR, left[r]);
        store(sums + r * PAIR + 16, right[r]);
    }
}

/* fp32 by vectors alone: to split a weight into parts costs more than multiplying a few rows by it. */
static void do_few_rows(const struct product *p, long begin, long end)
{
    float sums[FEW_ROWS * PAIR];
    for (long panel = begin; panel < end; panel += 2) {
        const long panels = least(2, end - panel);
        for (long i = 0; i < panels; i++) {
            const float *weight = (const float *)p->weight + (panel + i) * PANEL * p->inputs;
            for (long row = 0, rows; row < p->rows; row += rows) {
                const float *values = (const float *)p->values + row * p->inputs;
                float *to = sums + row * PAIR + i * PANEL;
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
        }
        struct pending done = {sums, PAIR, panel, panels, 0, p->rows};
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
    static __thread struct room values_room, sums_room, split_room; /* the first two of the calling thread */
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
        const long room = cut.steps * parts * 4 * TILE; /* of a pair in parts */
        char *split = parts == 3 ? room_for(&split_room, 2 * room) : NULL;
        struct own own = {.split = {split, split + room}};
        failed = parts == 3 && !split;
        shape_tiles((const uint8_t[8]){16, 16, 16, 16, 16, 16, 16, 16});
        for (long first = 0; first < p->rows; first += cut.rows) {
            for (long step = 0; step < all; step += cut.steps) {
                const struct pass pass = {first, least(cut.rows, p->rows - first), step,
                                          least(cut.steps, all - step), values, sums, streams(p, wide)};
#pragma omp for schedule(static)
                for (long row = 0; row < (pass.rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS; row++)
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
