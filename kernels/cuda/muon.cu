/* muon.cu - Muon: its elementwise parts, and Newton-Schulz by batched GEMMs of cuBLASLt in bf16. */
#include <cublasLt.h>
#include <cublas_v2.h>
#include "partial_sums.cuh"
#include "update_rows.cuh"
extern "C" {
#include "../device.h"
#include "../muon.h"
#include "../profile.h"
}

const DType muon_dtype = BF16;

/* ---- Elementwise */

static __global__ void __launch_bounds__(THREADS)
momentum_kernel(bf16 *__restrict__ update, float *__restrict__ m, const float *__restrict__ grad, const UpdateRow *rows,
                int row_count, const StepStats *stats) {
    const int64_t begin = (int64_t)blockIdx.x * SPAN, end = begin + SPAN;
    const RowRange range = rows_between(rows, row_count, begin, end);
    wait_for_previous();
    if (!stats->apply) return;
    const float clip = stats->clip;
    for (int r = range.first; r <= range.last; r++) {
        if (!(rows[r].scale > 0)) continue;
        const int64_t first = max(begin, rows[r].first), last = min(end, rows[r].first + rows[r].count);
        #pragma unroll 2
        for (int64_t i = first + 4 * threadIdx.x; i < last; i += 4 * THREADS) {
            float m4[4], g4[4];
            load_floats(m4, m + i);
            load_floats<true>(g4, grad + i);
            for (int k = 0; k < 4; k++) {
                m4[k] = MUON_MOMENTUM * m4[k] + clip * g4[k];
                g4[k] = MUON_MOMENTUM * m4[k] + clip * g4[k];
            }
            store_floats(m + i, m4);
            store_floats(update + i, g4);
        }
    }
}

void muon_momentum(Tensor update, Tensor m, Tensor grad, const UpdateRow *rows, int row_count, const StepStats *stats) {
    check_muon_momentum(update, m, grad, muon_dtype);
    require_aligned_rows("muon", { update, m, grad });
    op_begin("muon momentum", op_bytes(4, m, m, grad, update), 0);
    LAUNCH_EARLY(momentum_kernel, (unsigned)ceil_div(tensor_count(m), SPAN), THREADS, 0, (bf16 *)update.data,
                 (float *)m.data, (const float *)grad.data, rows, row_count, stats);
    op_end();
}

static __global__ void __launch_bounds__(THREADS)
apply_kernel(float *__restrict__ param, bf16 *__restrict__ param_bf16, const bf16 *__restrict__ update,
              const UpdateRow *rows, int row_count, const StepStats *stats) {
    const int64_t begin = (int64_t)blockIdx.x * SPAN, end = begin + SPAN;
    const RowRange range = rows_between(rows, row_count, begin, end);
    wait_for_previous();
    if (!stats->apply) return;
    for (int r = range.first; r <= range.last; r++) {
        if (!(rows[r].scale > 0)) continue;
        const int64_t first = max(begin, rows[r].first), last = min(end, rows[r].first + rows[r].count);
        const float step = stats->learning_rate * rows[r].scale;
        const float decay = stats->learning_rate * (rows[r].decay ? stats->weight_decay : 0.0f);
        #pragma unroll 2
        for (int64_t i = first + 4 * threadIdx.x; i < last; i += 4 * THREADS) {
            float w4[4], u4[4];
            load_floats(w4, param + i);
            load_floats<true>(u4, update + i);
            for (int k = 0; k < 4; k++) w4[k] -= step * u4[k] + decay * w4[k];
            store_floats(param + i, w4);
            if (param_bf16) store_floats(param_bf16 + i, w4);
        }
    }
}

void muon_apply(Tensor param, Tensor param_bf16, Tensor update, const UpdateRow *rows, int row_count,
                const StepStats *stats) {
    check_muon_apply(param, param_bf16, update, muon_dtype);
    require_aligned_rows("muon", { param, param_bf16, update });
    op_begin("muon", op_bytes(4, param, param, update, param_bf16), 0);
    LAUNCH_EARLY(apply_kernel, (unsigned)ceil_div(tensor_count(param), SPAN), THREADS, 0, (float *)param.data,
                 (bf16 *)param_bf16.data, (const bf16 *)update.data, rows, row_count, stats);
    op_end();
}

/* ---- The norm of each matrix: PARTS blocks write partial sums, every block of the next kernel adds them up. */

enum { PARTS = 32 };

static __global__ void __launch_bounds__(THREADS)
norm_kernel(double *partial, const bf16 *x, int64_t size, int64_t stride) {
    wait_for_previous();
    double total = 0;
    for (int64_t i = blockIdx.x * THREADS + threadIdx.x; i < size; i += PARTS * THREADS) {
        const float value = to_float(x[blockIdx.y * stride + i]);
        total += (double)value * value;
    }
    total = block_sum(total);
    if (threadIdx.x == 0) partial[blockIdx.y * PARTS + blockIdx.x] = total;
}

static __global__ void __launch_bounds__(THREADS)
scale_kernel(bf16 *to, const bf16 *x, int64_t size, int64_t stride, const double *partial) {
    wait_for_previous();
    const double sum = warp_sum(partial[blockIdx.y * PARTS + threadIdx.x % 32]);
    const float scale = (float)(1 / (sqrt(sum) + 1e-7));
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < size) to[blockIdx.y * size + i] = from_float<bf16>(scale * to_float(x[blockIdx.y * stride + i]));
}

/* ---- Newton-Schulz */

