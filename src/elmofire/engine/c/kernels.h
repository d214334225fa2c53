/* The kernels' interface: pointers and sizes, no memory of their own, no option of the model.

   A matrix is packed in panels of PANEL columns (4 vectors). Inside a panel the numbers that are summed run slowest:
     float32   [panel][k][PANEL]
     int16     [panel][k / 2][PANEL][2]
     int8      [panel][k / g][PANEL][g]   with g = elmofire_int8_group()
   padded with zeros up to whole panels and whole groups. Every array of a packed matrix starts on 64 bytes. */

#ifndef ELMOFIRE_KERNELS_H
#define ELMOFIRE_KERNELS_H

#include <stdint.h>

#define ELMOFIRE_ABI 2
#define EXPORT __attribute__((visibility("default")))

enum kind { FLOAT32, INT16, INT8 };

typedef struct {
    int64_t kind;
    int64_t depth;   /* numbers that are summed for one result */
    int64_t columns; /* results of a row, padding not counted */
    const void *packed;
    const float *scale; /* of each column's integers */
    const float *sums;  /* each column's integers summed, times its scale; int8 alone */
    const float *bias;  /* by panels like the rest; may be null */
} elmofire_matrix;

typedef struct {
    int64_t cells;
    int64_t width; /* of the hidden state: the projection's columns, or the cells */
    const elmofire_matrix *input;
    const elmofire_matrix *recurrent;
    const elmofire_matrix *projection; /* may be null */
    float cell_clip;                   /* infinity: none */
    float projection_clip;
} elmofire_layer;

EXPORT int elmofire_abi(void);
EXPORT const char *elmofire_source_hash(void);
EXPORT const char *elmofire_isa(void);

/* How many floats a vector has, and how many int8 values of one column lie side by side. */
EXPORT int elmofire_lanes(void);
EXPORT int elmofire_int8_group(void);

/* Pack `parts` matrices of `size` rows each, which lie one below the other in `source` (parts * size, depth): every
   panel has the same PANEL / parts columns of each. `scale` and `sums` are for the integer kinds. */
EXPORT void elmofire_pack(int64_t kind, int64_t parts, int64_t size, int64_t depth, const float *source, void *packed,
                          float *scale, float *sums);

/* A product: out = x m + bias, clipped. Row r of panel p is at out + r * row_stride + p * panel_stride. */
typedef struct {
    const elmofire_matrix *matrix;
    int64_t rows;
    const float *x;
    int64_t x_stride;
    float *out;
    int64_t row_stride;
    int64_t panel_stride;
    float clip;    /* infinity: none */
    void *scratch; /* as many bytes as elmofire_multiply_scratch says, whatever stands here then */
} elmofire_product;

EXPORT int64_t elmofire_multiply_scratch(const elmofire_product *product);
EXPORT void elmofire_multiply(const elmofire_product *product);

/* z += sigmoid(gate) * (max(transform, 0) - z), all (rows, width). */
EXPORT void elmofire_highway(int64_t rows, int64_t width, const float *gate, const float *transform, float *z);

/* Words to spell: the largest response of every filter at any position of each, plus bias, through tanh or max(., 0).

   `tables` hold for each bank, for each panel of its filters (the last one padded), [offset in the window][character][PANEL].
   Only windows that start at positions 0..length are looked at. */
typedef struct {
    int64_t words;
    int64_t columns;
    const int32_t *ids; /* (words, columns) */
    const int32_t *lengths;
    int64_t characters;
    int64_t banks;
    const int64_t *widths;
    const int64_t *counts;
    const float *tables;
    const float *bias;
    int64_t use_tanh;
    float *out; /* (words, out_stride), of which all filters are written */
    int64_t out_stride;
} elmofire_words;

EXPORT void elmofire_spell(const elmofire_words *words);

/* Steps of one LSTM layer. Step t has the rows starts[t] - starts[0] .. starts[t + 1] - starts[0] of `out` (rows, width).

   Row r takes in row r of `inputs` (rows, the input matrix's depth); or with `which`, row which[r] of them, of which there are
   `distinct`: their share of the gates is then computed once, before the first step. Without `which` it is computed for some
   steps ahead, of `stored` rows together at most (of one step at least), so that the input matrix is read once for all of them;
   or, if `stored` is 0, step by step, and then it is stored nowhere. */
typedef struct {
    const elmofire_layer *layer;
    int64_t steps;
    const int64_t *starts;
    const float *inputs;
    const int64_t *which; /* may be null */
    int64_t distinct;
    int64_t stored;
    float *h; /* (batch, width), the state, moved on in place */
    float *c; /* (batch, c_stride), whole vectors wide, likewise */
    int64_t c_stride;
    float *out;
    void *scratch; /* as many bytes as elmofire_run_scratch says, whatever stands here then */
} elmofire_steps;

EXPORT int64_t elmofire_run_scratch(const elmofire_steps *steps);
EXPORT void elmofire_run(const elmofire_steps *steps);

/* Two calls at once: one on the caller's thread, the other on a companion, a thread that waits in elmofire_companion_wait; or one
   after the other on the caller's, where the companion did not begin in time or serves another caller. Its memory, so many bytes,
   is made ready by another thread than the companion's, and lives until elmofire_companion_end and elmofire_companion_wait, which
   then ends, have returned. */
enum kernel { MULTIPLY, RUN, SPELL };

EXPORT int64_t elmofire_companion_bytes(void);
EXPORT void elmofire_companion_ready(void *companion);
EXPORT void elmofire_companion_wait(void *companion);
EXPORT void elmofire_companion_end(void *companion);
EXPORT void elmofire_both(void *companion, int64_t kernel, const void *first, const void *second);

#endif
