/* Rows times a packed matrix: the input gates, the encoder's products, the projections. */

#include "kernels.h"
#include "product.h"

#include <string.h>

/* A panel is read from memory once for all rows, so many numbers at a time as stay in a core's own cache: 256 KB. */
static int64_t slab(int64_t kind) { return 262144 / PANEL / (kind == FLOAT32 ? 4 : kind == INT16 ? 2 : 1) / 512 * 512; }

void multiply(const elmofire_matrix *m, const operand *x, int64_t rows, float *out, int64_t row_stride, int64_t panel_stride,
              float limit)
{
    float tile[ROWS * PANEL] __attribute__((aligned(64)));
    int64_t panels = (m->columns + PANEL - 1) / PANEL, step = m->kind == INT8 ? m->depth : slab(m->kind);
    for (int64_t panel = 0; panel < panels; panel++) {
        int64_t wide = MIN(PANEL, m->columns - panel * PANEL);
        for (int64_t from = 0; from < m->depth; from += step) {
            int64_t to = MIN(from + step, m->depth);
            for (int64_t first = 0, group; first < rows; first += group) {
                group = rows_in_group(rows, first);
                float *at = out + first * row_stride + panel * panel_stride;
                for (int r = 0; r < group; r++)
                    if (from)
                        memcpy(tile + r * PANEL, at + r * row_stride, wide * sizeof(float));
                    else
                        start_tile(m, panel, x, first + r, tile + r * PANEL);
                add_product(m, panel, x, first, (int)group, from, to, tile);
                for (int r = 0; r < group; r++) {
                    if (to == m->depth)
                        for (int g = 0; g < PANEL; g += LANES)
                            store(tile + r * PANEL + g, clip(load(tile + r * PANEL + g), splat(limit)));
                    memcpy(at + r * row_stride, tile + r * PANEL, wide * sizeof(float));
                }
            }
        }
    }
}

int64_t elmofire_multiply_scratch(const elmofire_product *p)
{
    return operand_bytes(p->matrix->kind, p->rows, p->matrix->depth);
}

void elmofire_multiply(const elmofire_product *p)
{
    operand x = make_operand(p->matrix->kind, p->rows, p->matrix->depth, p->x, p->x_stride, p->scratch);
    multiply(p->matrix, &x, p->rows, p->out, p->row_stride, p->panel_stride, p->clip);
}
