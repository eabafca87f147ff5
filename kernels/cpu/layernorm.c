#include "../layernorm.h"
#include "../check_ops.h"
#include "../gemm.h"
#include "../profile.h"
#include "vecmath.h"

static const float EPS = 1e-5f;

enum { ROW_LANES = 16 };      /* partial sums of a row, and the columns that a thread takes at a time */

void residual_layernorm_forward(Tensor sum, Tensor normed, Tensor mean, Tensor rstd,
                                Tensor x, Tensor branch, Tensor weight, Tensor bias) {
    check_residual_layernorm(sum, normed, mean, rstd, x, branch, weight, bias);
    op_begin("residual layernorm", op_bytes(branch.data ? 6 : 4, normed, mean, rstd, x, branch, sum), 0);
    int64_t rows = tensor_rows(x), C = tensor_columns(x);
    const float *restrict w = weight.data, *restrict b = bias.data;
    #pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *row = (const float *)x.data + r * C;
        if (branch.data) {
            float *to = (float *)sum.data + r * C;
            const float *add = (const float *)branch.data + r * C;
            for (int64_t c = 0; c < C; c++) to[c] = row[c] + add[c];
            row = to;
        }
        float total, squares;
        LANE_SUM(total, ROW_LANES, C, row[c]);
        float mu = total / (float)C;
        LANE_SUM(squares, ROW_LANES, C, (row[c] - mu) * (row[c] - mu));
        float scale = 1.0f / sqrtf(squares / (float)C + EPS);
        float *restrict out = (float *)normed.data + r * C;
        for (int64_t c = 0; c < C; c++) out[c] = (row[c] - mu) * scale * w[c] + b[c];
        ((float *)mean.data)[r] = mu;
        ((float *)rstd.data)[r] = scale;
    }
    op_end();
}

/* Threads have columns, rows are added in order, in blocks of 64 rows: more exact than one long sum, and the same bits
   for any number of threads. */
static void weight_gradient(Tensor dweight, Tensor dnormed, Tensor x, Tensor mean, Tensor rstd, Into into) {
    int64_t rows = tensor_rows(x), C = tensor_columns(x);
    const float *mu = mean.data, *scale = rstd.data;
    float *dw = dweight.data;
    #pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < C; first += ROW_LANES) {
        const int64_t width = min64(ROW_LANES, C - first);
        float total[ROW_LANES] = {0};
        for (int64_t block = 0; block < rows; block += 64) {
            float sum[ROW_LANES] = {0};
            for (int64_t r = block; r < rows && r < block + 64; r++) {
                const float *dn = (const float *)dnormed.data + r * C + first;
                const float *row = (const float *)x.data + r * C + first;
                for (int64_t c = 0; c < width; c++) sum[c] += dn[c] * ((row[c] - mu[r]) * scale[r]);
            }
            for (int64_t c = 0; c < width; c++) total[c] += sum[c];
        }
        for (int64_t c = 0; c < width; c++) dw[first + c] = (into == ACCUMULATE ? dw[first + c] : 0.0f) + total[c];
    }
}

void layernorm_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dx_sum, Tensor dnormed,
                        Tensor x, Tensor mean, Tensor rstd, Tensor weight, Into dx_into, Into into) {
    check_layernorm_backward(dx, dweight, dbias, dx_sum, dnormed, x, mean, rstd, weight);
    op_begin("layernorm backward", op_bytes(dx_into == ACCUMULATE ? 6 : 5, dx, dnormed, x, mean, rstd, dx), 0);
    int64_t rows = tensor_rows(x), C = tensor_columns(x);
    const float *restrict w = weight.data;
    #pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *restrict row = (const float *)x.data + r * C;
        const float *restrict dn = (const float *)dnormed.data + r * C;
        float mu = ((const float *)mean.data)[r], scale = ((const float *)rstd.data)[r];
        float g_sum, gx_sum;                    /* sums of g = dnormed * weight, and of g times the normalised x */
        LANE_SUM(g_sum, ROW_LANES, C, dn[c] * w[c]);
        LANE_SUM(gx_sum, ROW_LANES, C, dn[c] * w[c] * ((row[c] - mu) * scale));
        float g_mean = g_sum / (float)C, gx_mean = gx_sum / (float)C;
        float *restrict to = (float *)dx.data + r * C;
        if (dx_into == OVERWRITE) memset(to, 0, (size_t)C * sizeof *to);
        for (int64_t c = 0; c < C; c++)
            to[c] += scale * (dn[c] * w[c] - g_mean - (row[c] - mu) * scale * gx_mean);
    }
    weight_gradient(dweight, dnormed, x, mean, rstd, into);
    column_sums(dbias, dnormed, into);
    if (dx_sum.data) column_sums(dx_sum, dx, into);
    op_end();
}
