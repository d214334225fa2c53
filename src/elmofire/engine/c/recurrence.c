/* Steps of an LSTM layer with projection. A panel of the recurrent weights has the four gates of LANES cells, so that a tile
   of gates becomes cells at once and is never stored. */

#include "kernels.h"
#include "product.h"

#include <math.h>
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

/* What the inputs contribute to the gates: computed before and stored panel after panel, or made here. */
typedef struct {
    float *gates;      /* null: made here, from `rows` */
    int64_t first;     /* the row that they begin with */
    int64_t gate_rows; /* in each panel */
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
                    int64_t place = inputs->which ? inputs->which[row] : row - inputs->first;
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

static int64_t cell_bytes(const elmofire_layer *layer, int64_t rows)
{
    return padded(rows * cell_stride(layer) * sizeof(float), 64);
}

static int64_t rows_bytes(const elmofire_matrix *m, int64_t rows)
{
    return m ? padded(operand_bytes(m->kind, rows, m->depth), 64) : 0;
}

static int64_t widest_step(const elmofire_steps *s) { return s->starts[1] - s->starts[0]; }

/* How many rows' gates are stored at a time. */
static int64_t gate_rows(const elmofire_steps *s)
{
    int64_t rows = s->starts[s->steps] - s->starts[0], most = MAX(s->stored, widest_step(s));
    return s->which ? s->distinct : s->stored ? MIN(rows, most) : 0;
}

static int64_t gate_bytes(const elmofire_steps *s)
{
    return gate_rows(s) * padded(s->layer->cells, LANES) * 4 * (int64_t)sizeof(float);
}

int64_t elmofire_run_scratch(const elmofire_steps *s)
{
    int64_t rows = widest_step(s);
    return gate_bytes(s) + cell_bytes(s->layer, rows) + rows_bytes(s->layer->input, MAX(rows, gate_rows(s)))
        + rows_bytes(s->layer->recurrent, rows) + rows_bytes(s->layer->projection, rows);
}

/* The gates of `rows` inputs, of row `first` on. */
static void store_gates(const elmofire_steps *s, int64_t first, int64_t rows, input_source *source, void *scratch)
{
    const elmofire_matrix *input = s->layer->input;
    operand x = make_operand(input->kind, rows, input->depth, s->inputs + first * input->depth, input->depth, scratch);
    source->first = first;
    source->gate_rows = rows;
    multiply(input, &x, rows, source->gates, PANEL, rows * PANEL, INFINITY);
}

void elmofire_run(const elmofire_steps *s)
{
    const elmofire_layer *layer = s->layer;
    const elmofire_matrix *input = layer->input, *recurrent = layer->recurrent, *projection = layer->projection;
    int64_t most = widest_step(s), stride = cell_stride(layer), width = layer->width, ready = 0;
    char *scratch = (char *)s->scratch + gate_bytes(s), *for_inputs = scratch + cell_bytes(layer, most);
    char *for_state = for_inputs + rows_bytes(input, MAX(most, gate_rows(s)));
    char *for_cells = for_state + rows_bytes(recurrent, most);
    float *cell_outputs = (float *)scratch;
    input_source source = {gate_rows(s) ? s->scratch : 0, 0, 0, s->which, {0, 0, 0, 0}};
    if (s->which)
        store_gates(s, 0, s->distinct, &source, for_inputs);
    for (int64_t t = 0; t < s->steps; t++) {
        int64_t first = s->starts[t] - s->starts[0], rows = s->starts[t + 1] - s->starts[t];
        if (!source.gates)
            source.rows = make_operand(input->kind, rows, input->depth, s->inputs + first * input->depth, input->depth, for_inputs);
        else if (!s->which && t == ready) {
            do
                ready++;
            while (ready < s->steps && s->starts[ready + 1] - s->starts[t] <= s->stored);
            store_gates(s, first, s->starts[ready] - s->starts[t], &source, for_inputs);
        }
        operand state = make_operand(recurrent->kind, rows, width, s->h, width, for_state);
        advance_cells(layer, &state, rows, first, &source, s->c, s->c_stride, cell_outputs, stride);
        if (projection) {
            operand cells = make_operand(projection->kind, rows, layer->cells, cell_outputs, stride, for_cells);
            multiply(projection, &cells, rows, s->h, width, PANEL, layer->projection_clip);
        } else
            for (int64_t r = 0; r < rows; r++)
                memcpy(s->h + r * width, cell_outputs + r * stride, width * sizeof(float));
        memcpy(s->out + first * width, s->h, rows * width * sizeof(float));
    }
}
