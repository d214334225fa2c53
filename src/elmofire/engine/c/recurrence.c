/* Steps of an LSTM layer with projection. A panel of the recurrent weights has the four gates of LANES cells, so that a tile
   of gates becomes cells at once and is never stored. */

#include "kernels.h"
#include "product.h"

#include <string.h>

/* The gates input, forget, candidate, output of LANES cells -> their new memory, and what the projection reads. */
INLINE void update_cells(const float *tile, const float *gates, float *c, float *cell_outputs, floats limit)
{
    fraction i = sigmoid_fraction(load(tile) + load(gates));
    fraction f = sigmoid_fraction(load(tile + LANES) + load(gates + LANES));
    fraction g = tanh_fraction(load(tile + 2 * LANES) + load(gates + 2 * LANES));
    fraction o = sigmoid_fraction(load(tile + 3 * LANES) + load(gates + 3 * LANES));
    floats both = i.q * g.q;
    floats memory = clip((i.p * g.p * f.q + f.p * load(c) * both) / (both * f.q), limit);
    fraction t = tanh_fraction(memory);
    store(c, memory);
    store(cell_outputs, o.p * t.p / (o.q * t.q));
}

/* What the inputs contribute to the gates: stored, or made here. */
typedef struct {
    const float *gates;
    int64_t gate_rows;
    const int64_t *which;
    operand rows;
} input_source;

static void advance_cells(const elmofire_layer *layer, const operand *h, int64_t rows, int64_t first_row,
                          const input_source *inputs, float *c, int64_t c_stride, float *cell_outputs, int64_t stride)
{
    const floats limit = splat(layer->cell_clip);
    float tile[ROWS * PANEL] __attribute__((aligned(64))), made[ROWS * PANEL] __attribute__((aligned(64)));
    for (int64_t panel = 0; panel * LANES < layer->cells; panel++)
        for (int64_t first = 0, group; first < rows; first += group) {
            const float *gates[ROWS];
            group = rows_in_group(rows, first);
            for (int r = 0; r < group; r++) {
                int64_t row = first_row + first + r;
                start_tile(layer->recurrent, panel, h, first + r, tile + r * PANEL);
                if (inputs->gates) {
                    int64_t place = inputs->which ? inputs->which[row] : row;
                    gates[r] = inputs->gates + (panel * inputs->gate_rows + place) * PANEL;
                    for (int line = 0; line < PANEL; line += 16)
                        __builtin_prefetch(gates[r] + line); /* needed after the product */
                } else {
                    gates[r] = made + r * PANEL;
                    start_tile(layer->input, panel, &inputs->rows, first + r, made + r * PANEL);
                }
            }
            if (!inputs->gates)
                add_product(layer->input, panel, &inputs->rows, first, (int)group, 0, layer->input->depth, made);
            add_product(layer->recurrent, panel, h, first, (int)group, 0, layer->recurrent->depth, tile);
            for (int r = 0; r < group; r++)
                update_cells(tile + r * PANEL, gates[r], c + (first + r) * c_stride + panel * LANES,
                             cell_outputs + (first + r) * stride + panel * LANES, limit);
        }
}

/* Whole vectors, and not a power of two, in which rows would push each other out of the cache. */
static int64_t cell_stride(const elmofire_layer *layer) { return padded(layer->cells, 16) + 16; }

static int64_t cell_bytes(const elmofire_layer *layer, int64_t rows) { return rows * cell_stride(layer) * sizeof(float); }

static int64_t rows_bytes(const elmofire_matrix *m, int64_t rows)
{
    return m ? padded(operand_bytes(m->kind, rows, m->depth), 64) : 0;
}

int64_t elmofire_run_scratch(const elmofire_layer *layer, int64_t rows)
{
    return cell_bytes(layer, rows) + rows_bytes(layer->input, rows) + rows_bytes(layer->recurrent, rows)
        + rows_bytes(layer->projection, rows);
}

void elmofire_run(const elmofire_layer *layer, int64_t steps, const int64_t *starts, const float *inputs, const float *gates,
                  int64_t gate_rows, const int64_t *which, float *h, float *c, int64_t c_stride, float *out, void *scratch)
{
    const elmofire_matrix *input = layer->input, *recurrent = layer->recurrent, *projection = layer->projection;
    int64_t most = starts[1] - starts[0], stride = cell_stride(layer), width = layer->width;
    float *cell_outputs = scratch;
    char *for_inputs = (char *)scratch + cell_bytes(layer, most), *for_state = for_inputs + rows_bytes(input, most);
    char *for_cells = for_state + rows_bytes(recurrent, most);
    for (int64_t t = 0; t < steps; t++) {
        int64_t first = starts[t] - starts[0], rows = starts[t + 1] - starts[t];
        input_source source = {gates, gate_rows, which, {0, 0, 0, 0}};
        if (!gates)
            source.rows = make_operand(input->kind, rows, input->depth, inputs + first * input->depth, input->depth, for_inputs);
        operand state = make_operand(recurrent->kind, rows, width, h, width, for_state);
        advance_cells(layer, &state, rows, first, &source, c, c_stride, cell_outputs, stride);
        if (projection) {
            operand cells = make_operand(projection->kind, rows, layer->cells, cell_outputs, stride, for_cells);
            multiply(projection, &cells, rows, h, width, PANEL, layer->projection_clip);
        } else
            for (int64_t r = 0; r < rows; r++)
                memcpy(h + r * width, cell_outputs + r * stride, width * sizeof(float));
        memcpy(out + first * width, h, rows * width * sizeof(float));
    }
}
