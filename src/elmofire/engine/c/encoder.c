/* Characters to vectors: convolutions by tables, and highways. */

#include "kernels.h"
#include "product.h"

#include <math.h>
#include <string.h>

INLINE floats quotient(fraction f) { return f.p / f.q; }

void elmofire_spell(const elmofire_words *w)
{
    const float *tables = w->tables, *bias = w->bias;
    float *out = w->out;
    for (int64_t bank = 0; bank < w->banks; bank++) {
        int64_t width = w->widths[bank], count = w->counts[bank], table = w->characters * PANEL;
        /* Panel by panel, so that its tables are in the cache for all words. */
        for (int64_t filter = 0; filter < count; filter += PANEL, tables += width * table)
            for (int64_t word = 0; word < w->words; word++) {
                const int32_t *id = w->ids + word * w->columns;
                int64_t last = MIN((int64_t)w->lengths[word], w->columns - width);
                floats best[4];
                for (int g = 0; g < 4; g++)
                    best[g] = splat(-INFINITY);
                for (int64_t start = 0; start <= last; start++) {
                    floats sum[4] = {{0}, {0}, {0}, {0}};
                    for (int64_t offset = 0; offset < width; offset++) {
                        const float *row = tables + offset * table + id[start + offset] * (int64_t)PANEL;
#pragma GCC unroll 4
                        for (int g = 0; g < 4; g++)
                            sum[g] += load(row + g * LANES);
                    }
#pragma GCC unroll 4
                    for (int g = 0; g < 4; g++)
                        best[g] = larger(best[g], sum[g]);
                }
                float result[PANEL];
                int64_t wide = MIN(PANEL, count - filter);
                memcpy(result, bias + filter, wide * sizeof(float));
                memset(result + wide, 0, (PANEL - wide) * sizeof(float));
#pragma GCC unroll 4
                for (int g = 0; g < 4; g++) {
                    floats z = best[g] + load(result + g * LANES); /* the bias is the same at all positions */
                    store(result + g * LANES, w->use_tanh ? quotient(tanh_fraction(z)) : larger(splat(0.0f), z));
                }
                memcpy(out + word * w->out_stride + filter, result, wide * sizeof(float));
            }
        bias += count;
        out += count;
    }
}

static floats highway(floats gate, floats transform, floats z)
{
    return z + quotient(sigmoid_fraction(gate)) * (larger(splat(0.0f), transform) - z);
}

void elmofire_highway(int64_t rows, int64_t width, const float *gate, const float *transform, float *z)
{
    int64_t size = rows * width, k = 0;
    for (; k + LANES <= size; k += LANES)
        store(z + k, highway(load(gate + k), load(transform + k), load(z + k)));
    if (k < size) {
        float last[3][LANES] = {{0}};
        memcpy(last[0], gate + k, (size - k) * sizeof(float));
        memcpy(last[1], transform + k, (size - k) * sizeof(float));
        memcpy(last[2], z + k, (size - k) * sizeof(float));
        store(last[2], highway(load(last[0]), load(last[1]), load(last[2])));
        memcpy(z + k, last[2], (size - k) * sizeof(float));
    }
}
