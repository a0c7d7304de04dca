/* Paged attention and KV write for one pair of number formats.
 *
 * Included once per pair by paged.c, which defines NAME(f), ACT (activations) and KV (pages) with their loads and
 * stores. Every row is computed in the same order of operations whatever shares its batch, so a result depends on
 * the row alone, bit for bit.
 *
 * One page of one layer holds, per KV head, keys in tiles of VL positions with the positions innermost, then values:
 *
 *   keys    [kv_heads][block_size / VL][head_dim][VL]    a vector load yields one dimension of VL positions
 *   values  [kv_heads][block_size][head_dim]
 */

/* Rotate keys, and write keys and values of tokens [first, last) into their slots. */
static void NAME(write_tokens)(const struct batch *b, long first, long last)
{
    const long dim = b->head_dim, half = dim / 2, page = b->block_size;
    for (long t = first; t < last; t++) {
        const ACT *row = (const ACT *)b->qkv + t * (b->heads + 2 * b->kv_heads) * dim;
        const float *cos = b->cos + t * half, *sin = b->sin + t * half;
        const long block = b->slots[t] / page, place = b->slots[t] % page;
        for (long h = 0; h < b->kv_heads; h++) {
            const ACT *key = row + (b->heads + h) * dim, *value = row + (b->heads + b->kv_heads + h) * dim;
            const long base = (block * b->kv_heads + h) * page * dim;
            KV *tile = (KV *)b->keys + base + place / VL * dim * VL + place % VL;
            KV *out = (KV *)b->values + base + place * dim;
            for (long d = 0; d < half; d++) {
                const float x = ACT_GET(key[d]), y = ACT_GET(key[d + half]);
                tile[d * VL] = KV_PUT(x * cos[d] - y * sin[d]);
                tile[(d + half) * VL] = KV_PUT(y * cos[d] + x * sin[d]);
            }
            for (long d = 0; d < dim; d++)
                out[d] = KV_PUT(ACT_GET(value[d]));
        }
    }
}

/* Scores of `rows` queries against `tiles` key tiles: out[r][i * VL + lane]. */
static inline __attribute__((always_inline)) void NAME(scores)(
    const float *query, long dim, const KV *const *tile, float *out, long stride, const int rows, const int tiles)
{
    vf sum[4][4];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int i = 0; i < tiles; i++)
            sum[r][i] = (vf){0};
    for (long d = 0; d < dim; d++) {
        vf key[4];
        UNROLL for (int i = 0; i < tiles; i++)
            key[i] = KV_LOAD(tile[i] + d * VL);
        UNROLL for (int r = 0; r < rows; r++) {
            const vf q = splat(query[r * dim + d]);
            UNROLL for (int i = 0; i < tiles; i++)
                sum[r][i] += q * key[i];
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int i = 0; i < tiles; i++)
            store(out + r * stride + i * VL, sum[r][i]);
}

/* Add weights[r] x values of `count` positions to out[r], over `vectors` vectors of the head. */
static inline __attribute__((always_inline)) void NAME(weigh)(
    const float *weights, long stride, const KV *values, long dim, long count, float *out, const int rows,
    const int vectors)
{
    vf sum[4][4];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int i = 0; i < vectors; i++)
            sum[r][i] = load(out + r * dim + i * VL);
    for (long t = 0; t < count; t++) {
        vf value[4];
        UNROLL for (int i = 0; i < vectors; i++)
            value[i] = KV_LOAD(values + t * dim + i * VL);
        UNROLL for (int r = 0; r < rows; r++) {
            const vf w = splat(weights[r * stride + t]);
            UNROLL for (int i = 0; i < vectors; i++)
                sum[r][i] += w * value[i];
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int i = 0; i < vectors; i++)
            store(out + r * dim + i * VL, sum[r][i]);
}

static void NAME(weigh_head)(
    const float *weights, long stride, const KV *values, long dim, long count, float *out, long rows)
{
    long d = 0;
    for (; d + 4 * VL <= dim; d += 4 * VL) {
        long r = 0;
        for (; MANY_REGISTERS && r + 4 <= rows; r += 4)
            NAME(weigh)(weights + r * stride, stride, values + d, dim, count, out + r * dim + d, 4, 4);
        for (; r + 2 <= rows; r += 2)
            NAME(weigh)(weights + r * stride, stride, values + d, dim, count, out + r * dim + d, 2, 4);
        if (r < rows)
            NAME(weigh)(weights + r * stride, stride, values + d, dim, count, out + r * dim + d, 1, 4);
    }
    /* Narrow heads: more rows at a time, so that enough sums are under way to hide the latency of each. */
    for (; d + 2 * VL <= dim; d += 2 * VL) {
        long r = 0;
        for (; r + 4 <= rows; r += 4)
            NAME(weigh)(weights + r * stride, stride, values + d, dim, count, out + r * dim + d, 4, 2);
        for (; r < rows; r++)
            NAME(weigh)(weights + r * stride, stride, values + d, dim, count, out + r * dim + d, 1, 2);
    }
    for (; d < dim; d += VL)
        for (long r = 0; r < rows; r++)
            NAME(weigh)(weights + r * stride, stride, values + d, dim, count, out + r * dim + d, 1, 1);
}

