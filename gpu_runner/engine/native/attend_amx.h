/* Paged attention on Intel AMX: tile products, softmax, and the order in which an item does them. Included by paged.c. */

#include "paged_amx.h"

/* Go to the `page`-th page counted from the first of `a->item`, on into the items after it. */
static void find_ahead(const struct batch *b, struct amx_ahead *a, long page)
{
    const long group = b->heads / b->kv_heads, head_size = b->block_size * b->head_dim;
    for (; a->item; a->item = a->item->after) {
        const struct item *item = a->item;
        const long tokens = b->starts[item->row + 1] - b->starts[item->row];
        const long last = b->contexts[item->row] - tokens + (item->first + item->count - 1) / group;
        const long pages = last / b->block_size + 1;
        if (page < pages)
            break;
        page -= pages;
    }
    if (!a->item)
        return;
    const long block = b->tables[a->item->row * b->table_width + page];
    const long first = (block * b->kv_heads + a->item->head) * head_size;
    a->page = page;
    a->keys = (const char *)((const uint16_t *)b->keys + first);
    a->values = (const char *)((const uint16_t *)b->values + first);
    a->at = 0;
    a->run = a->item->heads * head_size * sizeof(uint16_t);
}

/* Ask for the next `bytes`: as many as a decode has just read, so that requests are spread evenly over its products.
 * They go through a page in ascending order over all heads, though products take a head at a time: memory is fastest
 * where the processor finds long runs to continue by itself. */
static inline __attribute__((always_inline)) void fetch_ahead(const struct amx_work *w, long bytes)
{
    struct amx_ahead *a = w->ahead;
    if (!a->item)
        return;
    prefetch(a->keys + a->at, bytes / 2);
    prefetch(a->values + a->at, bytes / 2);
    a->at += bytes / 2;
    if (a->at >= a->run)
        find_ahead(w->b, a, a->page + 1);
}

/* Scores of one tile of queries, four tiles of keys at a time. */
static void score_narrow(const struct amx_work *w, const struct amx_span *s, long head)
{
    const long dim = w->dim, offset = head * w->b->block_size * dim;
    const uint16_t *query = w->query + head * w->rows * dim;
    for (long i = 0; i < s->tiles; i += 4) {
        const uint16_t *const *key = s->keys + i;
        float *out = w->score + i * 16;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (long d = 0; d < dim; d += 32) {
            const long at = offset + d * 16;
            _tile_loadd(4, query + d, dim * 2);
            _tile_loadd(5, key[0] + at, TILE_BYTES);
            _tile_dpbf16ps(0, 4, 5);
            fetch_ahead(w, TILE_ROWS * TILE_BYTES);
            _tile_loadd(6, key[1] + at, TILE_BYTES);
            _tile_dpbf16ps(1, 4, 6);
            fetch_ahead(w, TILE_ROWS * TILE_BYTES);
            _tile_stored(4, w->awake, TILE_BYTES);
            _tile_loadd(7, key[2] + at, TILE_BYTES);
            _tile_dpbf16ps(2, 4, 7);
            fetch_ahead(w, TILE_ROWS * TILE_BYTES);
            _tile_loadd(5, key[3] + at, TILE_BYTES);
            _tile_dpbf16ps(3, 4, 5);
            fetch_ahead(w, TILE_ROWS * TILE_BYTES);
        }
        _tile_stored(0, out, SCORE_STRIDE * 4);
        _tile_stored(1, out + 16, SCORE_STRIDE * 4);
        _tile_stored(2, out + 32, SCORE_STRIDE * 4);
        _tile_stored(3, out + 48, SCORE_STRIDE * 4);
    }
}

/* Scores of two tiles of queries, two tiles of keys at a time. */
static void score_wide(const struct amx_work *w, const struct amx_span *s, long head)
{
    const long dim = w->dim, offset = head * w->b->block_size * dim;
    const uint16_t *query = w->query + head * w->rows * dim;
    for (long i = 0; i < s->tiles; i += 2) {
        float *out = w->score + i * 16;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (long d = 0; d < dim; d += 32) {
            _tile_loadd(4, query + d, dim * 2);
            _tile_loadd(6, s->keys[i] + offset + d * 16, TILE_BYTES);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, s->keys[i + 1] + offset + d * 16, TILE_BYTES);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, query + 16 * dim + d, dim * 2);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, out, SCORE_STRIDE * 4);
        _tile_stored(1, out + 16, SCORE_STRIDE * 4);
        _tile_stored(2, out + 16 * SCORE_STRIDE, SCORE_STRIDE * 4);
        _tile_stored(3, out + 16 * SCORE_STRIDE + 16, SCORE_STRIDE * 4);
    }
}

