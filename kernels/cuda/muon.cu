/* muon.cu - Muon: momentum and update element by element, Newton-Schulz by batched GEMMs of cuBLASLt in bf16. */
#include <cublasLt.h>
#include "common.cuh"
extern "C" {
#include "../muon.h"
}

enum { THREADS = 512, PARTS = 32 };     /* PARTS blocks have a matrix of momentum_kernel */

/* Matrix blockIdx.y of x, and a part of the square of its norm. */
static __global__ void __launch_bounds__(THREADS)
momentum_kernel(bf16 *__restrict__ x, double *partial, float *__restrict__ m, int64_t m_pitch,
                const float *__restrict__ grad, int64_t grad_pitch, int64_t size, const StepStats *stats) {
    const int64_t matrix = blockIdx.y;
    wait_for_previous();
    if (!stats->apply) return;
    const float clip = stats->clip;
    double sum = 0;
    #pragma unroll 2
    for (int64_t i = 4 * (blockIdx.x * THREADS + threadIdx.x); i < size; i += 4 * PARTS * THREADS) {
        float m4[4], x4[4];
        load_floats(m4, m + matrix * m_pitch + i);
        load_floats<true>(x4, grad + matrix * grad_pitch + i);
        for (int k = 0; k < 4; k++) {
            m4[k] = MUON_MOMENTUM * m4[k] + clip * x4[k];
            x4[k] = MUON_MOMENTUM * m4[k] + clip * x4[k];
            const float rounded = to_float(from_float<bf16>(x4[k]));
            sum += (double)rounded * rounded;
        }
        store_floats(m + matrix * m_pitch + i, m4);
        store_floats(x + matrix * size + i, x4);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[matrix * PARTS + blockIdx.x] = sum;
}

/* to = x / (|x| + 1e-7). Every block adds up the partial sums. */
static __global__ void __launch_bounds__(THREADS)
scale_kernel(bf16 *to, const bf16 *x, int64_t size, const double *partial) {
    wait_for_previous();
    const double sum = warp_sum(partial[blockIdx.y * PARTS + threadIdx.x % 32]);
    const float scale = (float)(1 / (sqrt(sum) + 1e-7));
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < size) to[blockIdx.y * size + i] = from_float<bf16>(scale * to_float(x[blockIdx.y * size + i]));
}

static __global__ void __launch_bounds__(THREADS)
apply_kernel(float *param, int64_t pitch, bf16 *param_bf16, int64_t pitch_bf16, const bf16 *x, int64_t size,
             float scale, const StepStats *stats) {
    const int64_t matrix = blockIdx.y, i = 4 * ((int64_t)blockIdx.x * THREADS + threadIdx.x);
    wait_for_previous();
    if (i >= size || !stats->apply) return;
    const float step = stats->learning_rate * scale, decay = stats->learning_rate * stats->weight_decay;
    float w4[4], x4[4];
    load_floats(w4, param + matrix * pitch + i);
    load_floats<true>(x4, x + matrix * size + i);
    for (int k = 0; k < 4; k++) w4[k] -= step * x4[k] + decay * w4[k];
    store_floats(param + matrix * pitch + i, w4);
    if (param_bf16) store_floats(param_bf16 + matrix * pitch_bf16 + i, w4);
}

/* ---- Newton-Schulz, on batches of packed matrices. As column-major ones, cuBLASLt's, all are transposed. */

static cublasLtHandle_t handle;

static cublasLtMatrixLayout_t layout_of(int64_t rows, int64_t columns, int count) {
    cublasLtMatrixLayout_t layout;
    const int64_t size = rows * columns;
    CUBLAS(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, rows, columns, rows));
    CUBLAS(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    CUBLAS(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &size, sizeof size));
    return layout;
}

struct Product {
    cublasLtMatmulDesc_t            matmul;
    cublasLtMatrixLayout_t          a, b, d;
    cublasLtMatmulHeuristicResult_t result;
};

static Product product_of(cublasLtMatrixLayout_t a, cublasOperation_t op_a, cublasLtMatrixLayout_t b,
                          cublasOperation_t op_b, cublasLtMatrixLayout_t d) {
    Product p = { NULL, a, b, d, {} };
    const uint32_t alignment = 16;              /* bytes; channels are multiples of 8 */
    cublasLtMatmulPreference_t preference;      /* without a workspace: no split over K */
    int found;
    CUBLAS(cublasLtMatmulDescCreate(&p.matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CUBLAS(cublasLtMatmulDescSetAttribute(p.matmul, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a));
    CUBLAS(cublasLtMatmulDescSetAttribute(p.matmul, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b));
    CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
    for (auto which : { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES })
        CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, which, &alignment, sizeof alignment));
    CUBLAS(cublasLtMatmulAlgoGetHeuristic(handle, p.matmul, a, b, d, d, preference, 1, &p.result, &found));
    CUBLAS(cublasLtMatmulPreferenceDestroy(preference));
    REQUIRE(found, "cublas: no algorithm for a product of Muon");
    return p;
}

