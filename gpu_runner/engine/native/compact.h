/* Weights of bf16 in 12 bits each, exactly: sign and fraction as they are, and for the exponent its place among the 16
 * that the weight has most often, for it has few. Those with another exponent are listed one by one.
 *
 * Two pairs of inputs of a panel are a group: 64 bytes of sign and fraction for each pair, then 64 of codes, those of
 * the first pair in the lower halves. The bytes of a pair lie so that interleaving the lower and the upper halves of
 * each 16 gives the rows of its two tiles. */

#ifndef HEADWAY_COMPACT_H
#define HEADWAY_COMPACT_H

#include "amx.h"
#include "vectors.h"

#define CODES 16
#define GROUP_BYTES 192

/* A weight whose exponent has no code. */
struct patch {
    uint32_t at; /* among those of its panel, in the order of its tiles */
    uint32_t bits;
};

/* What the codes of one weight mean. */
struct code {
    uint8_t upper[CODES], lower[CODES]; /* of each exponent: its upper seven bits, and the last one as 128 or 0 */
    const uint32_t *first; /* [panels * steps + 1]: of the patches of each step */
    const struct patch *patches;
};

#ifdef HEADWAY_AMX
/* 64 weights: a pair of inputs for 32 outputs, a row of two tiles. */
static inline __attribute__((always_inline)) void expand_pair(
    const struct code *code, __m512i bytes, __m512i codes, void *left, void *right)
{
    const int a_or_b_and_c = 0xf8;
    const __m512i uppers = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)code->upper));
    const __m512i lowers = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)code->lower));
    const __m512i sign = _mm512_set1_epi8((char)0x80), fraction = _mm512_set1_epi8(0x7f);
    const __m512i upper = _mm512_ternarylogic_epi64(_mm512_shuffle_epi8(uppers, codes), bytes, sign, a_or_b_and_c);
    const __m512i lower = _mm512_ternarylogic_epi64(_mm512_shuffle_epi8(lowers, codes), bytes, fraction, a_or_b_and_c);
    _mm512_store_si512(left, _mm512_unpacklo_epi8(lower, upper));
    _mm512_store_si512(right, _mm512_unpackhi_epi8(lower, upper));
}

/* 128 weights: two rows of the tile at `left` and of that at `right`. */
static inline __attribute__((always_inline)) void expand_group(
    const struct code *code, const char *from, char *left, char *right)
{
    const __m512i codes = _mm512_load_si512(from + 128), low = _mm512_set1_epi8(0x0f);
    expand_pair(code, _mm512_load_si512(from), _mm512_and_si512(codes, low), left, right);
    expand_pair(code, _mm512_load_si512(from + 64), _mm512_and_si512(_mm512_srli_epi16(codes, 4), low),
                left + TILE_BYTES, right + TILE_BYTES);
}

/* Put those without a code among steps [step, step + steps) of a panel, which lie at `to`; `before`: the steps of all
 * panels before it. */
static inline void put_patches(const struct code *code, long before, long step, long steps, char *to)
{
    const uint32_t *first = code->first + before + step;
    for (const struct patch *patch = code->patches + first[0]; patch < code->patches + first[steps]; patch++)
        ((uint16_t *)to)[patch->at - step * (TILE_BYTES * TILE_ROWS)] = patch->bits;
}
#endif

#endif