/* Lane r of the result: the lanes of row[r] put together by OP, each row's in the same order. */
#define SHUFFLED(kind, op, a, b, low, high) op(_mm512_shuffle_##kind(a, b, low), _mm512_shuffle_##kind(a, b, high))
#define FOLD_ROWS(name, op)                                                                                            \
    static inline __m512 name(const __m512 row[TILE_ROWS])                                                             \
    {                                                                                                                  \
        __m512 part[4];                                                                                                \
        UNROLL for (int i = 0; i < 4; i++)                                                                             \
        {                                                                                                              \
            const __m512 x = SHUFFLED(f32x4, op, row[i], row[i + 4], 0x44, 0xee);                                      \
            const __m512 y = SHUFFLED(f32x4, op, row[i + 8], row[i + 12], 0x44, 0xee);                                 \
            part[i] = SHUFFLED(f32x4, op, x, y, 0x88, 0xdd);                                                           \
        }                                                                                                              \
        const __m512 x = SHUFFLED(ps, op, part[0], part[1], 0x44, 0xee);                                               \
        const __m512 y = SHUFFLED(ps, op, part[2], part[3], 0x44, 0xee);                                               \
        return SHUFFLED(ps, op, x, y, 0x88, 0xdd);                                                                     \
    }
FOLD_ROWS(largest_of_rows, _mm512_max_ps)
FOLD_ROWS(sums_of_rows, _mm512_add_ps)

/* How many positions of a span the `q`-th query sees; none where only later tokens of its tile see it. */
static inline long seen_by(const struct amx_work *w, const struct amx_span *s, long q)
{
    const long seen = w->before + (w->item->first + q) / w->group + 1 - s->first;
    return seen < 0 ? 0 : seen < SPAN ? seen : SPAN;
}

/* The largest of `seen` scores lane by lane; puts -infinity after them, up to a multiple of 32. */
static inline __m512 largest(float *score, long seen)
{
    const long whole = (seen + 31) / 32 * 32;
    const __m512 least = _mm512_set1_ps(-INFINITY);
    for (long i = seen; i < whole; i += 16)
        _mm512_mask_storeu_ps(score + i, whole - i < 16 ? (1u << (whole - i)) - 1 : 0xffff, least);
    __m512 high0 = least, high1 = least;
    for (long i = 0; i < whole; i += 32) {
        high0 = _mm512_max_ps(high0, _mm512_load_ps(score + i));
        high1 = _mm512_max_ps(high1, _mm512_load_ps(score + i + 16));
    }
    return _mm512_max_ps(high0, high1);
}

/* Weights 2^(slope * score - best) of `seen` positions, zeros up to `width`. Returns their sum lane by lane, of the
 * weights as they are rounded: then the parts that they have in it make exactly one. */
static inline __m512 soften(const float *score, long seen, long width, float slope, float best, uint16_t *weight)
{
    const __m512 by = _mm512_set1_ps(slope), less = _mm512_set1_ps(best);
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    __m512 sum = _mm512_setzero_ps();
    long i = 0;
    for (; i < seen; i += 32) {
        const __m512 x = (__m512)power_of_two((vf)_mm512_fmsub_ps(_mm512_load_ps(score + i), by, less));
        const __m512 y = (__m512)power_of_two((vf)_mm512_fmsub_ps(_mm512_load_ps(score + i + 16), by, less));
        const __m512bh rounded = _mm512_cvtne2ps_pbh(y, x);
        sum = _mm512_dpbf16_ps(sum, rounded, ones);
        _mm512_store_si512(weight + i, (__m512i)rounded);
    }
    for (; i < width; i += 32)
        _mm512_store_si512(weight + i, _mm512_setzero_si512());
    return sum;
}

/* Copy the last step of values, zeros in place of positions not written: what lies there may be no number, and no
 * weight makes that zero. */
