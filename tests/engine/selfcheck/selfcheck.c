/* The kernels against plain loops in double, on random odd sizes, in one program that any processor or sanitizer can run.

   Every array has exactly the size that kernels.h asks for, results start as NaN, and so does all padding. */

#define _POSIX_C_SOURCE 200112L
#include "kernels.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *KIND[] = {"float32", "int16", "int8"};
static const int MOST[] = {0, 2047, 127}; /* the largest integer of a weight */
static const double ROUNDING = 0x1p-24;

static int64_t lanes, panel_size;
static long compared, wrong;
static uint64_t seed = 88172645463325252u;

static double uniform(void) /* -1 .. 1 */
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (double)(seed >> 11) * 0x1p-52 - 1;
}

static int64_t whole(int64_t least, int64_t most) { return least + (int64_t)((uniform() + 1) / 2 * (double)(most - least + 1)); }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t pieces(int64_t size, int64_t piece) { return (size + piece - 1) / piece; }
static double clipped(double x, double limit) { return fmax(-limit, fmin(limit, x)); }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void *room(int64_t bytes)
{
    void *memory;
    if (posix_memalign(&memory, 64, (size_t)larger(bytes, 1)))
        abort();
    return memory;
}

static float *empty(int64_t size)
{
    float *numbers = room(size * 4);
    for (int64_t k = 0; k < size; k++)
        numbers[k] = NAN;
    return numbers;
}

static float *some(int64_t size, double scale)
{
    float *numbers = empty(size);
    for (int64_t k = 0; k < size; k++)
        numbers[k] = (float)(uniform() * scale);
    return numbers;
}

static void compare(const char *what, int64_t kind, double found, double expected, double bound)
{
    compared++;
    if (!(fabs(found - expected) <= bound) && ++wrong <= 20)
        printf("%s %s: %g where %g was expected, %g off and %g allowed\n", what, KIND[kind], found, expected,
               fabs(found - expected), bound);
}

typedef struct {
    elmofire_matrix matrix;
    float *source, *scale, *sums, *bias;
    void *packed;
} packed_matrix;

/* The source holds (parts * size, depth). As the engine does, a matrix of several parts counts its padding as columns. */
static packed_matrix pack(int64_t kind, int64_t parts, int64_t size, int64_t depth, int with_bias)
{
    packed_matrix m;
    int64_t panels = pieces(size, panel_size / parts), columns = panels * panel_size;
    int64_t group = kind == FLOAT32 ? 1 : kind == INT16 ? 2 : elmofire_int8_group();
    int64_t bytes = kind == FLOAT32 ? 4 : kind == INT16 ? 2 : 1;
    m.source = some(parts * size * depth, 2 / sqrt((double)depth));
    m.packed = room(columns * pieces(depth, group) * group * bytes);
    m.scale = kind == FLOAT32 ? 0 : empty(columns);
    m.sums = kind == FLOAT32 ? 0 : empty(columns);
    m.bias = with_bias ? some(columns, 1) : 0;
    elmofire_pack(kind, parts, size, depth, m.source, m.packed, m.scale, m.sums);
    m.matrix = (elmofire_matrix){kind, depth, parts == 1 ? size : columns, m.packed, m.scale, m.sums, m.bias};
    return m;
}

static void release(packed_matrix *m)
{
    free(m->source);
    free(m->packed);
    free(m->scale);
    free(m->sums);
    free(m->bias);
}

/* How far a product may be from the exact one: what rounding and the integers of both sides can do at most. */
static double product_bound(int64_t kind, int64_t depth, const float *x, const float *w, double bias)
{
    double size = fabs(bias), step_x = 0, step_w = 0, low = x[0], high = x[0], most_x = 0, most_w = 0, all_w = 0, off = 0;
    for (int64_t k = 0; k < depth; k++) {
        size += fabs((double)x[k] * w[k]);
        low = fmin(low, x[k]);
        high = fmax(high, x[k]);
        most_x = fmax(most_x, fabs(x[k]));
        most_w = fmax(most_w, fabs(w[k]));
        all_w += fabs(w[k]);
    }
    if (kind == FLOAT32)
        return ROUNDING * size * (double)(smaller(depth, 256) + depth / 256 + 4);
    step_w = most_w / MOST[kind];
    step_x = kind == INT16 ? most_x / MOST[kind] : (high - low) / 255;
    for (int64_t k = 0; k < depth; k++)
        off += (fabs(x[k]) * step_w + fabs(w[k]) * step_x + step_w * step_x / 2) / 2;
    return 1.001 * off + 64 * ROUNDING * (size + fabs(low) * all_w);
}

