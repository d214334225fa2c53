/* Vectors as wide as the instruction set has them, by the compiler's own vector types. */

#ifndef ELMOFIRE_VECTORS_H
#define ELMOFIRE_VECTORS_H

#include <stdint.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#define ROWS 6 /* 24 sums, 4 weights and a number of the row, in 32 registers */
#elif defined(__AVX2__)
#define LANES 8
#define ROWS 3 /* 12 sums in 16 registers */
#elif defined(__aarch64__)
#define LANES 4
#define ROWS 6
#else
#define LANES 4
#define ROWS 3
#endif

#define PANEL (4 * LANES)
#define INLINE static inline __attribute__((always_inline))

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef float unaligned_floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t unaligned_ints __attribute__((vector_size(4 * LANES), aligned(1), may_alias));

INLINE floats load(const float *from) { return *(const unaligned_floats *)from; }
INLINE void store(float *to, floats value) { *(unaligned_floats *)to = value; }
INLINE ints load_ints(const void *from) { return *(const unaligned_ints *)from; }

INLINE floats splat(float value)
{
#if LANES == 16
    return (floats)_mm512_set1_ps(value);
#elif LANES == 8
    return (floats)_mm256_set1_ps(value);
#else
    return (floats){value, value, value, value};
#endif
}

INLINE ints splat_int(int32_t value)
{
#if LANES == 16
    return (ints)_mm512_set1_epi32(value);
#elif LANES == 8
    return (ints)_mm256_set1_epi32(value);
#else
    return (ints){value, value, value, value};
#endif
}

/* Of two numbers of which the second may be NaN, and then stays so. */
INLINE floats smaller(floats a, floats b)
{
#if LANES == 16
    return (floats)_mm512_min_ps((__m512)a, (__m512)b);
#elif LANES == 8
    return (floats)_mm256_min_ps((__m256)a, (__m256)b);
#else
    ints first = a < b;
    return (floats)((first & (ints)a) | (~first & (ints)b));
#endif
}

INLINE floats larger(floats a, floats b)
{
#if LANES == 16
    return (floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif LANES == 8
    return (floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
    ints first = a > b;
    return (floats)((first & (ints)a) | (~first & (ints)b));
#endif
}

INLINE floats clip(floats x, floats limit) { return larger(-limit, smaller(limit, x)); }

/* To the nearest integer; for |x| < 2^22. */
INLINE ints nearest(floats x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: the sum's last bits are the integer */
    return (ints)(x + splat(magic)) - splat_int(0x4B400000);
}

/* tanh(x) = p / q, to 3e-7 relative: a quotient of polynomials in x^2, of degree 4 both, fitted on [0, 8] for the least
   relative error (6e-9), so that it is as good near 0 as elsewhere. Quotients that belong together share one division. */
typedef struct {
    floats p, q;
} fraction;

INLINE fraction tanh_fraction(floats x)
{
    x = clip(x, splat(8.0f));
    floats s = x * x;
    floats p = s * splat(1.5230368e-08f) + splat(2.1894626e-05f);
    p = p * s + splat(3.571596e-03f);
    p = p * s + splat(1.3444497e-01f);
    p = p * s + splat(1.0f);
    floats q = s * splat(8.5224264e-07f) + splat(3.4112885e-04f);
    q = q * s + splat(2.6164435e-02f);
    q = q * s + splat(4.6777824e-01f);
    q = q * s + splat(1.0f);
    return (fraction){p * x, q};
}

/* sigmoid(x) = p / q, by way of tanh(x / 2). */
INLINE fraction sigmoid_fraction(floats x)
{
    fraction t = tanh_fraction(x * splat(0.5f));
    return (fraction){splat(0.5f) * (t.q + t.p), t.q};
}

#endif
