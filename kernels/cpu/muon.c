#include "../muon.h"
#include <math.h>
#include <string.h>
#include "../check_ops.h"
#include "../gemm.h"
#include "../profile.h"

enum { BLOCK = 4096 };      /* elements of a thread at a time, as in update.c */
const DType muon_dtype = F32;

void muon_momentum(Tensor update, Tensor m_tensor, Tensor grad, const UpdateRow *rows, int row_count,
                   const StepStats *stats) {
    check_muon_momentum(update, m_tensor, grad, muon_dtype);
    if (!stats->apply) return;
    op_begin("muon momentum", op_bytes(4, m_tensor, m_tensor, grad, update), 0);
    const float clip = stats->clip;
    #pragma omp parallel
    for (int row = 0; row < row_count; row++) {
        float *restrict m = (float *)m_tensor.data + rows[row].first;
        float *restrict u = (float *)update.data + rows[row].first;
        const float *restrict g = (const float *)grad.data + rows[row].first;
        #pragma omp for schedule(static, BLOCK) nowait
        for (int64_t i = 0; i < (rows[row].scale > 0 ? rows[row].count : 0); i++) {
            m[i] = MUON_MOMENTUM * m[i] + clip * g[i];
            u[i] = MUON_MOMENTUM * m[i] + clip * g[i];
        }
    }
    op_end();
}

void muon_apply(Tensor param, Tensor param_bf16, Tensor update, const UpdateRow *rows, int row_count,
                const StepStats *stats) {
    check_muon_apply(param, param_bf16, update, muon_dtype);
    if (!stats->apply) return;
    op_begin("muon", op_bytes(3, param, param, update), 0);
    #pragma omp parallel
    for (int row = 0; row < row_count; row++) {
        float *restrict w = (float *)param.data + rows[row].first;
        const float *restrict u = (const float *)update.data + rows[row].first;
        const float step = stats->learning_rate * rows[row].scale;
        const float decay = stats->learning_rate * (rows[row].decay ? stats->weight_decay : 0.0f);
        #pragma omp for schedule(static, BLOCK) nowait
        for (int64_t i = 0; i < (rows[row].scale > 0 ? rows[row].count : 0); i++) w[i] -= step * u[i] + decay * w[i];
    }
    op_end();
}

/* ---- Newton-Schulz. S: the shorter side. */

static int64_t shorter(int64_t rows, int64_t columns) { return rows < columns ? rows : columns; }

/* The next iterate, and two products (S,S). */
size_t muon_scratch_bytes(int64_t rows, int64_t columns, int count) {
    const int64_t S = shorter(rows, columns);
    return sizeof(float) * (size_t)(rows * columns + 2 * S * S) * (count > 0);
}

/* c = a b */
static void product(float *c, const float *a, Layout a_layout, const float *b, Layout b_layout, int64_t M, int64_t N,
                    int64_t K) {
    gemm((Gemm){ .M = M, .N = N, .K = K, .dtype = F32, .a = { a, a_layout == ROW_MAJOR ? K : M, a_layout },
                 .b = { b, b_layout == ROW_MAJOR ? N : K, b_layout }, .c = c, .c_dtype = F32, .c_pitch = N });
}

/* to = x of + y to */
static void combine(float *to, float x, const float *of, float y, int64_t count) {
    #pragma omp parallel for schedule(static, BLOCK)
    for (int64_t i = 0; i < count; i++) to[i] = x * of[i] + y * to[i];
}

/* to = a x + (b G + c G^2) x with G = x x^T, or from the right with G = x^T x where that is smaller. */
static void iterate(float *to, const float *x, int64_t rows, int64_t columns, float *gram, float *square) {
    const int64_t S = shorter(rows, columns);
    const int wide = rows <= columns;
    product(gram, x, wide ? ROW_MAJOR : COLUMN_MAJOR, x, wide ? COLUMN_MAJOR : ROW_MAJOR, S, S, wide ? columns : rows);
    product(square, gram, ROW_MAJOR, gram, ROW_MAJOR, S, S, S);
    combine(square, MUON_B, gram, MUON_C, S * S);
    product(to, wide ? square : x, ROW_MAJOR, wide ? x : square, ROW_MAJOR, rows, columns, S);
    combine(to, MUON_A, x, 1, rows * columns);
}

void muon_orthogonalize(Tensor x, int count, int64_t stride, void *scratch) {
    check_muon_orthogonalize(x, count, stride, muon_dtype);
    const int64_t rows = x.dim[0], columns = x.dim[1], S = shorter(rows, columns), size = rows * columns;
    float *next = scratch, *gram = next + size, *square = gram + S * S;
    op_begin("newton-schulz", 2 * op_bytes(1, x) * count, muon_flop(rows, columns) * count);
    for (float *matrix = x.data; count--; matrix += stride) {
        double sum = 0;
        for (int64_t i = 0; i < size; i++) sum += (double)matrix[i] * matrix[i];
        const float scale = (float)(1 / (sqrt(sum) + 1e-7));
        for (int64_t i = 0; i < size; i++) next[i] = scale * matrix[i];
        for (int i = 0; i < MUON_ITERATIONS; i++)           /* an odd number: the last result is in matrix */
            iterate(i % 2 ? next : matrix, i % 2 ? matrix : next, rows, columns, gram, square);
    }
    op_end();
}
