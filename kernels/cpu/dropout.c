#include "../dropout.h"
#include "../check_ops.h"
#include "../profile.h"

/* Rows r, r + 8 and columns c, c + 8 of a sequence, as far as it has them: one draw. */
static void drop_unit(float *out, const float *x, int64_t T, int64_t C, int64_t r, int64_t c, DropoutMask mask,
                      uint32_t threshold, float scale) {
    const Random64 bits = dropout_bits(mask, (uint32_t)r, (uint32_t)c);
    for (int i = 0; i < 2 && r + 8 * i < T; i++)
        for (int j = 0; j < 2 && c + 8 * j < C; j++) {
            const int64_t at = (r + 8 * i) * C + c + 8 * j;
            out[at] = (bits.word[i] >> 16 * j & 0x7fff) >= threshold ? x[at] * scale : 0.0f;
        }
}

void dropout(Tensor out_tensor, Tensor x_tensor, const Dropout *d) {
    check_dropout(out_tensor, x_tensor, d->rate);
    op_begin("dropout", op_bytes(2, out_tensor, x_tensor), 0);
    float *out = out_tensor.data;
    const float *x = x_tensor.data, scale = dropout_scale(d->rate);
    const uint64_t first = d->sequence ? *d->sequence : 0;
    const uint32_t threshold = dropout_threshold(d->rate);
    const int64_t B = x_tensor.dim[0], T = x_tensor.dim[1], C = x_tensor.dim[2], groups = (T + 15) / 16;
    #pragma omp parallel for schedule(static)
    for (int64_t g = 0; g < B * groups; g++) {          /* 16 rows of a sequence */
        const int64_t b = g / groups, row = g % groups * 16;
        const DropoutMask mask = dropout_mask(d->seed, d->site, first + (uint64_t)b, 0);
        for (int64_t r = row; r < row + 8 && r < T; r++)
            for (int64_t column = 0; column < C; column += 16)
                for (int64_t c = column; c < column + 8 && c < C; c++)
                    drop_unit(out + b * T * C, x + b * T * C, T, C, r, c, mask, threshold, scale);
    }
    op_end();
}
