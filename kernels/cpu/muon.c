#include "../muon.h"
#include <math.h>
#include "../check_ops.h"
#include "../gemm.h"
#include "../profile.h"

enum { BLOCK = 4096 };      /* elements of a thread at a time, as in update.c */

/* Two iterates, and two products (S,S) where S is the shorter side; matrices are updated one after the other. */
size_t muon_scratch_bytes(int64_t rows, int64_t columns, int count) {
    const int64_t S = rows < columns ? rows : columns;
    return sizeof(float) * (size_t)(2 * rows * columns + 2 * S * S) * (count > 0);
}

/* c = a b */
static void product(float *c, Operand a, Operand b, int64_t M, int64_t N, int64_t K) {
    gemm((Gemm){ .M = M, .N = N, .K = K, .dtype = F32, .a = a, .b = b, .c = c, .c_dtype = F32, .c_pitch = N });
}

/* to = x of + y to */
static void combine(float *to, float x, const float *of, float y, int64_t count) {
    #pragma omp parallel for schedule(static, BLOCK)
    for (int64_t i = 0; i < count; i++) to[i] = x * of[i] + y * to[i];
}

void muon_update(Tensor param, Tensor param_bf16, Tensor m_tensor, Tensor grad, int64_t rows, void *scratch,
                 const StepStats *stats) {
    check_update("muon", param, param_bf16, m_tensor, grad, rows);
    if (!stats->apply) return;
    const int64_t count = tensor_rows(param), size = tensor_columns(param), columns = size / rows;
    const int wide = rows <= columns;
    const int64_t S = wide ? rows : columns;
    const float clip = stats->clip, decay = stats->learning_rate * stats->weight_decay;
    const float step = stats->learning_rate * (0.2f * sqrtf((float)(wide ? columns : rows)));
    float *x = scratch, *next = x + size, *gram = next + size, *sum = gram + S * S;
    const Operand G = { gram, S, ROW_MAJOR }, polynomial = { sum, S, ROW_MAJOR };
    op_begin("muon", op_bytes(5, param, param, m_tensor, m_tensor, grad),
             2.0 * MUON_ITERATIONS * (double)(S * (2 * size + S * S) * count));
    for (int64_t matrix = 0; matrix < count; matrix++) {
        float *restrict w = (float *)param.data + matrix * param.pitch;
        float *restrict m = (float *)m_tensor.data + matrix * m_tensor.pitch;
        const float *restrict g = (const float *)grad.data + matrix * grad.pitch;
        double square_sum = 0;
        #pragma omp parallel for schedule(static, BLOCK)
        for (int64_t i = 0; i < size; i++) {
            m[i] = MUON_MOMENTUM * m[i] + clip * g[i];
            x[i] = MUON_MOMENTUM * m[i] + clip * g[i];
        }
        for (int64_t i = 0; i < size; i++) square_sum += (double)x[i] * x[i];
        const float scale = (float)(1 / (sqrt(square_sum) + 1e-7));
        for (int64_t i = 0; i < size; i++) next[i] = scale * x[i];
        for (int i = 0; i < MUON_ITERATIONS; i++) {             /* an odd number: the last result is in x */
            float *from = i % 2 ? x : next, *to = i % 2 ? next : x;
            const Operand X = { from, columns, ROW_MAJOR }, transposed = { from, columns, COLUMN_MAJOR };
            product(gram, wide ? X : transposed, wide ? transposed : X, S, S, wide ? columns : rows);
            product(sum, G, G, S, S, S);
            combine(sum, MUON_B, gram, MUON_C, S * S);
            product(to, wide ? polynomial : X, wide ? X : polynomial, rows, columns, S);
            combine(to, MUON_A, from, 1, size);
        }
        #pragma omp parallel for schedule(static, BLOCK)
        for (int64_t i = 0; i < size; i++) w[i] -= step * x[i] + decay * w[i];
    }
    op_end();
}