static void check_multiply(int64_t kind, int64_t rows, int64_t depth, int64_t columns, int by_panels)
{
    int64_t panels = pieces(columns, panel_size), x_stride = depth + whole(0, 3);
    int64_t row_stride = by_panels ? panel_size : columns, panel_stride = by_panels ? rows * panel_size : panel_size;
    float limit = whole(0, 1) ? 0.7f : INFINITY;
    packed_matrix m = pack(kind, 1, columns, depth, (int)whole(0, 1));
    float *x = some((rows - 1) * x_stride + depth, 1), *out = empty(by_panels ? panels * rows * panel_size : rows * columns);
    elmofire_product product = {&m.matrix, rows, x, x_stride, out, row_stride, panel_stride, limit, 0};
    void *scratch = product.scratch = room(elmofire_multiply_scratch(&product));
    elmofire_multiply(&product);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < columns; n++) {
            double sum = m.bias ? m.bias[n] : 0, bound = product_bound(kind, depth, x + r * x_stride, m.source + n * depth, sum);
            for (int64_t k = 0; k < depth; k++)
                sum += (double)x[r * x_stride + k] * m.source[n * depth + k];
            float found = out[r * row_stride + n / panel_size * panel_stride + n % panel_size];
            compare("multiply", kind, found, clipped(sum, limit), bound);
        }
    release(&m);
    free(x);
    free(out);
    free(scratch);
}

/* Where gate g of cell n is in a packed row of gates. */
static int64_t place(int64_t n, int64_t g, int64_t rows) { return n / lanes * rows * panel_size + g * lanes + n % lanes; }

enum source { SOME_AHEAD, BY_INDEX, ON_THE_WAY }; /* when the inputs' share of the gates is computed */

static void check_run(int64_t kind, int64_t batch, int64_t steps, int64_t cells, int64_t width, int projected, enum source source)
{
    const double allowed[] = {4e-6, 2e-3, 4e-2};
    if (!projected)
        width = cells;
    int64_t depth = whole(1, 60), c_stride = pieces(cells, 16) * 16;
    float cell_clip = whole(0, 1) ? 0.5f : INFINITY, projection_clip = whole(0, 1) ? 0.3f : INFINITY;
    packed_matrix input = pack(kind, 4, cells, depth, 1), recurrent = pack(kind, 4, cells, width, 0);
    packed_matrix projection = pack(kind, 1, width, cells, 0);
    elmofire_layer layer = {cells, width, &input.matrix, &recurrent.matrix, projected ? &projection.matrix : 0,
                            cell_clip, projection_clip};

    int64_t *starts = room((steps + 1) * 8), *which = 0, active = batch;
    starts[0] = whole(0, 9);
    for (int64_t t = 0; t < steps; t++) {
        starts[t + 1] = starts[t] + active;
        active = whole(1, active);
    }
    int64_t rows = starts[steps] - starts[0], distinct = source == BY_INDEX ? whole(1, 40) : rows;
    if (source == BY_INDEX) {
        which = room(rows * 8);
        for (int64_t r = 0; r < rows; r++)
            which[r] = whole(0, distinct - 1);
    }
    float *inputs = some(distinct * depth, 1);
    float *h = some(batch * width, 0.5), *c = empty(batch * c_stride), *out = empty(rows * width);
    for (int64_t n = 0; n < cells; n++)
        for (int64_t r = 0; r < batch; r++)
            c[r * c_stride + n] = (float)(2 * uniform());
    double *hidden = room(batch * width * 8), *memory = room(batch * cells * 8), *outputs = room(rows * width * 8);
    double *made = room(cells * 8);
    for (int64_t k = 0; k < batch * width; k++)
        hidden[k] = h[k];
    for (int64_t k = 0; k < batch * cells; k++)
        memory[k] = c[k / cells * c_stride + k % cells];
    for (int64_t t = 0, row = 0; t < steps; t++)
        for (int64_t r = 0; r < starts[t + 1] - starts[t]; r++, row++) {
            for (int64_t n = 0; n < cells; n++) {
                double gate[4];
                for (int64_t g = 0; g < 4; g++) {
                    gate[g] = input.bias[place(n, g, 1)];
                    for (int64_t k = 0; k < depth; k++)
                        gate[g] += (double)inputs[(which ? which[row] : row) * depth + k] * input.source[(g * cells + n) * depth + k];
                    for (int64_t k = 0; k < width; k++)
                        gate[g] += hidden[r * width + k] * recurrent.source[(g * cells + n) * width + k];
                }
                double *cell = memory + r * cells + n;
                *cell = clipped(sigmoid(gate[1]) * *cell + sigmoid(gate[0]) * tanh(gate[2]), cell_clip);
                made[n] = sigmoid(gate[3]) * tanh(*cell);
            }
            for (int64_t p = 0; p < width; p++) {
                double sum = 0;
                for (int64_t n = 0; n < cells && projected; n++)
                    sum += made[n] * projection.source[p * cells + n];
                outputs[row * width + p] = hidden[r * width + p] = projected ? clipped(sum, projection_clip) : made[p];
            }
        }

    int64_t stored = source == SOME_AHEAD ? whole(1, 30) : 0;
    elmofire_steps work = {&layer, steps, starts, inputs, which, distinct, stored, h, c, c_stride, out, 0};
    void *scratch = work.scratch = room(elmofire_run_scratch(&work));
    elmofire_run(&work);
    for (int64_t k = 0; k < rows * width; k++)
        compare("outputs of run", kind, out[k], outputs[k], allowed[kind]);
    for (int64_t k = 0; k < batch * width; k++)
        compare("hidden state of run", kind, h[k], hidden[k], allowed[kind]);
    for (int64_t k = 0; k < batch * cells; k++)
        compare("memory of run", kind, c[k / cells * c_stride + k % cells], memory[k], allowed[kind]);
    release(&input);
    release(&recurrent);
    release(&projection);
    void *all[] = {starts, which, inputs, h, c, out, hidden, memory, outputs, made, scratch};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        free(all[k]);
}

