/* What becomes of the sums of matmul.c: bias, residual or gate, and the format of the result. */

#ifndef HEADWAY_FINISH_H
#define HEADWAY_FINISH_H

#include "amx.h"
#include "parts.h"
#include "vectors.h"

enum finish { WRITE, ADD, GATE, WIDEN }; /* GATE: silu(panel) * next panel */

struct product {
    const void *values, *weight; /* [rows][inputs]; packed */
    const struct code *code; /* of a weight of bf16 in 12 bits, or NULL */
    const float *bias; /* [outputs] in the order of the panels, or NULL */
    void *out; /* [rows][width]: of the values' format, fp32 for WIDEN */
    int64_t rows, inputs, outputs, width, finish, threads; /* outputs: of all panels; width: those that are real */
};

#ifdef HEADWAY_AMX
#define STREAM_FROM (1 << 20) /* bytes of results, or of the weight that pushes them out, that go past the caches */

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

/* Sums of a panel that are complete and become results while the next panel is multiplied: the tiles' own units do
 * that, and those of vectors would be idle. */
struct pending {
    const float *sums, *gate; /* of the next row, [rows][32]; `gate`: those of the panel before, for GATE */
    long panel, row, left;
};

static inline __attribute__((always_inline)) vf with_bias(const struct product *p, const float *sums, long output)
{
    return load(sums) + (p->bias ? load(p->bias + output) : (vf){0});
}

/* One row of a panel becomes results. */
static inline __attribute__((always_inline)) void finish_row(
    const struct product *p, const struct pending *done, int stream, const int wide)
{
    const long size = wide ? sizeof(float) : sizeof(uint16_t), first = done->panel * PANEL;
    const long at = p->finish == GATE ? done->panel / 2 * PANEL : first;
    vf x = with_bias(p, done->sums, first), y = with_bias(p, done->sums + 16, first + 16);
    if (p->finish == GATE) {
        const vf a = with_bias(p, done->gate, first - PANEL), b = with_bias(p, done->gate + 16, first - PANEL + 16);
        x *= wide ? silu(a) : silu_to_bf16(a);
        y *= wide ? silu(b) : silu_to_bf16(b);
    }
    put((char *)p->out + (done->row * p->width + at) * size, x, y, p->width - at, p->finish, stream, wide);
}

/* Up to `count` rows of what is pending. */
static inline __attribute__((always_inline)) void finish_rows(
    const struct product *p, struct pending *done, long count, int stream, const int wide)
{
    for (; count > 0 && done->left > 0; count--, done->left--, done->row++, done->sums += PANEL, done->gate += PANEL)
        finish_row(p, done, stream, wide);
}

/* Whether results fill whole cache lines, in which they would not stay. */
static int streams(const struct product *p, const int wide)
{
    const long row = p->width * (wide ? sizeof(float) : sizeof(uint16_t));
    const long weight = p->inputs * p->outputs * (wide && p->finish != WIDEN ? sizeof(float) : sizeof(uint16_t));
    const int many = p->rows * row >= STREAM_FROM || weight >= STREAM_FROM;
    return many && p->finish != ADD && row % 64 == 0 && (uintptr_t)p->out % 64 == 0;
}
#endif

#endif
