/* What the library is, and how float32 matrices and rows become what the micro-kernels multiply. */

#include "kernels.h"
#include "product.h"

#include <math.h>

int elmofire_abi(void) { return ELMOFIRE_ABI; }
const char *elmofire_source_hash(void) { return ELMOFIRE_SOURCE_HASH; }
const char *elmofire_isa(void) { return ELMOFIRE_ISA; }
int elmofire_lanes(void) { return LANES; }
int elmofire_int8_group(void) { return INT8_GROUP; }

#define INT16_MOST 2047 /* 12 bits */
#define INT8_MOST 127
#define NEGLIGIBLE 1e-30f /* a row or column of nothing larger is zeros: its scale could not be inverted */

/* One column of a packed matrix: element k is at column[k / group * step + k % group]. */
#define PACK_INTEGERS(TYPE, MOST, GROUP)                                                                               \
    {                                                                                                                  \
        TYPE *column = (TYPE *)packed + panel * padded(depth, GROUP) * PANEL + place * GROUP;                          \
        float most = 0, factor, unit;                                                                                  \
        int64_t sum = 0;                                                                                               \
        for (int64_t k = 0; row && k < depth; k++)                                                                     \
            most = fabsf(row[k]) > most ? fabsf(row[k]) : most;                                                        \
        unit = most > NEGLIGIBLE ? most / MOST : 0;                                                                    \
        factor = most > NEGLIGIBLE ? MOST / most : 0;                                                                  \
        for (int64_t k = 0; k < padded(depth, GROUP); k++) {                                                           \
            TYPE number = row && k < depth ? (TYPE)lrintf(row[k] * factor) : 0;                                        \
            column[k / GROUP * GROUP * PANEL + k % GROUP] = number;                                                    \
            sum += number;                                                                                             \
        }                                                                                                              \
        scale[panel * PANEL + place] = unit;                                                                           \
        sums[panel * PANEL + place] = (float)sum * unit;                                                               \
    }

void elmofire_pack(int64_t kind, int64_t parts, int64_t size, int64_t depth, const float *source, void *packed,
                   float *scale, float *sums)
{
    int64_t each = PANEL / parts; /* columns of a part in a panel */
    for (int64_t panel = 0; panel < (size + each - 1) / each; panel++)
        for (int64_t place = 0; place < PANEL; place++) {
            int64_t part = place / each, inside = panel * each + place % each;
            const float *row = inside < size ? source + (part * size + inside) * depth : 0;
            if (kind == INT16)
                PACK_INTEGERS(int16_t, INT16_MOST, 2)
            else if (kind == INT8)
                PACK_INTEGERS(int8_t, INT8_MOST, INT8_GROUP)
            else {
                float *column = (float *)packed + panel * depth * PANEL + place;
                for (int64_t k = 0; k < depth; k++)
                    column[k * PANEL] = row ? row[k] : 0;
            }
        }
}

static int64_t operand_stride(int64_t depth) { return padded(depth, 32); }

int64_t operand_bytes(int64_t kind, int64_t rows, int64_t depth)
{
    int64_t size = kind == FLOAT32 ? 0 : kind == INT16 ? sizeof(int16_t) : sizeof(small_number);
    return size ? 2 * padded(rows, 16) * sizeof(float) + rows * operand_stride(depth) * size : 0;
}

static void make_int16(int64_t depth, const float *x, int16_t *numbers, float *scale)
{
    floats most = splat(0.0f);
    int64_t k = 0;
    float top = 0;
    for (; k + LANES <= depth; k += LANES)
        most = larger(most, larger(load(x + k), -load(x + k)));
    for (int lane = 0; lane < LANES; lane++)
        top = most[lane] > top ? most[lane] : top;
    for (; k < depth; k++)
        top = fabsf(x[k]) > top ? fabsf(x[k]) : top;
    typedef int16_t shorts __attribute__((vector_size(2 * LANES)));
    float factor = top > NEGLIGIBLE ? INT16_MOST / top : 0;
    for (k = 0; k + LANES <= depth; k += LANES) {
        shorts narrow = __builtin_convertvector(nearest(load(x + k) * splat(factor)), shorts);
        __builtin_memcpy(numbers + k, &narrow, sizeof narrow);
    }
    for (; k < depth; k++)
        numbers[k] = (int16_t)lrintf(x[k] * factor);
    for (; k < padded(depth, 2); k++)
        numbers[k] = 0;
    *scale = top > NEGLIGIBLE ? top / INT16_MOST : 0;
}

/* 0..INT8_LEVELS between the row's smallest number and its largest. */
static void make_int8(int64_t depth, const float *x, small_number *numbers, float *scale, float *offset)
{
    floats lowest = splat(x[0]), highest = lowest;
    float low = x[0], high = x[0];
    int64_t k = 0;
    for (; k + LANES <= depth; k += LANES) {
        lowest = smaller(lowest, load(x + k));
        highest = larger(highest, load(x + k));
    }
    for (int lane = 0; lane < LANES; lane++) {
        low = lowest[lane] < low ? lowest[lane] : low;
        high = highest[lane] > high ? highest[lane] : high;
    }
    for (; k < depth; k++) {
        low = x[k] < low ? x[k] : low;
        high = x[k] > high ? x[k] : high;
    }
    typedef small_number narrow_vector __attribute__((vector_size(sizeof(small_number) * LANES)));
    float range = high - low, factor = range > NEGLIGIBLE ? INT8_LEVELS / range : 0;
    for (k = 0; k + LANES <= depth; k += LANES) {
        ints wide = nearest((load(x + k) - splat(low)) * splat(factor));
        narrow_vector narrow = __builtin_convertvector(wide, narrow_vector);
        __builtin_memcpy(numbers + k, &narrow, sizeof narrow);
    }
    for (; k < depth; k++)
        numbers[k] = (small_number)lrintf((x[k] - low) * factor);
    for (; k < padded(depth, INT8_GROUP); k++)
        numbers[k] = 0;
    *scale = range > NEGLIGIBLE ? range / INT8_LEVELS : 0;
    *offset = low;
}

operand make_operand(int64_t kind, int64_t rows, int64_t depth, const float *x, int64_t stride, void *into)
{
    if (kind == FLOAT32)
        return (operand){x, stride, 0, 0};
    float *scale = into, *offset = scale + padded(rows, 16);
    void *numbers = offset + padded(rows, 16);
    int64_t wide = operand_stride(depth);
    for (int64_t r = 0; r < rows; r++)
        if (kind == INT16)
            make_int16(depth, x + r * stride, (int16_t *)numbers + r * wide, scale + r);
        else
            make_int8(depth, x + r * stride, (small_number *)numbers + r * wide, scale + r, offset + r);
    return (operand){numbers, wide, scale, offset};
}