static void check_spell(int64_t words, int64_t columns, int64_t banks)
{
    int64_t characters = whole(1, 30), use_tanh = whole(0, 1), filters = 0, size = 0, widths[4], counts[4];
    for (int64_t b = 0; b < banks; b++) {
        widths[b] = whole(1, smaller(7, columns));
        counts[b] = whole(1, 2 * panel_size + 3);
        filters += counts[b];
        size += pieces(counts[b], panel_size) * panel_size * widths[b] * characters;
    }
    float *tables = empty(size), *bias = some(filters, 1), *out = empty(words * (filters + 3));
    int32_t *ids = room(words * columns * 4), *lengths = room(words * 4);
    for (int64_t k = 0; k < words * columns; k++)
        ids[k] = (int32_t)whole(0, characters - 1);
    for (int64_t k = 0; k < words; k++)
        lengths[k] = (int32_t)whole(0, columns);
#define TABLE(b, n, offset, character)                                                                                 \
    tables[first + ((n / panel_size * widths[b] + offset) * characters + character) * panel_size + n % panel_size]
    int64_t first = 0;
    for (int64_t b = 0; b < banks; first += pieces(counts[b], panel_size) * panel_size * widths[b] * characters, b++)
        for (int64_t n = 0; n < counts[b]; n++)
            for (int64_t k = 0; k < widths[b] * characters; k++)
                TABLE(b, n, k / characters, k % characters) = (float)uniform();
    elmofire_spell(&(elmofire_words){words, columns, ids, lengths, characters, banks, widths, counts, tables, bias, use_tanh, out,
                                     filters + 3});
    int64_t filter = first = 0;
    for (int64_t b = 0; b < banks; first += pieces(counts[b], panel_size) * panel_size * widths[b] * characters, b++)
        for (int64_t n = 0; n < counts[b]; n++, filter++)
            for (int64_t w = 0; w < words; w++) {
                double best = -INFINITY;
                for (int64_t start = 0; start <= smaller(lengths[w], columns - widths[b]); start++) {
                    double sum = 0;
                    for (int64_t offset = 0; offset < widths[b]; offset++)
                        sum += TABLE(b, n, offset, ids[w * columns + start + offset]);
                    best = fmax(best, sum);
                }
                best += bias[filter];
                compare("spell", FLOAT32, out[w * (filters + 3) + filter], use_tanh ? tanh(best) : fmax(best, 0), 4e-6);
            }
    for (int64_t k = 0; k < words * 3; k++)
        compare("spell, beside the row", FLOAT32, isnan(out[k / 3 * (filters + 3) + filters + k % 3]), 1, 0);
    void *all[] = {tables, bias, out, ids, lengths};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        free(all[k]);
}

