#include "../dropout.h"
#include "../check_ops.h"
#include "../profile.h"
#include "vecmath.h"

/* A block of the mask, as far as the matrix has its rows and columns. */
static void drop_block(float *out, const float *x, int64_t pitch, int64_t rows, int64_t columns, Random64 kept,
                       float scale) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            out[i * pitch + j] = dropout_bit(kept, i, j) ? x[i * pitch + j] * scale : 0.0f;
}

void dropout(Tensor out_tensor, Tensor x_tensor, const Dropout *d) {
    check_dropout(out_tensor, x_tensor, d->rate);
    op_begin("dropout", op_bytes(2, out_tensor, x_tensor), 0);
    float *out = out_tensor.data;
    const float *x = x_tensor.data, scale = dropout_scale(d->rate);
    const uint64_t first = d->sequence ? *d->sequence : 0;
    const uint32_t threshold = dropout_threshold(d->rate);
    const int64_t B = x_tensor.dim[0], T = x_tensor.dim[1], C = x_tensor.dim[2], groups = (T + 7) / 8;
    #pragma omp parallel for schedule(static)
    for (int64_t g = 0; g < B * groups; g++) {          /* 8 rows of a sequence */
        const int64_t b = g / groups, t = g % groups * 8;
        const DropoutMask mask = dropout_mask(d->seed, d->site, first + (uint64_t)b, 0);
        for (int64_t c = 0; c < C; c += 8) {
            const int64_t at = (b * T + t) * C + c;
            const Random64 kept = dropout_block(mask, (uint32_t)t / 8, (uint32_t)c / 8, threshold);
            if (T - t >= 8 && C - c >= 8) drop_block(out + at, x + at, C, 8, 8, kept, scale);
            else drop_block(out + at, x + at, C, min64(8, T - t), min64(8, C - c), kept, scale);
        }
    }
    op_end();
}