static void copy_last(const struct amx_work *w, const uint16_t *values, long written)
{
    for (long d = 0; d < w->dim; d += 16)
        for (long pair = 0; pair < w->step / 2; pair++) {
            const long at = d * w->step + pair * 32, left = written - 2 * pair;
            const __mmask32 kept = left > 1 ? 0xffffffffu : left == 1 ? EVEN : 0;
            _mm512_store_si512(w->last + at, _mm512_maskz_loadu_epi16(kept, values + at));
        }
}

/* Make sums and last values ready for adding those of a span. */
static void before_weighing(const struct amx_work *w, const struct amx_span *s, long head)
{
    for (long q = 0; q < w->item->count; q++) {
        float *sum = w->sum + (head * w->rows + q) * w->dim;
        const float factor = w->factor[q];
        for (long d = 0; factor != 1 && d < w->dim; d += 16)
            store(sum + d, load(sum + d) * factor);
    }
    if (s->written < w->step)
        copy_last(w, s->values[s->steps - 1] + head * w->b->block_size * w->dim, s->written);
}

/* Values of the `i`-th step from dimension `d` on. */
static inline const uint16_t *values_of(const struct amx_work *w, const struct amx_span *s, long head, long i, long d)
{
    const int last = i + 1 == s->steps && s->written < w->step;
    return (last ? w->last : s->values[i] + head * w->b->block_size * w->dim) + d * w->step;
}

/* Add the values of one span to the sums of one tile of queries, `count` (2 or 4) tiles of 16 dimensions from `d` on. */
static inline __attribute__((always_inline)) void weigh_narrow(
    const struct amx_work *w, const struct amx_span *s, long head, long d, const int count)
{
    const long dim = w->dim, step = w->step;
    float *sum = w->sum + head * w->rows * dim + d;
    _tile_loadd(0, sum, dim * 4);
    _tile_loadd(1, sum + 16, dim * 4);
    if (count == 4) {
        _tile_loadd(2, sum + 32, dim * 4);
        _tile_loadd(3, sum + 48, dim * 4);
    }
    for (long i = 0; i < s->steps; i++) {
        const uint16_t *value = values_of(w, s, head, i, d);
        if (i % 2 == 1)
            _tile_stored(4, w->awake, TILE_BYTES);
        _tile_loadd(4, w->weight + i * step, WEIGHT_STRIDE * 2);
        _tile_loadd(5, value, TILE_BYTES);
        _tile_dpbf16ps(0, 4, 5);
        fetch_ahead(w, step / 2 * TILE_BYTES);
        _tile_loadd(6, value + 16 * step, TILE_BYTES);
        _tile_dpbf16ps(1, 4, 6);
        fetch_ahead(w, step / 2 * TILE_BYTES);
        if (count == 4) {
            _tile_loadd(7, value + 32 * step, TILE_BYTES);
            _tile_dpbf16ps(2, 4, 7);
            fetch_ahead(w, step / 2 * TILE_BYTES);
            _tile_loadd(5, value + 48 * step, TILE_BYTES);
            _tile_dpbf16ps(3, 4, 5);
            fetch_ahead(w, step / 2 * TILE_BYTES);
        }
    }
    _tile_stored(0, sum, dim * 4);
    _tile_stored(1, sum + 16, dim * 4);
    if (count == 4) {
        _tile_stored(2, sum + 32, dim * 4);
        _tile_stored(3, sum + 48, dim * 4);
    }
}

/* The same for two tiles of queries and two of dimensions. */
static void weigh_wide(const struct amx_work *w, const struct amx_span *s, long head, long d)
{
    const long dim = w->dim, step = w->step;
    const uint16_t *weight = w->weight;
    float *sum = w->sum + head * w->rows * dim + d, *below = sum + 16 * dim;
    _tile_loadd(0, sum, dim * 4);
    _tile_loadd(1, sum + 16, dim * 4);
    _tile_loadd(2, below, dim * 4);
    _tile_loadd(3, below + 16, dim * 4);
    for (long i = 0; i < s->steps; i++) {
        const uint16_t *value = values_of(w, s, head, i, d);
        _tile_loadd(4, weight + i * step, WEIGHT_STRIDE * 2);
        _tile_loadd(6, value, TILE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, value + 16 * step, TILE_BYTES);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, weight + 16 * WEIGHT_STRIDE + i * step, WEIGHT_STRIDE * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sum, dim * 4);
    _tile_stored(1, sum + 16, dim * 4);
    _tile_stored(2, below, dim * 4);
    _tile_stored(3, below + 16, dim * 4);
}

