/* The micro-kernels: a few rows times one panel, summed in registers. */

#ifndef ELMOFIRE_PRODUCT_H
#define ELMOFIRE_PRODUCT_H

#include "kernels.h"
#include "vectors.h"

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* Rows to multiply: float32 as they are; integers q that stand for scale * q + offset. */
typedef struct {
    const void *numbers;
    int64_t stride; /* in numbers */
    const float *scale;
    const float *offset; /* int8 alone */
} operand;

/* What an int8 kernel's row holds. Without VNNI, x86 adds two products in 16 bits, so that only 0..127 are safe
   (2 * 127 * 127 < 2^15): half the resolution, for twice the speed of widening all weights to 16 bits. */
#if defined(__AVX512VNNI__)
#define INT8_GROUP 4
#define INT8_LEVELS 255
typedef uint8_t small_number;
#elif defined(__AVX2__)
#define INT8_GROUP 4
#define INT8_LEVELS 127
typedef uint8_t small_number;
#else
#define INT8_GROUP 2
#define INT8_LEVELS 255
typedef int16_t small_number;
#endif

/* Numbers that are summed before the sums are added up: float32 for the sake of rounding, the others so that 32 bits hold them
   (512 * 2047^2 and 32768 * 255 * 127 are less than 2^31). */
#define FLOAT32_CHUNK 256
#define INT16_CHUNK 512
#define INT8_CHUNK 32768

INLINE int64_t padded(int64_t size, int64_t whole) { return (size + whole - 1) / whole * whole; }

INLINE ints add_pairs(ints sum, ints pair, ints weights) /* of int16 */
{
#if defined(__AVX512VNNI__)
    /* As an instruction of its own: compilers surround the intrinsic with copies. */
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(pair), "v"(weights));
    return sum;
#elif LANES == 16
    return sum + (ints)_mm512_madd_epi16((__m512i)pair, (__m512i)weights);
#elif LANES == 8
    return sum + (ints)_mm256_madd_epi16((__m256i)pair, (__m256i)weights);
#elif defined(__SSE2__)
    return sum + (ints)_mm_madd_epi16((__m128i)pair, (__m128i)weights);
#else
    typedef uint32_t bits __attribute__((vector_size(4 * LANES)));
    ints low = (ints)((bits)pair << 16) >> 16, high = pair >> 16;
    return sum + low * ((ints)((bits)weights << 16) >> 16) + high * (weights >> 16);
#endif
}

#if INT8_GROUP == 4
INLINE ints add_group(ints sum, ints numbers, ints weights) /* uint8 times int8 */
{
#if defined(__AVX512VNNI__)
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(numbers), "v"(weights));
    return sum;
#elif LANES == 16
    __m512i pairs = _mm512_maddubs_epi16((__m512i)numbers, (__m512i)weights);
    return sum + (ints)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#else
    __m256i pairs = _mm256_maddubs_epi16((__m256i)numbers, (__m256i)weights);
    return sum + (ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
}
INLINE ints load_int8(const int8_t *from) { return load_ints(from); }
#else
INLINE ints add_group(ints sum, ints numbers, ints weights) { return add_pairs(sum, numbers, weights); }
INLINE ints load_int8(const int8_t *from) /* widened: products of 8 bits would not fit in 16 */
{
    typedef int8_t bytes __attribute__((vector_size(2 * LANES), aligned(1), may_alias));
    typedef int16_t shorts __attribute__((vector_size(4 * LANES)));
    return (ints)__builtin_convertvector(*(const bytes *)from, shorts);
}
#endif

INLINE ints load_int16(const int16_t *from) { return load_ints(from); }

INLINE int32_t load_word(const void *from)
{
    int32_t word;
    __builtin_memcpy(&word, from, sizeof word);
    return word;
}

INLINE void product_float32(const int rows, const float *x, int64_t stride, const float *w, int64_t depth, float *tile)
{
    floats sum[ROWS][4];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = splat(0.0f);
    for (int64_t k = 0; k < depth; k++, w += PANEL) {
        floats w0 = load(w), w1 = load(w + LANES), w2 = load(w + 2 * LANES), w3 = load(w + 3 * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            floats v = splat(x[r * stride + k]);
            sum[r][0] += w0 * v;
            sum[r][1] += w1 * v;
            sum[r][2] += w2 * v;
            sum[r][3] += w3 * v;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++, tile += PANEL)
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++)
            store(tile + g * LANES, load(tile + g * LANES) + sum[r][g]);
}

