#include "../check_ops.h"
#include "../profile.h"
#include "../dropout.h"
#include "vecmath.h"

enum { BLOCKS = 32 };       /* side by side, in vector registers: one after the other takes 10 times as long */

/* Rows row .. row + rows - 1 of a matrix, row a multiple of 8 and at most 8 of them. */
static void dropout_rows(float *out, const float *x, int64_t row, int64_t rows, int64_t columns, DropoutMask mask,
                         float rate) {
    const uint32_t threshold = dropout_threshold(rate);
    const float scale = dropout_scale(rate);
    for (int64_t first = 0; first < columns; first += 8 * BLOCKS) {
        const int64_t width = min64(8 * BLOCKS, columns - first);
        Random64 kept[BLOCKS];
        for (uint32_t n = 0; n < BLOCKS; n++)
            kept[n] = dropout_draw(mask, (uint32_t)row / 8, (uint32_t)first / 8 + n, dropout_digits(threshold));
        for (int i = 0; i < rows; i++) {
            uint32_t bits[8 * BLOCKS];          /* the lowest bit counts */
            for (int n = 0; n < BLOCKS; n++)
                for (int j = 0; j < 8; j++) bits[8 * n + j] = kept[n].word[i / 4] >> 8 * (i % 4) >> j;
            const float *from = x + i * columns + first;
            float *to = out + i * columns + first;
            for (int64_t c = 0; c < width; c++) to[c] = bits[c] & 1 ? from[c] * scale : 0.0f;
        }
    }
}

void dropout(Tensor out, Tensor x, const Dropout *d) {
    check_dropout(out, x, d->rate);
    op_begin("dropout", op_bytes(2, out, x), 0);
    const uint64_t first = d->sequence ? *d->sequence : 0;
    const int64_t B = x.dim[0], T = x.dim[1], C = x.dim[2], groups = (T + 7) / 8;
    #pragma omp parallel for schedule(static)
    for (int64_t g = 0; g < B * groups; g++) {          /* 8 rows of a sequence */
        const int64_t b = g / groups, row = g % groups * 8, at = (b * T + row) * C;
        dropout_rows((float *)out.data + at, (const float *)x.data + at, row, min64(8, T - row), C,
                     dropout_mask(d->seed, d->site, first + (uint64_t)b, 0), d->rate);
    }
    op_end();
}
