/* CPU attention over a paged KV cache. Called through ctypes with plain pointers; see attention/native.py. */

#include <math.h>
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "amx.h"
#include "vectors.h"

/* Keeps small accumulator arrays in registers: without it they live in memory. */
#define UNROLL _Pragma("GCC unroll 8")
#define MANY_REGISTERS (VL == 16) /* for 16 sums at a time */
#define SCORE_ROOM 65536 /* floats of scores of one item that are still close at hand */
#define SPAN_ROOM (300 * 1024) /* bytes of a span of pages that are close at hand together with the next span's */

struct batch {
    const void *qkv; /* [tokens][heads + 2 kv_heads][head_dim] */
    void *keys, *values, *out; /* out [tokens][heads][head_dim] */
    const float *cos, *sin; /* [tokens][head_dim / 2] */
    const int64_t *slots; /* [tokens] */
    const int32_t *starts, *contexts, *tables; /* [rows + 1], [rows], [rows][table_width] */
    int64_t tokens, rows, table_width, heads, kv_heads, head_dim, block_size;
    int64_t last_only; /* attend the last token of each row only */
    int64_t threads;
    float scale;
};

/* Queries [first, first + count) of each of KV heads [head, head + heads) of one row. */
struct item {
    long row, head, heads, first, count;
    const struct item *before, *after; /* what the same thread does around it if all keep step; NULL where nothing */
};

static inline float bf16_get(uint16_t x)
{
    const uint32_t wide = (uint32_t)x << 16;
    float out;
    memcpy(&out, &wide, sizeof out);
    return out;
}

static inline uint16_t bf16_put(float x) /* round to nearest even */
{
    uint32_t wide;
    memcpy(&wide, &x, sizeof wide);
    return (uint16_t)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}

static inline void prefetch(const void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch((const char *)p + i, 0, 2);
}

/* Exponentials of `count` scores less their maximum, zeros up to `stride`; returns their sum. */
static float softmax(float *score, long count, long stride)
{
    for (long i = count; i < stride; i++)
        score[i] = -INFINITY;
    vf high = load(score);
    for (long i = VL; i < stride; i += VL) {
        const vf x = load(score + i);
        high = select_((vi)(x > high), x, high);
    }
    float best = high[0];
    for (int i = 1; i < VL; i++)
        best = high[i] > best ? high[i] : best;
    vf sum = {0};
    for (long i = 0; i < stride; i += VL) {
        vf x = load(score + i) - best;
        x = exponential(select_((vi)(x < -100.0f), splat(-100.0f), x));
        store(score + i, x);
        sum += x;
    }
    return sum_of(sum);
}

/* Two tiles at a time against `n` queries, and the odd one. */
#define SCORE_PAIRS(n)                                                                                                 \
    for (long i = 0; i < tiles; i += 2) {                                                                              \
        if (i + 2 <= tiles)                                                                                            \
            NAME(scores)(query, dim, tile + i, out + i * VL, stride, n, 2);                                            \
        else                                                                                                           \
            NAME(scores)(query, dim, tile + i, out + i * VL, stride, n, 1);                                            \
    }

#define F32(x) (x)
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(f) JOIN(f, PAIR)

#define PAIR f32_f32
#define ACT float
#define ACT_GET F32
#define ACT_PUT F32
#define KV float
#define KV_PUT F32
#define KV_LOAD load
#include "paged.h"
#undef PAIR
#undef KV
#undef KV_PUT
#undef KV_LOAD

#define PAIR f32_bf16
#define KV uint16_t
#define KV_PUT bf16_put
#define KV_LOAD bf16_load
#include "paged.h"
#undef PAIR
#undef ACT
#undef ACT_GET
#undef ACT_PUT

#define PAIR bf16_bf16
#define ACT uint16_t
#define ACT_GET bf16_get
#define ACT_PUT bf16_put
#include "paged.h"

#ifdef HEADWAY_AMX
#include "attend_amx.h"
#endif

/* How one pair of formats is attended to. */
struct kernel {
    void (*write)(const struct batch *, long first, long last); /* keys and values of these tokens */
    void (*attend)(const struct batch *, const struct item *, float *scratch);
    size_t (*room)(const struct batch *, const struct item *); /* floats of scratch that an item needs */
    long queries; /* most per head of one item */
    long span_bytes; /* per element of a head: what is asked for before the first head reads it */
};

