/* kernels/cuda/gemm.c - GEMM by cuBLASLt, which takes column-major matrices: it computes c^T = b^T a^T. Descriptors and
   algorithm are made once per shape and cached. */
#include "../gemm.h"
#include <string.h>
#include <cublasLt.h>
#include <cublas_v2.h>
#include "cuda.h"
#include "gemv.h"
#include "../device.h"

enum { WORKSPACE_BYTES = 32 << 20 };    /* NVIDIA's recommendation for Hopper */

/* What the choice of an algorithm depends on. Only int64_t, so that there is no padding for memcmp to compare. */
typedef struct {
    int64_t M, N, K, dtype, c_dtype, into, a_layout, a_pitch, b_layout, b_pitch, c_pitch;
    int64_t a_align, b_align, c_align, bias_align;      /* bytes; 0 = no bias */
} Key;

typedef struct {
    Key                    key;
    int64_t                last_use;    /* 0: the entry is empty */
    cublasLtMatmulDesc_t   matmul;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t   algorithm;
} Plan;

static cublasLtHandle_t handle;
static void *workspace;

/* The largest power of two, up to 256, that divides the address and the pitch in bytes. */
static int64_t alignment(const void *data, int64_t pitch, DType dtype) {
    const uintptr_t bits = (uintptr_t)data | (uintptr_t)pitch * dtype_bytes(dtype) | 256;
    return (int64_t)(bits & -bits);
}

/* rows x columns of the matrix in memory, row after row */
static void layout_create(cublasLtMatrixLayout_t *layout, DType dtype, int64_t rows, int64_t columns, int64_t pitch) {
    CUBLAS(cublasLtMatrixLayoutCreate(layout, cuda_type(dtype), (uint64_t)columns, (uint64_t)rows, pitch));
}

static void operand_create(cublasLtMatrixLayout_t *layout, DType dtype, int64_t rows, int64_t columns, Operand x) {
    if (x.layout == ROW_MAJOR) layout_create(layout, dtype, rows, columns, x.pitch);
    else                       layout_create(layout, dtype, columns, rows, x.pitch);
}