/* Matrices of a batch as cuBLASLt sees them: column-major, packed. */
struct Batch { bf16 *data; int64_t rows, columns, stride; };

/* A batched GEMM's descriptors and algorithm, made once for each shape. */
struct Product {
    int64_t key[11];
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t a, b, c, d;
    cublasLtMatmulAlgo_t algorithm;
};

static cublasLtHandle_t handle;

static cublasLtMatrixLayout_t layout_of(const Batch &x, int count) {
    cublasLtMatrixLayout_t layout;
    CUBLAS(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, x.rows, x.columns, x.rows));
    CUBLAS(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    CUBLAS(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &x.stride,
                                            sizeof x.stride));
    return layout;
}

static const Product *product_of(const Batch &a, bool transpose_a, const Batch &b, bool transpose_b, const Batch &c,
                                 const Batch &d, int count) {
    enum { PRODUCTS = 64 };         /* a model has 13 for each of at most 2 batch sizes */
    static Product products[PRODUCTS];
    static int made;
    const int64_t key[] = { a.rows, a.columns, a.stride, b.rows, b.columns, b.stride, c.stride, d.stride, count,
                            transpose_a, transpose_b };
    for (int i = 0; i < made && i < PRODUCTS; i++)
        if (!memcmp(products[i].key, key, sizeof key)) return &products[i];
    Product *p = &products[made++ % PRODUCTS];
    if (made > PRODUCTS) {
        CUBLAS(cublasLtMatmulDescDestroy(p->matmul));
        for (cublasLtMatrixLayout_t layout : { p->a, p->b, p->c, p->d }) CUBLAS(cublasLtMatrixLayoutDestroy(layout));
    }
    memcpy(p->key, key, sizeof key);
    const cublasOperation_t op_a = transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_b = transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    CUBLAS(cublasLtMatmulDescCreate(&p->matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CUBLAS(cublasLtMatmulDescSetAttribute(p->matmul, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a));
    CUBLAS(cublasLtMatmulDescSetAttribute(p->matmul, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b));
    p->a = layout_of(a, count);
    p->b = layout_of(b, count);
    p->c = layout_of(c, count);
    p->d = layout_of(d, count);
    cublasLtMatmulPreference_t preference;      /* without a workspace: no split over K */
    cublasLtMatmulHeuristicResult_t result;
    const uint32_t alignment = 16;              /* bytes; channels are multiples of 8 */
    int found = 0;
    CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
    for (auto which : { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES })
        CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, which, &alignment, sizeof alignment));
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, p->matmul, p->a, p->b, p->c, p->d, preference,
                                                                 1, &result, &found);
    CUBLAS(cublasLtMatmulPreferenceDestroy(preference));
    REQUIRE(status == CUBLAS_STATUS_SUCCESS && found, "cublas: no algorithm for %d products (%lld,%lld) of Muon: %s",
            count, (long long)d.rows, (long long)d.columns, cublasGetStatusString(status));
    p->algorithm = result.algo;
    return p;
}

/* d = alpha a b + beta c */
static void multiply(const Batch &d, float alpha, const Batch &a, bool transpose_a, const Batch &b, bool transpose_b,
                     float beta, const Batch &c, int count) {
    const Product *p = product_of(a, transpose_a, b, transpose_b, c, d, count);
    CUBLAS(cublasLtMatmul(handle, p->matmul, &alpha, a.data, p->a, b.data, p->b, &beta, c.data, p->c, d.data, p->d,
                          &p->algorithm, NULL, 0, cuda_stream));
}

/* The partial sums, the next iterates, and two products of the shorter side's size. */
size_t muon_scratch_bytes(int64_t rows, int64_t columns, int count) {
    const int64_t S = min(rows, columns);
    return (size_t)count * (PARTS * sizeof(double) + (size_t)(rows * columns + 2 * S * S) * sizeof(bf16));
}

void muon_orthogonalize(Tensor x, int count, int64_t stride, void *scratch) {
    check_muon_orthogonalize(x, count, stride, muon_dtype);
    if (!handle) CUBLAS(cublasLtCreate(&handle));
    const int64_t rows = x.dim[0], columns = x.dim[1], S = min(rows, columns), size = rows * columns;
    const bool wide = rows <= columns;
    double *partial = (double *)scratch;
    bf16 *memory = (bf16 *)(partial + count * PARTS);
    op_begin("newton-schulz", 2 * op_bytes(1, x) * count, muon_flop(rows, columns) * count);
    LAUNCH_EARLY(norm_kernel, dim3(PARTS, count), THREADS, 0, partial, (const bf16 *)x.data, size, stride);
    LAUNCH_EARLY(scale_kernel, dim3((unsigned)ceil_div(size, THREADS), count), THREADS, 0, memory,
                 (const bf16 *)x.data, size, stride, (const double *)partial);
    /* as column-major matrices all are transposed */
    Batch to = { (bf16 *)x.data, columns, rows, stride }, from = { memory, columns, rows, size };
    const Batch gram = { memory + count * size, S, S, S * S }, sum = { gram.data + count * S * S, S, S, S * S };
    for (int i = 0; i < MUON_ITERATIONS; i++) {
        multiply(gram, 1, from, wide, from, !wide, 0, gram, count);
        multiply(sum, MUON_C, gram, false, gram, false, MUON_B, gram, count);
        if (wide) multiply(to, 1, from, false, sum, false, MUON_A, from, count);
        else      multiply(to, 1, sum, false, from, false, MUON_A, from, count);
        const Batch last = to;
        to = from;
        from = last;
    }
    op_end();
}
