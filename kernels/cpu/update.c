#include "../update.h"
#include <math.h>
#include <string.h>
#include "../check_ops.h"
#include "../profile.h"

/* Sums are made of blocks of SUM_BLOCK elements: partial sums in double, then added in order. A thread updates
   UPDATE_BLOCK elements at a time, a fixed number: where the compiler changes from vectors to single elements, which
   may round differently, does not depend on the number of threads. */
enum { SUM_BLOCK = 65536, UPDATE_BLOCK = 4096 };

void loss_add(StepStats *stats, Tensor losses, float scale) {
    op_begin("loss", op_bytes(1, losses), 0);
    double total = 0;
    for (int64_t i = 0; i < tensor_count(losses); i++) total += ((const float *)losses.data)[i];
    stats->loss += scale * total;
    op_end();
}

void gradient_square_sum(StepStats *stats, Tensor grads) {
    op_begin("gradient norm", op_bytes(1, grads), 0);
    const float *g = grads.data;
    int64_t count = tensor_count(grads), blocks = (count + SUM_BLOCK - 1) / SUM_BLOCK;
    double total = 0;
    #pragma omp parallel for ordered schedule(static, 1)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * SUM_BLOCK, last = first + SUM_BLOCK < count ? first + SUM_BLOCK : count;
        double lane[8] = {0};
        for (int64_t i = first; i < last; i++) lane[i % 8] += (double)g[i] * g[i];
        #pragma omp ordered
        total += ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
    }
    stats->square_sum += total;
    op_end();
}

void update_decide(StepStats *stats) {
    op_begin("decision", sizeof *stats, 0);
    double norm = sqrt(stats->square_sum);
    stats->norm = norm;
    stats->clip = stats->max_norm > 0 && norm > stats->max_norm ? (float)(stats->max_norm / norm) : 1.0f;
    /* The square, too: without clipping a norm from 1.8e19 on is finite, and the g^2 of AdamW's v may not be. */
    double clipped = stats->clip * norm;
    stats->apply = isfinite(norm) && isfinite((float)(clipped * clipped)) && isfinite(stats->loss)
                     && norm <= stats->norm_limit && stats->loss <= stats->loss_limit;
    op_end();
}

void adamw_update(Tensor param, Tensor param_bf16, Tensor m_tensor, Tensor v_tensor, Tensor grad,
                  const UpdateRow *rows, int row_count, const StepStats *stats) {
    check_update("adamw", param, param_bf16, m_tensor, grad, 1);
    check_like("adamw", "v", v_tensor, F32, param, v_tensor.dim[0] < param.dim[0] ? v_tensor.dim[0] : param.dim[0]);
    if (!stats->apply) return;
    op_begin("adamw", op_bytes(7, param, param, m_tensor, m_tensor, v_tensor, v_tensor, grad), 0);
    float beta1 = stats->beta1, beta2 = stats->beta2, eps = stats->eps, clip = stats->clip;
    float step = stats->learning_rate / stats->correction1, rescale = 1.0f / sqrtf(stats->correction2);
    #pragma omp parallel
    for (int row = 0; row < row_count; row++) {
        float *restrict w = (float *)param.data + rows[row].first;
        float *restrict m = (float *)m_tensor.data + rows[row].first;
        float *restrict v = (float *)v_tensor.data + rows[row].first - rows[row].v_shift;
        const float *restrict g = (const float *)grad.data + rows[row].first;
        float decay = stats->learning_rate * (rows[row].decay ? stats->weight_decay : 0.0f);
        #pragma omp for schedule(static, UPDATE_BLOCK) nowait
        for (int64_t i = 0; i < rows[row].count; i++) {
            float gi = clip * g[i];
            m[i] = beta1 * m[i] + (1.0f - beta1) * gi;
            v[i] = beta2 * v[i] + (1.0f - beta2) * gi * gi;
            w[i] -= step * m[i] / (sqrtf(v[i]) * rescale + eps) + decay * w[i];
        }
    }
    op_end();
}

/* sum without data: 0. The CPU computes in f32 only. Packed tensors are one row. */
static void write_rows(const char *op, Tensor to, Tensor sum, Tensor from) {
    const int packed = tensor_is_packed(to) && (!sum.data || tensor_is_packed(sum)) && tensor_is_packed(from);
    const int64_t rows = packed ? 1 : tensor_rows(from), columns = packed ? tensor_count(from) : tensor_columns(from);
    op_begin(op, op_bytes(3, to, sum, from), 0);
    for (int64_t r = 0; r < rows; r++) {
        float *x = (float *)to.data + r * to.pitch;
        const float *y = (const float *)from.data + r * from.pitch;
        const float *z = (const float *)sum.data + r * sum.pitch;
        if (sum.data) for (int64_t c = 0; c < columns; c++) x[c] = z[c] + y[c];
        else          memcpy(x, y, sizeof *x * (size_t)columns);
    }
    op_end();
}

void tensor_convert(Tensor to, Tensor from) {
    check_convert("convert", to, from);
    write_rows("convert", to, ABSENT, from);
}

void tensor_add(Tensor to, Tensor sum, Tensor from) {
    check_add(to, sum, from);
    write_rows("add", to, sum, from);
}

TensorStats tensor_stats(Tensor t) {
    TensorStats stats = { .min = INFINITY, .max = -INFINITY };
    int64_t rows = tensor_rows(t), columns = tensor_columns(t);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            float x = ((const float *)t.data)[r * t.pitch + c];
            if (isnan(x)) stats.nan_count++;
            else if (isinf(x)) stats.inf_count++;
            else { stats.min = fmin(stats.min, x); stats.max = fmax(stats.max, x); }
        }
    return stats;
}