#define SET_MATMUL(plan, which, value) \
    CUBLAS(cublasLtMatmulDescSetAttribute((plan)->matmul, CUBLASLT_MATMUL_DESC_##which, &(value), sizeof(value)))
#define SET_PREFERENCE(which, value) \
    CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_##which, &(value), sizeof(value)))

/* The heuristic's first algorithm. With split-K the parts are added in the workspace in a fixed order. */
static void plan_choose(Plan *plan) {
    const Key *key = &plan->key;
    const uint64_t workspace_bytes = WORKSPACE_BYTES;
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t a_align = (uint32_t)key->a_align, b_align = (uint32_t)key->b_align, c_align = (uint32_t)key->c_align;
    cublasLtMatmulPreference_t preference;
    CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
    SET_PREFERENCE(MAX_WORKSPACE_BYTES, workspace_bytes);
    SET_PREFERENCE(REDUCTION_SCHEME_MASK, reduction);
    SET_PREFERENCE(MIN_ALIGNMENT_A_BYTES, b_align);      /* operand A of cuBLASLt is our b */
    SET_PREFERENCE(MIN_ALIGNMENT_B_BYTES, a_align);
    SET_PREFERENCE(MIN_ALIGNMENT_C_BYTES, c_align);
    SET_PREFERENCE(MIN_ALIGNMENT_D_BYTES, c_align);
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, plan->matmul, plan->b, plan->a, plan->c,
                                                                 plan->c, preference, 1, &result, &found);
    REQUIRE(status == CUBLAS_STATUS_SUCCESS && found,
            "cublas: no algorithm for (%lld,%lld) x (%lld,%lld), %s to %s: %s", (long long)key->M, (long long)key->K,
            (long long)key->K, (long long)key->N, dtype_name((DType)key->dtype), dtype_name((DType)key->c_dtype),
            cublasGetStatusString(status));
    plan->algorithm = result.algo;
    CUBLAS(cublasLtMatmulPreferenceDestroy(preference));
}

static void plan_create(Plan *plan, const Gemm *g, const Key *key) {
    const cublasOperation_t operation[] = { [ROW_MAJOR] = CUBLAS_OP_N, [COLUMN_MAJOR] = CUBLAS_OP_T };
    plan->key = *key;
    CUBLAS(cublasLtMatmulDescCreate(&plan->matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    SET_MATMUL(plan, TRANSA, operation[g->b.layout]);
    SET_MATMUL(plan, TRANSB, operation[g->a.layout]);
    if (g->bias) {
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        SET_MATMUL(plan, EPILOGUE, epilogue);
        SET_MATMUL(plan, BIAS_POINTER, g->bias);        /* the heuristic looks at its alignment */
    }
    operand_create(&plan->a, g->dtype, g->M, g->K, g->a);
    operand_create(&plan->b, g->dtype, g->K, g->N, g->b);
    layout_create(&plan->c, g->c_dtype, g->M, g->N, g->c_pitch);
    plan_choose(plan);
}

static void plan_destroy(Plan *plan) {
    CUBLAS(cublasLtMatmulDescDestroy(plan->matmul));
    CUBLAS(cublasLtMatrixLayoutDestroy(plan->a));
    CUBLAS(cublasLtMatrixLayoutDestroy(plan->b));
    CUBLAS(cublasLtMatrixLayoutDestroy(plan->c));
}

/* A training step has some 20 shapes; sampling adds new ones with every length of its text, which replace the least
   recently used. */
static Plan *plan_find(const Gemm *g) {
    static Plan plans[128];
    static int64_t uses;
    const Key key = {
        .M = g->M, .N = g->N, .K = g->K, .dtype = g->dtype, .c_dtype = g->c_dtype, .into = g->into,
        .a_layout = g->a.layout, .a_pitch = g->a.pitch, .b_layout = g->b.layout, .b_pitch = g->b.pitch,
        .c_pitch = g->c_pitch, .a_align = alignment(g->a.data, g->a.pitch, g->dtype),
        .b_align = alignment(g->b.data, g->b.pitch, g->dtype), .c_align = alignment(g->c, g->c_pitch, g->c_dtype),
        .bias_align = g->bias ? alignment(g->bias, 0, g->dtype) : 0
    };
    Plan *oldest = &plans[0], *end = plans + sizeof plans / sizeof *plans;
    for (Plan *plan = plans; plan < end; plan++) {
        if (plan->last_use && memcmp(&plan->key, &key, sizeof key) == 0) {
            plan->last_use = ++uses;
            return plan;
        }
        if (plan->last_use < oldest->last_use) oldest = plan;
    }
    if (oldest->last_use) plan_destroy(oldest);
    oldest->last_use = 0;                   /* in case the next line fails and the fail_hook does not exit */
    plan_create(oldest, g, &key);
    oldest->last_use = ++uses;
    return oldest;
}

const char *gemm_name(void) { return "cuBLASLt"; }

void gemm(Gemm g) {
    if (gemv(&g)) return;
    if (!handle) CUBLAS(cublasLtCreate(&handle));
    if (!workspace) workspace = device_alloc(WORKSPACE_BYTES, "the workspace of cuBLASLt");
    Plan *plan = plan_find(&g);
    const float one = 1.0f, beta = g.into == ACCUMULATE ? 1.0f : 0.0f;
    if (g.bias) SET_MATMUL(plan, BIAS_POINTER, g.bias);
    CUBLAS(cublasLtMatmul(handle, plan->matmul, &one, g.b.data, plan->b, g.a.data, plan->a, &beta, g.c, plan->c,
                          g.c, plan->c, &plan->algorithm, workspace, WORKSPACE_BYTES, cuda_stream));
}