static void check_highway(int64_t rows, int64_t width)
{
    float *gate = some(rows * width, 9), *transform = some(rows * width, 3), *z = some(rows * width, 3);
    double *expected = room(rows * width * 8);
    for (int64_t k = 0; k < rows * width; k++)
        expected[k] = z[k] + sigmoid(gate[k]) * (fmax(transform[k], 0) - z[k]);
    elmofire_highway(rows, width, gate, transform, z);
    for (int64_t k = 0; k < rows * width; k++)
        compare("highway", FLOAT32, z[k], expected[k], 4e-6);
    free(gate);
    free(transform);
    free(z);
    free(expected);
}

static void *companion_thread(void *memory)
{
    elmofire_companion_wait(memory);
    return 0;
}

/* Pairs of products, now in quick succession and now so far apart that the companion falls asleep; without one too. */
static void check_both(int64_t trials, int with_companion)
{
    pthread_t thread;
    void *companion = room(elmofire_companion_bytes());
    elmofire_companion_ready(companion);
    if (with_companion && pthread_create(&thread, 0, companion_thread, companion))
        abort();
    packed_matrix m = pack(FLOAT32, 1, 40, 300, 1);
    for (int64_t trial = 0; trial < trials; trial++) {
        int64_t rows[2] = {whole(1, 40), whole(1, 40)};
        elmofire_product product[2];
        float *alone[2];
        for (int k = 0; k < 2; k++) {
            product[k] = (elmofire_product){&m.matrix, rows[k], some(rows[k] * 300, 1), 300, empty(rows[k] * 40), 40, panel_size, INFINITY, 0};
            product[k].scratch = room(elmofire_multiply_scratch(&product[k]));
            elmofire_multiply(&product[k]);
            alone[k] = product[k].out;
            product[k].out = empty(rows[k] * 40);
        }
        if (trial % 8 == 0)
            nanosleep(&(struct timespec){0, whole(0, 2000000)}, 0);
        elmofire_both(companion, MULTIPLY, &product[0], &product[1]);
        for (int k = 0; k < 2; k++) {
            for (int64_t n = 0; n < rows[k] * 40; n++)
                compare("both", FLOAT32, product[k].out[n], alone[k][n], 0);
            free((void *)product[k].x);
            free(product[k].out);
            free(product[k].scratch);
            free(alone[k]);
        }
    }
    elmofire_companion_end(companion);
    if (with_companion)
        pthread_join(thread, 0);
    release(&m);
    free(companion);
}

int main(void)
{
    lanes = elmofire_lanes();
    panel_size = 4 * lanes;
    for (int64_t kind = FLOAT32; kind <= INT8; kind++) {
        for (int trial = 0; trial < 60; trial++)
            check_multiply(kind, whole(1, 20), trial < 20 ? trial + 1 : whole(1, 700), whole(1, 150), trial % 2);
        check_multiply(kind, 7, 9001, 5, 0); /* more than is summed at once, and more than a cache holds */
        check_multiply(kind, 2, 33003, 3, 1);
        for (int trial = 0; trial < 90; trial++)
            check_run(kind, whole(1, 14), whole(1, 6), whole(1, 70), whole(1, 50), trial % 4 != 0, trial % 3);
        check_run(kind, 1, 3, 300, 600, 1, ON_THE_WAY);
    }
    for (int trial = 0; trial < 30; trial++) {
        check_spell(whole(1, 9), whole(1, 20), whole(1, 4));
        check_highway(whole(1, 9), whole(1, 70));
    }
    check_both(200, 1);
    check_both(10, 0);
    printf("%s, %d lanes: %ld numbers compared, %ld wrong\n", elmofire_isa(), (int)lanes, compared, wrong);
    return wrong != 0;
}
