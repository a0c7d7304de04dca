/* Paged attention of bf16 activations and bf16 pages on Intel AMX; its pages, and what an item works with. What
 * is done with them is in attend_amx.h.
 *
 * Both products are sums of tile products: 16 queries by 32 dimensions by 16 positions for the scores, 16 queries by
 * `step` positions by 16 dimensions for the values. Each element of a tile is computed by itself, in one order, so a
 * row is the same bit for bit whatever shares its tile, its batch or its chunk. Softmax walks over the context in spans
 * of SPAN positions, always from its beginning, and keeps a running maximum (Milakov and Gimelshein, 2018) in powers of
 * two: correcting earlier sums is exact.
 *
 * One page of one layer holds, per KV head, what a tile register takes, 64 bytes a row:
 *
 *   keys    [kv_heads][block_size / 16][head_dim / 2][16][2]             pairs of dimensions of 16 positions
 *   values  [kv_heads][block_size / step][head_dim / 16][step / 2][16][2]  pairs of positions, 16 dimensions at a time
 *
 * `step` is 32 where the block size allows, else 16. Every head_dim is a multiple of 32, every block size of 16. */

#define SPAN 256 /* positions whose scores are held at a time */
#define SCORE_STRIDE (SPAN + 16) /* floats; the gap keeps rows of a tile out of one cache set */
#define WEIGHT_STRIDE (SPAN + 32) /* bf16 */
#define EVEN 0x55555555u /* of 32 bf16 */

/* A place in the pages of an item and of those after it. */
struct amx_ahead {
    const struct item *item; /* NULL at the end */
    long page; /* of the item */
    const char *keys, *values; /* of all heads of the item in that page */
    long at, run; /* bytes into them, and how many they are */
};

/* What one item works with. Rows are queries, padded to 16 or 32. */
struct amx_work {
    const struct batch *b;
    const struct item *item;
    struct amx_ahead *ahead; /* where the next lines to be asked for lie */
    const int *table;
    long dim, group, start, before, reach, step, rows;
    uint16_t *query; /* [heads][rows][dim] */
    float *sum; /* [heads][rows][dim] */
    float *best, *total; /* [heads][rows] */
    uint16_t *last; /* [step][dim] as in a page: the last values, zeros where none were written */
    float *awake; /* room for a tile that nobody reads */
    float *score; /* [rows][SCORE_STRIDE], of one head */
    uint16_t *weight; /* [rows][WEIGHT_STRIDE] */
    float *factor; /* [rows]: what sums over earlier spans are to be multiplied by */
};

/* Where the keys and values of one span lie, for the first head of an item. */
struct amx_span {
    long first, width, tiles, steps;
    long written; /* positions of the last step that hold values */
    const uint16_t *keys[SPAN / 16], *values[SPAN / 16];
};

static inline long amx_step(const struct batch *b) { return b->block_size % 32 ? 16 : 32; }
static inline long amx_rows(const struct item *item) { return item->count > TILE_ROWS ? 2 * TILE_ROWS : TILE_ROWS; }

static size_t room_amx(const struct batch *b, const struct item *item)
{
    const size_t rows = amx_rows(item), all = item->heads * rows, dim = b->head_dim;
    const size_t scores = rows * (SCORE_STRIDE + WEIGHT_STRIDE / 2 + 1);
    return TILE_ROWS * 16 + all * dim * 3 / 2 + 2 * all + scores + amx_step(b) * dim / 2;
}

static float *take(float **scratch, size_t floats)
{
    float *taken = *scratch;
    *scratch += floats;
    return taken;
}

static struct amx_work amx_work(
    const struct batch *b, const struct item *item, struct amx_ahead *ahead, float *scratch)
{
    const long rows = amx_rows(item), all = item->heads * rows, dim = b->head_dim, group = b->heads / b->kv_heads;
    const long start = b->starts[item->row], before = b->contexts[item->row] - (b->starts[item->row + 1] - start);
    struct amx_work w = {.b = b, .item = item, .ahead = ahead, .dim = dim, .group = group, .start = start};
    w.before = before;
    w.table = b->tables + item->row * b->table_width;
    w.reach = before + (item->first + item->count - 1) / group + 1;
    w.step = amx_step(b);
    w.rows = rows;
    w.query = (uint16_t *)take(&scratch, all * dim / 2);
    w.sum = take(&scratch, all * dim);
    w.best = take(&scratch, all);
    w.total = take(&scratch, all);
    w.last = (uint16_t *)take(&scratch, w.step * dim / 2);
    w.awake = take(&scratch, TILE_ROWS * 16);
    w.score = take(&scratch, rows * SCORE_STRIDE);
    w.weight = (uint16_t *)take(&scratch, rows * WEIGHT_STRIDE / 2);
    w.factor = take(&scratch, rows);
    return w;
}

/* out = in with its two halves rotated against each other. */
static inline void rotate_amx(const uint16_t *in, const float *cos, const float *sin, long half, uint16_t *out)
{
    for (long d = 0; d < half; d += 16) {
        const __m512 x = (__m512)bf16_load(in + d), y = (__m512)bf16_load(in + half + d);
        const __m512 c = _mm512_loadu_ps(cos + d), s = _mm512_loadu_ps(sin + d);
        const __m512 low = _mm512_fmsub_ps(x, c, _mm512_mul_ps(y, s));
        const __m512 high = _mm512_fmadd_ps(y, c, _mm512_mul_ps(x, s));
        _mm256_storeu_si256((__m256i *)(out + d), (__m256i)_mm512_cvtneps_pbh(low));
        _mm256_storeu_si256((__m256i *)(out + half + d), (__m256i)_mm512_cvtneps_pbh(high));
    }
}