/* The products of an iteration for a shape, made once. */
struct Plan {
    int64_t rows, columns;
    int     count;
    Product gram, sum, next;
};

static const Plan *plan_of(int64_t rows, int64_t columns, int count) {
    static Plan plans[64];          /* a model has 3 shapes of each of at most 2 batch sizes */
    static int made;
    for (const Plan *p = plans; p < plans + made; p++)
        if (p->rows == rows && p->columns == columns && p->count == count) return p;
    REQUIRE(made < 64, "muon: more than 64 shapes and numbers of matrices");
    if (!handle) CUBLAS(cublasLtCreate(&handle));
    const int64_t S = min(rows, columns);
    const cublasOperation_t N = CUBLAS_OP_N, T = CUBLAS_OP_T;
    const cublasLtMatrixLayout_t x = layout_of(columns, rows, count), gram = layout_of(S, S, count);
    plans[made] = { rows, columns, count,
                    rows <= columns ? product_of(x, T, x, N, gram) : product_of(x, N, x, T, gram),
                    product_of(gram, N, gram, N, gram),
                    rows <= columns ? product_of(x, N, gram, N, x) : product_of(gram, N, x, N, x) };
    return &plans[made++];
}

/* d = alpha a b + beta c */
static void multiply(const Product &p, bf16 *d, float alpha, const bf16 *a, const bf16 *b, float beta, const bf16 *c) {
    CUBLAS(cublasLtMatmul(handle, p.matmul, &alpha, a, p.a, b, p.b, &beta, c, p.d, d, p.d, &p.result.algo, NULL, 0,
                          cuda_stream));
}

/* The partial sums of the norms, two iterates, and two products of the shorter side's size. */
size_t muon_scratch_bytes(int64_t rows, int64_t columns, int count) {
    const int64_t S = min(rows, columns);
    return (size_t)count * (PARTS * sizeof(double) + (size_t)(2 * rows * columns + 2 * S * S) * sizeof(bf16));
}

void muon_update(Tensor param, Tensor param_bf16, Tensor m, Tensor grad, int64_t rows, void *scratch,
                 const StepStats *stats) {
    check_update("muon", param, param_bf16, m, grad, rows);
    require_aligned_rows("muon", { param, param_bf16, m, grad });
    const int count = (int)tensor_rows(param);
    const int64_t size = tensor_columns(param), columns = size / rows, S = min(rows, columns);
    const bool wide = rows <= columns;
    const Plan *plan = plan_of(rows, columns, count);
    double *partial = (double *)scratch;
    bf16 *x = (bf16 *)(partial + count * PARTS), *y = x + count * size;
    bf16 *gram = y + count * size, *sum = gram + count * S * S;
    op_begin("muon", op_bytes(6, param, param, param_bf16, m, m, grad),
             2.0 * MUON_ITERATIONS * (double)(S * (2 * size + S * S) * count));
    LAUNCH_EARLY(momentum_kernel, dim3(PARTS, count), THREADS, 0, x, partial, m, m.pitch, grad,
                 grad.pitch, size, stats);
    LAUNCH_EARLY(scale_kernel, dim3((unsigned)ceil_div(size, THREADS), count), THREADS, 0, y, x, size, partial);
    bf16 *from = y, *to = x;                    /* after an odd number of iterations the result is in x */
    for (int i = 0; i < MUON_ITERATIONS; i++, std::swap(from, to)) {
        multiply(plan->gram, gram, 1, from, from, 0, gram);
        multiply(plan->sum, sum, MUON_C, gram, gram, MUON_B, gram);
        multiply(plan->next, to, 1, wide ? from : sum, wide ? sum : from, MUON_A, from);
    }
    LAUNCH_EARLY(apply_kernel, dim3((unsigned)ceil_div(size, 4 * THREADS), count), THREADS, 0, param, param.pitch,
                 param_bf16, param_bf16.pitch, x, size, 0.2f * sqrtf((float)max(rows, columns)), stats);
    op_end();
}