/* Scores of all `rows` queries against up to four key tiles. */
static inline void NAME(score_tiles)(
    const float *query, long dim, const KV *const *tile, long tiles, float *out, long stride, long rows)
{
    for (; rows >= 4; rows -= 4, query += 4 * dim, out += 4 * stride) {
        if (MANY_REGISTERS && tiles == 4)
            NAME(scores)(query, dim, tile, out, stride, 4, 4);
        else
            SCORE_PAIRS(4)
    }
    if (rows == 3)
        SCORE_PAIRS(3)
    else if (rows == 2)
        SCORE_PAIRS(2)
    else if (rows == 1 && tiles == 4)
        NAME(scores)(query, dim, tile, out, stride, 1, 4);
    else if (rows == 1)
        SCORE_PAIRS(1)
}

/* The query of one (token, head), rotated and scaled, in fp32. */
static void NAME(load_query)(const struct batch *b, long token, long head, float *out)
{
    const long dim = b->head_dim, half = dim / 2;
    const ACT *query = (const ACT *)b->qkv + (token * (b->heads + 2 * b->kv_heads) + head) * dim;
    const float *cos = b->cos + token * half, *sin = b->sin + token * half;
    for (long d = 0; d < half; d++) {
        const float x = ACT_GET(query[d]), y = ACT_GET(query[d + half]);
        out[d] = (x * cos[d] - y * sin[d]) * b->scale;
        out[d + half] = (y * cos[d] + x * sin[d]) * b->scale;
    }
}

/* Attention of the queries of one item, head by head inside a page so that pages stream through the cache in one go;
 * `scratch` has room for what `item_floats` says. */
static void NAME(attend_item)(const struct batch *b, const struct item *item, float *scratch)
{
    const long dim = b->head_dim, page = b->block_size, group = b->heads / b->kv_heads, per_page = page / VL;
    const long start = b->starts[item->row], tokens = b->starts[item->row + 1] - start, count = item->count;
    const long before = b->contexts[item->row] - tokens;
    const int *table = b->tables + item->row * b->table_width;
    const int streams = tokens == 1 || b->last_only; /* the items of a chunk find in the cache what the first brought */
    /* Query q of a head is query head q % group of token q / group. */
    const long reach = before + (item->first + count - 1) / group + 1;
    const long tiles = (reach + VL - 1) / VL, stride = tiles * VL, head_size = page * dim;
    const long page_size = b->kv_heads * head_size;
    const KV *keys = (const KV *)b->keys + item->head * head_size;
    const KV *values = (const KV *)b->values + item->head * head_size;
    float *query = scratch, *sum = query + item->heads * count * dim, *score = sum + item->heads * count * dim;

    for (long h = 0; h < item->heads; h++)
        for (long q = 0; q < count; q++)
            NAME(load_query)(b, start + (item->first + q) / group, (item->head + h) * group + (item->first + q) % group,
                             query + (h * count + q) * dim);
    for (long i = 0; i < tiles; i += 4) {
        const KV *tile[4], *ahead[4];
        const long width = tiles - i < 4 ? tiles - i : 4;
        for (long j = 0; j < width; j++)
            tile[j] = keys + table[(i + j) / per_page] * page_size + (i + j) % per_page * dim * VL;
        const long next = !streams ? 0 : tiles - i - 4 < 4 ? tiles - i - 4 : 4;
        for (long j = 0; j < next; j++)
            ahead[j] = keys + table[(i + 4 + j) / per_page] * page_size + (i + 4 + j) % per_page * dim * VL;
        for (long h = 0; h < item->heads; h++) {
            for (long j = 0; j < next; j++)
                prefetch(ahead[j] + h * head_size, dim * VL * sizeof(KV));
            NAME(score_tiles)(query + h * count * dim, dim, tile, width, score + h * count * stride + i * VL, stride, count);
            for (long j = 0; j < width; j++)
                tile[j] += head_size;
        }
    }
    memset(sum, 0, item->heads * count * dim * sizeof(float));
    float total[item->heads * count];
    for (long h = 0; h < item->heads; h++)
        for (long q = 0; q < count; q++)
            total[h * count + q] =
                softmax(score + (h * count + q) * stride, before + (item->first + q) / group + 1, stride);
    for (long t = 0; t < reach; t += page) {
        const long width = reach - t < page ? reach - t : page;
        const KV *block = values + table[t / page] * page_size;
        const KV *ahead = streams && t + page < reach ? values + table[t / page + 1] * page_size : NULL;
        for (long h = 0; h < item->heads; h++) {
            if (ahead)
                prefetch(ahead + h * head_size, head_size * sizeof(KV));
            NAME(weigh_head)(score + h * count * stride + t, stride, block + h * head_size, dim, width,
                             sum + h * count * dim, count);
        }
    }
    for (long h = 0; h < item->heads; h++)
        for (long q = 0; q < count; q++) {
            const long token = start + (item->first + q) / group;
            const long head = (item->head + h) * group + (item->first + q) % group;
            ACT *out = (ACT *)b->out + (token * b->heads + head) * dim;
            for (long d = 0; d < dim; d++)
                out[d] = ACT_PUT(sum[(h * count + q) * dim + d] / total[h * count + q]);
        }
}
