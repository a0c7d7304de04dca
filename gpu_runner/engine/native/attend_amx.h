/* Paged attention on Intel AMX: tile products, softmax, and the order in which an item does them. Included by paged.c. */

#include "paged_amx.h"

/* Ask for what a decode reads soon after the `piece`-th 16 positions of a phase: keys of head 0, values of head 0, keys
 * of head 1 and so on. */
static inline void fetch_ahead(const struct amx_work *w, const struct amx_span *s, long phase, long piece)
{
    piece += FETCH_AHEAD;
    if (piece >= s->tiles) {
        piece -= s->tiles;
        phase++;
    }
    if (phase >= 2 * w->item->heads || piece >= s->tiles)
        return;
    const long within = piece * 16 % w->step * w->dim, head = phase / 2 * w->b->block_size * w->dim;
    prefetch((phase & 1 ? s->values[piece * 16 / w->step] + within : s->keys[piece]) + head, 32 * w->dim);
}

/* Scores of one tile of queries, four tiles of keys at a time. */
static void score_narrow(const struct amx_work *w, const struct amx_span *s, long head)
{
    const long dim = w->dim, offset = head * w->b->block_size * dim;
    const uint16_t *query = w->query + head * w->rows * dim;
    for (long i = 0; i < s->tiles; i += 4) {
        const uint16_t *const *key = s->keys + i;
        float *out = s->own->score + i * 16;
        for (long j = i; j < i + 4 && j < s->tiles; j++)
            fetch_ahead(w, s, 2 * head, j);
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (long d = 0; d < dim; d += 32) {
            const long at = offset + d * 16;
            _tile_loadd(4, query + d, dim * 2);
            _tile_loadd(5, key[0] + at, TILE_BYTES);
            _tile_dpbf16ps(0, 4, 5);
            _tile_loadd(6, key[1] + at, TILE_BYTES);
            _tile_dpbf16ps(1, 4, 6);
            _tile_loadd(7, key[2] + at, TILE_BYTES);
            _tile_dpbf16ps(2, 4, 7);
            _tile_loadd(5, key[3] + at, TILE_BYTES);
            _tile_dpbf16ps(3, 4, 5);
        }
        _tile_stored(0, out, SCORE_STRIDE * 4);
        _tile_stored(1, out + 16, SCORE_STRIDE * 4);
        _tile_stored(2, out + 32, SCORE_STRIDE * 4);
        _tile_stored(3, out + 48, SCORE_STRIDE * 4);
    }
}

/* Scores of two tiles of queries and two tiles of keys from the `i`-th on. */
static void score_pair(const struct amx_work *w, const struct amx_span *s, long head, long i)
{
    const long dim = w->dim, offset = head * w->b->block_size * dim;
    const uint16_t *query = w->query + head * w->rows * dim;
    float *out = s->own->score + i * 16;
    written_before_tiles();
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

/* 2^x for x <= 0, 0 for -infinity: a power of two times the cubic of least relative error for 2^f on [0, 1). It is
 * wrong by at most 7.5e-5, a twenty-fifth of what rounding to bf16 may do. */
static inline __m512 power_of_two(__m512 x)
{
    const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_set1_ps(0.07802452f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.22606716f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.69583356f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.9999252f));
    return _mm512_scalef_ps(p, x);
}

/* Weights of one query over the first `seen` positions of a span, zeros up to `width`: 2^(slope * score) less the
 * largest so far. Updates that and the total; returns what earlier sums are to be multiplied by. */
static float soften(float *score, long seen, long width, float slope, float *best, float *total, uint16_t *weight)
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
    const float high = ceilf(_mm512_reduce_max_ps(_mm512_max_ps(high0, high1)) * slope);
    float factor = 1;
    if (!(high <= *best)) { /* a NaN goes on to the sums */
        factor = _mm_cvtss_f32(_mm_scalef_ss(_mm_set_ss(1), _mm_set_ss(*best - high)));
        *best = high;
    }
    const __m512 by = _mm512_set1_ps(slope), less = _mm512_set1_ps(*best);
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    __m512 sum = _mm512_setzero_ps(); /* of the weights as they are rounded: their parts in it make exactly one */
    for (long i = 0; i < whole; i += 32) {
        const __m512 x = power_of_two(_mm512_fmsub_ps(_mm512_load_ps(score + i), by, less));
        const __m512 y = power_of_two(_mm512_fmsub_ps(_mm512_load_ps(score + i + 16), by, less));
        const __m512bh rounded = _mm512_cvtne2ps_pbh(y, x);
        sum = _mm512_dpbf16_ps(sum, rounded, ones);
        _mm512_store_si512(weight + i, (__m512i)rounded);
    }
    for (long i = whole; i < width; i += 32)
        _mm512_store_si512(weight + i, _mm512_setzero_si512());
    *total = *total * factor + _mm512_reduce_add_ps(sum);
    return factor;
}