/* The integer kernels differ in nothing but how a group of numbers is loaded and multiplied. */
#define INTEGER_PRODUCT(NAME, NUMBER, WEIGHT, GROUP, LOAD, ADD)                                                        \
    INLINE void NAME(const int rows, const NUMBER *x, int64_t stride, const WEIGHT *w, int64_t depth, const float *row_scale, \
                     const float *scale, float *tile)                                                                  \
    {                                                                                                                  \
        ints sum[ROWS][4];                                                                                             \
        _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++)                                                         \
            sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = splat_int(0);                                              \
        for (int64_t k = 0; k < depth; k += GROUP, w += PANEL * GROUP) {                                               \
            ints w0 = LOAD(w), w1 = LOAD(w + LANES * GROUP);                                                           \
            ints w2 = LOAD(w + 2 * LANES * GROUP), w3 = LOAD(w + 3 * LANES * GROUP);                                   \
            _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++)                                                     \
            {                                                                                                          \
                ints v = splat_int(load_word(x + r * stride + k));                                                     \
                sum[r][0] = ADD(sum[r][0], v, w0);                                                                     \
                sum[r][1] = ADD(sum[r][1], v, w1);                                                                     \
                sum[r][2] = ADD(sum[r][2], v, w2);                                                                     \
                sum[r][3] = ADD(sum[r][3], v, w3);                                                                     \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++)                                                         \
            _Pragma("GCC unroll 4") for (int g = 0; g < 4; g++)                                                        \
        {                                                                                                              \
            float *at = tile + r * PANEL + g * LANES;                                                                  \
            floats factor = load(scale + g * LANES) * splat(row_scale[r]);                                             \
            store(at, load(at) + __builtin_convertvector(sum[r][g], floats) * factor);                                 \
        }                                                                                                              \
    }

INTEGER_PRODUCT(product_int16, int16_t, int16_t, 2, load_int16, add_pairs)
INTEGER_PRODUCT(product_int8, small_number, int8_t, INT8_GROUP, load_int8, add_group)

/* tile (rows, PANEL) += rows first .. of x times numbers from .. to of a panel. `from` is a multiple of the kind's chunk. */
INLINE void add_product(const elmofire_matrix *m, int64_t panel, const operand *x, int64_t first, int rows, int64_t from,
                        int64_t to, float *tile)
{
#define FOR_ROWS(CALL)                                                                                                 \
    switch (rows) {                                                                                                    \
    case 1: { enum { R = 1 }; CALL; } break;                                                                           \
    case 2: { enum { R = 2 }; CALL; } break;                                                                           \
    case 3: { enum { R = 3 }; CALL; } break;                                                                           \
    case 4: { enum { R = MIN(4, ROWS) }; CALL; } break;                                                                \
    case 5: { enum { R = MIN(5, ROWS) }; CALL; } break;                                                                \
    case 6: { enum { R = MIN(6, ROWS) }; CALL; } break;                                                                \
    }
    if (m->kind == FLOAT32) {
        const float *w = (const float *)m->packed + panel * m->depth * PANEL;
        const float *numbers = (const float *)x->numbers + first * x->stride;
        for (int64_t k = from; k < to; k += FLOAT32_CHUNK)
            FOR_ROWS(product_float32(R, numbers + k, x->stride, w + k * PANEL, MIN(FLOAT32_CHUNK, to - k), tile))
    } else if (m->kind == INT16) {
        const int16_t *w = (const int16_t *)m->packed + panel * padded(m->depth, 2) * PANEL;
        const float *scale = m->scale + panel * PANEL;
        const int16_t *numbers = (const int16_t *)x->numbers + first * x->stride;
        for (int64_t k = from; k < to; k += INT16_CHUNK)
            FOR_ROWS(product_int16(R, numbers + k, x->stride, w + k * PANEL, MIN(INT16_CHUNK, to - k), x->scale + first,
                                   scale, tile))
    } else {
        const int8_t *w = (const int8_t *)m->packed + panel * padded(m->depth, INT8_GROUP) * PANEL;
        const float *scale = m->scale + panel * PANEL;
        const small_number *numbers = (const small_number *)x->numbers + first * x->stride;
        for (int64_t k = from; k < to; k += INT8_CHUNK)
            FOR_ROWS(product_int8(R, numbers + k, x->stride, w + k * PANEL, MIN(INT8_CHUNK, to - k), x->scale + first, scale,
                                  tile))
    }
#undef FOR_ROWS
}

/* Where sums begin: the bias, and for int8 what the row's offset contributes. */
INLINE void start_tile(const elmofire_matrix *m, int64_t panel, const operand *x, int64_t row, float *tile)
{
    for (int g = 0; g < PANEL; g += LANES) {
        floats start = m->bias ? load(m->bias + panel * PANEL + g) : splat(0.0f);
        if (m->kind == INT8)
            start += load(m->sums + panel * PANEL + g) * splat(x->offset[row]);
        store(tile + g, start);
    }
}

/* Rows cut evenly into groups of at most ROWS: 7 are 4 + 3, not 6 + 1. */
INLINE int rows_in_group(int64_t rows, int64_t first)
{
    int64_t left = rows - first, groups = (left + ROWS - 1) / ROWS;
    return (int)((left + groups - 1) / groups);
}

/* out = x m + bias, a panel at a time; see elmofire_multiply. */
void multiply(const elmofire_matrix *m, const operand *x, int64_t rows, float *out, int64_t row_stride, int64_t panel_stride,
              float limit);

/* Make what a kernel of this kind multiplies of float32 rows. `into` has room for operand_bytes. */
int64_t operand_bytes(int64_t kind, int64_t rows, int64_t depth);
operand make_operand(int64_t kind, int64_t rows, int64_t depth, const float *x, int64_t stride, void *into);

#endif