/* Weights of the queries of one span, tile by tile: largest scores of 16 queries, then their weights. */
static void soften_span(const struct amx_work *w, const struct amx_span *s, long head)
{
    const float slope = w->b->scale * 1.44269504088896341f; /* to powers of two */
    const long count = w->item->count, width = s->steps * w->step;
    for (long first = 0; first < count; first += TILE_ROWS) {
        const long end = first + TILE_ROWS < count ? first + TILE_ROWS : count;
        float *best = w->best + head * w->rows + first, *total = w->total + head * w->rows + first;
        __m512 row[TILE_ROWS] = {};
        for (long q = first; q < end; q++)
            row[q - first] = largest(w->score + q * SCORE_STRIDE, seen_by(w, s, q));
        const __m512 old = _mm512_load_ps(best), by = _mm512_set1_ps(slope);
        const __m512 high = _mm512_roundscale_ps(_mm512_mul_ps(largest_of_rows(row), by), _MM_FROUND_TO_POS_INF);
        const __m512 now = _mm512_max_ps(old, high); /* the second where that is no number */
        const __m512 factor = _mm512_scalef_ps(_mm512_set1_ps(1), _mm512_sub_ps(old, now));
        _mm512_store_ps(best, now);
        _mm512_store_ps(w->factor + first, factor);
        for (long q = first; q < end; q++)
            row[q - first] = soften(w->score + q * SCORE_STRIDE, seen_by(w, s, q), width, slope, best[q - first],
                                    w->weight + q * WEIGHT_STRIDE);
        _mm512_store_ps(total, _mm512_fmadd_ps(_mm512_load_ps(total), factor, sums_of_rows(row)));
    }
}

/* Scores, weights and weighted values of one head in one span. */
static void attend_span(const struct amx_work *w, const struct amx_span *s, long head)
{
    const int wide = w->rows > TILE_ROWS;
    long d = 0;
    if (w->step < 32)
        shape_amx(w, 16);
    if (wide)
        score_wide(w, s, head);
    else
        score_narrow(w, s, head);
    soften_span(w, s, head);
    before_weighing(w, s, head);
    written_before_tiles();
    if (w->step < 32)
        shape_amx(w, w->step / 2);
    for (; wide && d < w->dim; d += 32)
        weigh_wide(w, s, head, d);
    for (; d + 64 <= w->dim; d += 64)
        weigh_narrow(w, s, head, d, 4);
    if (d < w->dim)
        weigh_narrow(w, s, head, d, 2);
}

/* Keep as many pages ahead of a decode as a span has, for its first head already needs all of them. Those that no
 * earlier item asked for are asked for at once. */
static void start_ahead(const struct amx_work *w)
{
    const struct item *item = w->item;
    const long pages = SPAN > w->b->block_size ? SPAN / w->b->block_size : 1;
    struct amx_ahead *a = w->ahead;
    if (w->rows > TILE_ROWS)
        return;
    a->item = item;
    find_ahead(w->b, a, 0);
    if (!item->before || amx_rows(item->before) > TILE_ROWS)
        while (a->item == item && a->page < pages)
            fetch_ahead(w, 2 * TILE_ROWS * TILE_BYTES);
    a->item = item;
    find_ahead(w->b, a, pages);
}

/* Attention of the queries of one item; `scratch` has room for what `room_amx` says, on a line of the cache. */
static void attend_item_amx(const struct batch *b, const struct item *item, float *scratch)
{
    struct amx_ahead ahead = {.item = NULL};
    const struct amx_work w = amx_work(b, item, &ahead, scratch);
    start_ahead(&w);
    begin_amx(&w);
    written_before_tiles();
    shape_amx(&w, 16);
    /* All heads of a span one after the other, so that its pages stream by once. */
    for (long first = 0; first < w.reach; first += SPAN) {
        struct amx_span span;
        find_span(&w, first, &span);
        for (long head = 0; head < item->heads; head++)
            attend_span(&w, &span, head);
    }
    _tile_release();
    end_amx(&w);
}
