/* Vectors of floats by GCC / Clang extensions, and the exponential: -march decides what they become. */

#ifndef HEADWAY_VECTORS_H
#define HEADWAY_VECTORS_H

#include <stdint.h>
#include <string.h>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#ifdef __AVX512F__
#define VL 16
#else
#define VL 8
#endif

typedef float vf __attribute__((vector_size(VL * 4), aligned(4)));
typedef int32_t vi __attribute__((vector_size(VL * 4), aligned(4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4), aligned(4)));
typedef uint16_t vh __attribute__((vector_size(VL * 2), aligned(2)));

#if VL == 16
static inline vf splat(float x) { return (vf){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
#else
static inline vf splat(float x) { return (vf){x, x, x, x, x, x, x, x}; }
#endif
static inline vf load(const float *p) { return *(const vf *)p; }
static inline void store(float *p, vf x) { *(vf *)p = x; }
static inline vf select_(vi mask, vf yes, vf no) { return (vf)(((vi)yes & mask) | ((vi)no & ~mask)); }

static inline vf bf16_load(const uint16_t *p)
{
    const vu wide = __builtin_convertvector(*(const vh *)p, vu) << 16;
    return (vf)wide;
}

static inline void bf16_store(uint16_t *p, vf x) /* round to nearest even */
{
#if defined(__AVX512BF16__) && VL == 16
    *(vh *)p = (vh)_mm512_cvtneps_pbh((__m512)x);
#else
    const vu wide = (vu)x;
    *(vh *)p = __builtin_convertvector((wide + 0x7fff + (wide >> 16 & 1)) >> 16, vh);
#endif
}

static inline float sum_of(vf x)
{
    float total = 0;
    for (int i = 0; i < VL; i++)
        total += x[i];
    return total;
}

/* e^x for -100 <= x <= 0, exactly 0 below -87; relative error about 1e-7 (Cephes' expf). */
static inline vf exponential(vf x)
{
    const vf magic = splat(12582912.0f); /* 1.5 * 2^23: adding and subtracting it rounds to an integer */
    const vf n = (x * 1.44269504088896341f + magic) - magic;
    const vf r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vf p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const vi power = (__builtin_convertvector(n, vi) + 127) << 23;
    return (vf)((vi)(p * (vf)power) & (vi)(x > -87.0f));
}

/* x / (1 + e^-x), by e = e^-|x|, which keeps the exponential in its range: 1 / (1 + e) or e / (1 + e) times x. */
static inline vf silu(vf x)
{
    const vf zero = {0};
    const vi positive = (vi)(x > zero);
    const vf low = select_(positive, -x, x);
    const vf e = exponential(select_((vi)(low < -100.0f), splat(-100.0f), low));
    return x * select_(positive, splat(1.0f), e) / (e + 1.0f);
}

#if defined(__AVX512BF16__) && VL == 16
/* 2^x, 0 for -infinity: a power of two times the cubic of least relative error for 2^f on [0, 1). It is wrong by at most
 * 7.5e-5, a twenty-fifth of what rounding to bf16 may do. */
static inline vf power_of_two(vf x)
{
    const __m512 f = _mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    const vf p = ((0.07802452f * (vf)f + 0.22606716f) * (vf)f + 0.69583356f) * (vf)f + 0.9999252f;
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)x);
}

/* silu of what becomes bf16: by that power, and a reciprocal of 14 bits. */
static inline vf silu_to_bf16(vf x)
{
    return x * (vf)_mm512_rcp14_ps((__m512)(power_of_two(x * -1.44269504088896341f) + 1.0f));
}
#endif

#endif