/* Rotate keys, and write keys and values of tokens [first, last) into their slots. */
static void write_tokens_amx(const struct batch *b, long first, long last)
{
    const long dim = b->head_dim, page = b->block_size, step = amx_step(b);
    uint32_t turned[dim / 2];
    for (long t = first; t < last; t++) {
        const uint16_t *row = (const uint16_t *)b->qkv + t * (b->heads + 2 * b->kv_heads) * dim;
        const long block = b->slots[t] / page, place = b->slots[t] % page, odd = place & 1;
        for (long h = 0; h < b->kv_heads; h++) {
            const uint16_t *key = row + (b->heads + h) * dim, *value = key + b->kv_heads * dim;
            const long base = (block * b->kv_heads + h) * page * dim;
            uint32_t *tile = (uint32_t *)((uint16_t *)b->keys + base + place / 16 * 16 * dim) + place % 16;
            rotate_amx(key, b->cos + t * dim / 2, b->sin + t * dim / 2, dim / 2, (uint16_t *)turned);
            for (long d = 0; d < dim / 2; d++)
                tile[d * 16] = turned[d];
            uint16_t *out = (uint16_t *)b->values + base + place / step * step * dim + place % step / 2 * 32;
            for (long d = 0; d < dim; d += 16) {
                const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(value + d)));
                /* Masked: another thread may be writing the other position of the pair. */
                _mm512_mask_storeu_epi16(out + d * step, EVEN << odd, _mm512_slli_epi32(wide, odd * 16));
            }
        }
    }
}

/* Shape tiles 0 to 3 as sums, 4 (and 5, for two tiles of queries) as left and the others as right factors of products
 * over `pairs` pairs. */
static void shape_amx(const struct amx_work *w, long pairs)
{
    const long rows = w->item->count < TILE_ROWS ? w->item->count : TILE_ROWS;
    struct tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        const int left = i == 4 || (i == 5 && w->rows > TILE_ROWS);
        shapes.rows[i] = i < 4 || left ? rows : pairs;
        shapes.row_bytes[i] = left ? 4 * pairs : TILE_BYTES;
    }
    load_tile_shapes(&shapes);
}

static void find_span(const struct amx_work *w, long first, struct amx_span *s)
{
    const long page = w->b->block_size, head_size = page * w->dim, page_size = w->b->kv_heads * head_size;
    const long left = w->reach - first, filled = w->b->contexts[w->item->row] - first;
    const long shift = w->item->head * head_size;
    s->first = first;
    s->width = left < SPAN ? left : SPAN;
    s->tiles = (s->width + 15) / 16;
    s->steps = (s->width + w->step - 1) / w->step;
    s->written = filled - (s->steps - 1) * w->step;
    long block = first / page, place = first % page, i = 0;
    for (; i < s->tiles; i++) {
        const long at = w->table[block] * page_size + shift + place * w->dim;
        s->keys[i] = (const uint16_t *)w->b->keys + at;
        if (place % w->step == 0)
            s->values[i * 16 / w->step] = (const uint16_t *)w->b->values + at;
        place += 16;
        if (place == page)
            place = 0, block++;
    }
    for (; i % 4; i++) /* whole groups of tiles; the scores of these are never looked at */
        s->keys[i] = s->keys[i - 1];
}

/* Rotated queries of an item, and sums of nothing. */
static void begin_amx(const struct amx_work *w)
{
    const struct batch *b = w->b;
    const struct item *item = w->item;
    const long dim = w->dim, half = dim / 2, all = item->heads * w->rows;
    memset(w->sum, 0, all * dim * sizeof *w->sum);
    memset(w->query, 0, all * dim * sizeof *w->query);
    for (long i = 0; i < all; i++)
        w->best[i] = -INFINITY, w->total[i] = 0;
    for (long h = 0; h < item->heads; h++)
        for (long q = 0; q < item->count; q++) {
            const long token = w->start + (item->first + q) / w->group;
            const long head = (item->head + h) * w->group + (item->first + q) % w->group;
            const uint16_t *in = (const uint16_t *)b->qkv + (token * (b->heads + 2 * b->kv_heads) + head) * dim;
            rotate_amx(in, b->cos + token * half, b->sin + token * half, half, w->query + (h * w->rows + q) * dim);
        }
}

static void end_amx(const struct amx_work *w)
{
    const struct item *item = w->item;
    for (long h = 0; h < item->heads; h++)
        for (long q = 0; q < item->count; q++) {
            const long token = w->start + (item->first + q) / w->group, row = h * w->rows + q;
            const long head = (item->head + h) * w->group + (item->first + q) % w->group;
            const __m512 part = _mm512_set1_ps(1 / w->total[row]);
            uint16_t *out = (uint16_t *)w->b->out + (token * w->b->heads + head) * w->dim;
            for (long d = 0; d < w->dim; d += 16) {
                const __m512 mean = _mm512_mul_ps(_mm512_load_ps(w->sum + row * w->dim + d), part);
                _mm256_storeu_si256((__m256i *)(out + d), (__m256i)_mm512_cvtneps_pbh(mean));
            }
        }
}