static void soften_row(const struct amx_work *w, const struct amx_span *s, long head, long q)
{
    const float slope = w->b->scale * 1.44269504088896341f; /* to powers of two */
    const long row = head * w->rows + q, seen = w->before + (w->item->first + q) / w->group + 1 - s->first;
    float *score = s->own->score + q * SCORE_STRIDE;
    uint16_t *weight = s->own->weight + q * WEIGHT_STRIDE;
    if (seen > 0)
        s->own->factor[q] = soften(score, seen < SPAN ? seen : SPAN, s->steps * w->step, slope, w->best + row,
                                   w->total + row, weight);
    else { /* a later token of the tile sees this span, this one does not */
        s->own->factor[q] = 1;
        memset(weight, 0, s->steps * w->step * sizeof *weight);
    }
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
        const float factor = s->own->factor[q];
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
        for (long piece = i * step / 16; d == 0 && piece < (i + 1) * step / 16; piece++)
            fetch_ahead(w, s, 2 * head + 1, piece);
        _tile_loadd(4, s->own->weight + i * step, WEIGHT_STRIDE * 2);
        _tile_loadd(5, value, TILE_BYTES);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, value + 16 * step, TILE_BYTES);
        _tile_dpbf16ps(1, 4, 6);
        if (count == 4) {
            _tile_loadd(7, value + 32 * step, TILE_BYTES);
            _tile_dpbf16ps(2, 4, 7);
            _tile_loadd(5, value + 48 * step, TILE_BYTES);
            _tile_dpbf16ps(3, 4, 5);
        }
    }
    _tile_stored(0, sum, dim * 4);
    _tile_stored(1, sum + 16, dim * 4);
    if (count == 4) {
        _tile_stored(2, sum + 32, dim * 4);
        _tile_stored(3, sum + 48, dim * 4);
    }
}

/* Add the values of a stretch of steps from `i` on to the sums of two tiles of queries, 32 dimensions from `d` on. */
static void weigh_stretch(const struct amx_work *w, const struct amx_span *s, long head, long d, long i)
{
    const long dim = w->dim, step = w->step, end = i + STRETCH / step < s->steps ? i + STRETCH / step : s->steps;
    const uint16_t *weight = s->own->weight;
    float *sum = w->sum + head * w->rows * dim + d, *below = sum + 16 * dim;
    written_before_tiles();
    _tile_loadd(0, sum, dim * 4);
    _tile_loadd(1, sum + 16, dim * 4);
    _tile_loadd(2, below, dim * 4);
    _tile_loadd(3, below + 16, dim * 4);
    for (; i < end; i++) {
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

/* One tile of queries: span by span, all heads of a span one after the other, so that its pages stream by once. */
static void attend_narrow(const struct amx_work *w)
{
    struct amx_span span;
    for (long n = 0; n * SPAN < w->reach; n++) {
        find_span(w, n, &span);
        for (long head = 0; head < w->item->heads; head++) {
            long d = 0;
            written_before_tiles();
            if (w->step < 32 || (!n && !head))
                shape_amx(w, 16);
            score_narrow(w, &span, head);
            for (long q = 0; q < w->item->count; q++)
                soften_row(w, &span, head, q);
            before_weighing(w, &span, head);
            written_before_tiles();
            if (w->step < 32)
                shape_amx(w, w->step / 2);
            for (; d + 64 <= w->dim; d += 64)
                weigh_narrow(w, &span, head, d, 4);
            if (d < w->dim)
                weigh_narrow(w, &span, head, d, 2);
        }
    }
}

/* Tile products that can be done while vectors soften scores: scores of the span after, values of the span before.
 * They are done in small units in between, so that the processor has both kinds of work at hand. */
struct amx_units {
    const struct amx_span *after, *before;
    long done, scores, stretches, all;
};

static struct amx_units plan_units(
    const struct amx_work *w, long head, const struct amx_span *after, const struct amx_span *before)
{
    struct amx_units u = {.after = after, .before = before};
    if (after)
        u.scores = (after->tiles + 1) / 2;
    if (before) {
        u.stretches = (before->steps * w->step + STRETCH - 1) / STRETCH;
        before_weighing(w, before, head);
    }
    u.all = u.scores + u.stretches * w->dim / 32;
    return u;
}

/* Do units until `part` of `parts` are done. */
static void do_units(const struct amx_work *w, long head, struct amx_units *u, long part, long parts)
{
    for (; u->done * parts < u->all * part; u->done++) {
        const long i = u->done - u->scores;
        if (w->step < 32 && (i == 0 || u->done == 0))
            shape_amx(w, i < 0 ? 16 : w->step / 2);
        if (i < 0)
            score_pair(w, u->after, head, 2 * u->done);
        else
            weigh_stretch(w, u->before, head, i / u->stretches * 32, i % u->stretches * STRETCH / w->step);
    }
}

/* Two tiles of queries of one head. */
static void attend_wide(const struct amx_work *w, long head)
{
    struct amx_span spans[3], *here = spans;
    const long count = w->item->count, all = (w->reach + SPAN - 1) / SPAN;
    find_span(w, 0, here);
    shape_amx(w, 16);
    struct amx_units units = plan_units(w, head, here, NULL);
    do_units(w, head, &units, 1, 1);
    for (long n = 0; n < all; n++) {
        struct amx_span *after = NULL, *before = n ? spans + (n - 1) % 3 : NULL;
        here = spans + n % 3;
        if (n + 1 < all)
            find_span(w, n + 1, after = spans + (n + 1) % 3);
        units = plan_units(w, head, after, before);
        for (long q = 0; q < count; q++) {
            soften_row(w, here, head, q);
            do_units(w, head, &units, q + 1, count);
        }
    }
    units = plan_units(w, head, NULL, here);
    do_units(w, head, &units, 1, 1);
}

/* Attention of the queries of one item; `scratch` has room for what `room_amx` says, on a line of the cache. */
static void attend_item_amx(const struct batch *b, const struct item *item, float *scratch)
{
    const struct amx_work w = amx_work(b, item, scratch);
    begin_amx(&w);
    if (w.rows == TILE_ROWS)
        attend_narrow(&w);
    else
        for (long head = 0; head < item->heads; head++)
            attend_wide(&w, head);
    _tile_release();
    end_amx(&w);
}