/* On a line of the cache. */
static float *scratch_of_thread(size_t floats)
{
    static __thread float *buffer;
    static __thread size_t room;
    if (room < floats) {
        free(buffer);
        room = (floats + 15) / 16 * 16;
        buffer = aligned_alloc(64, room * sizeof(float));
        room = buffer ? room : 0;
    }
    return buffer;
}

/* How many KV heads of a row of `tokens` tokens go into one item: all of them for a single token, as far as scores
 * and pages fit a cache and every thread gets work; one at a time for a chunk, whose queries reuse a head's pages. */
static long heads_together(const struct batch *b, long tokens, long context, const struct kernel *k)
{
    const long group = b->heads / b->kv_heads;
    if (tokens > 1 || group > k->queries)
        return 1;
    long heads = SCORE_ROOM / (group * (context + VL));
    if (heads * k->span_bytes * b->head_dim > SPAN_ROOM)
        heads = SPAN_ROOM / (k->span_bytes * b->head_dim);
    const long spread = b->rows * b->kv_heads / (4 * b->threads);
    if (b->threads > 1 && heads > spread)
        heads = spread;
    return heads < 1 ? 1 : heads > b->kv_heads ? b->kv_heads : heads;
}

/* Work items in order of rows; returns their number, or -1 when memory ran out. */
static long plan_items(const struct batch *b, const struct kernel *k, struct item **items)
{
    const long group = b->heads / b->kv_heads, queries = k->queries;
    long room = 0;
    for (long row = 0; row < b->rows; row++)
        room += ((b->starts[row + 1] - b->starts[row]) * group / queries + 1) * b->kv_heads;
    *items = malloc((room ? room : 1) * sizeof(struct item));
    if (!*items)
        return -1;
    struct item *next = *items;
    for (long row = 0; row < b->rows; row++) {
        const long all = b->starts[row + 1] - b->starts[row], tokens = b->last_only ? 1 : all;
        const long heads = heads_together(b, tokens, b->contexts[row], k);
        for (long head = 0; head < b->kv_heads; head += heads)
            for (long q = (all - tokens) * group; q < all * group; q += queries)
                *next++ = (struct item){row, head, b->kv_heads - head < heads ? b->kv_heads - head : heads, q,
                                        all * group - q < queries ? all * group - q : queries, NULL, NULL};
    }
    const long count = next - *items, threads = b->threads;
    for (long i = 0; i < count; i++) {
        (*items)[i].before = i >= threads ? *items + i - threads : NULL;
        (*items)[i].after = i + threads < count ? *items + i + threads : NULL;
    }
    return count;
}

static size_t room_in_vectors(const struct batch *b, const struct item *item)
{
    return item->heads * item->count * (2 * b->head_dim + b->contexts[item->row] + VL);
}

/* 0 when done, 1 when memory ran out. */
static int run(const struct batch *b, const struct kernel *k)
{
    struct item *items;
    const long count = plan_items(b, k, &items), chunk = 32;
    int failed = 0;
    size_t floats = 0;
    if (count < 0)
        return 1;
    for (long i = 0; i < count; i++) {
        const size_t needed = k->room(b, items + i);
        floats = needed > floats ? needed : floats;
    }
#pragma omp parallel num_threads(b->threads) if (b->threads > 1) reduction(| : failed)
    {
        float *scratch = scratch_of_thread(floats);
        failed = scratch == NULL;
#pragma omp for schedule(static)
        for (long t = 0; t < b->tokens; t += chunk)
            k->write(b, t, t + chunk < b->tokens ? t + chunk : b->tokens);
#pragma omp for schedule(dynamic, 1)
        for (long i = 0; i < count; i++)
            if (scratch)
                k->attend(b, items + i, scratch);
    }
    free(items);
    return failed;
}

#define ATTEND(pair)                                                                                                   \
    int attend_##pair(const struct batch *b)                                                                           \
    {                                                                                                                  \
        return run(b, &(struct kernel){write_tokens_##pair, attend_item_##pair, room_in_vectors, 16, 0});              \
    }
ATTEND(f32_f32)
ATTEND(f32_bf16)
ATTEND(bf16_bf16)

#ifdef HEADWAY_AMX
int attend_amx(const struct batch *b)
{
    return run(b, &(struct kernel){write_tokens_amx, attend_item_amx, room_amx, 2 * TILE_ROWS, SPAN * 4});
}
#endif

int lanes(void) { return VL; }

/* Whether `attend_amx` exists, and this process may call it. */
int amx(void) { return amx_allowed(); }
