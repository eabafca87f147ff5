/* gemm.c - GEMM by cuBLASLt, which takes column-major matrices: it computes c^T = b^T a^T. Descriptors and
   algorithm are made once per shape and kept. In training the algorithm is the fastest of those that the heuristic
   lists, measured on the operands when the shape is new (autotune.h). */
#include "../gemm.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <cublasLt.h>
#include <cublas_v2.h>
#include "cuda.h"
#include "../autotune.h"
#include "../device.h"
#include "../gelu.h"

enum {
    WORKSPACE_BYTES = 32 << 20,     /* NVIDIA's recommendation for Hopper */
    LISTED = 8,                     /* algorithms that are measured */
    FUSED = 100                     /* a choice is the place in the heuristic's list, + FUSED: with the GELU in it */
};

typedef struct { Gemm g; void *gelu; } Work;       /* gelu: of gemm_gelu; NULL = none */

/* What the choice of an algorithm depends on. Only int64_t, so that there is no padding for memcmp to compare. = and +=
   differ in a constant that is passed with every call, and share the choice. */
typedef struct {
    int64_t M, N, K, dtype, c_dtype, a_layout, a_pitch, b_layout, b_pitch, c_pitch;
    int64_t a_align, b_align, c_align, bias_align, gelu_align;      /* bytes; 0 = absent */
} Key;

typedef struct {
    cublasLtMatmulAlgo_t algorithm;
    int                  choice;
    float                ms;            /* time of a run; infinite: not measured, or it does not run */
} Candidate;

typedef struct {
    Key                    key;
    int64_t                last_use;    /* 0: the entry is empty */
    int                    has_choice;  /* 0: the default, which training replaces by a measured one */
    int                    version;     /* autotune_version when it was made */
    cublasLtMatmulDesc_t   matmul[2];           /* 1: with the GELU as its epilogue; NULL = none */
    cublasLtMatrixLayout_t a, b, c;
    Candidate              chosen;
} Plan;

static cublasLtHandle_t handle;
static void *workspace[2];      /* by cuda_side */

/* The largest power of two, up to 256, that divides the address and the pitch in bytes. */
static int64_t alignment(const void *data, int64_t pitch, DType dtype) {
    const uintptr_t bits = (uintptr_t)data | (uintptr_t)pitch * dtype_bytes(dtype) | 256;
    return (int64_t)(bits & -bits);
}

static cublasLtMatrixLayout_t layout_of(DType dtype, int64_t rows, int64_t columns, Layout layout, int64_t pitch) {
    const uint64_t height = (uint64_t)(layout == ROW_MAJOR ? rows : columns);       /* height of the matrix in memory */
    const uint64_t width  = (uint64_t)(layout == ROW_MAJOR ? columns : rows);
    cublasLtMatrixLayout_t x;
    CUBLAS(cublasLtMatrixLayoutCreate(&x, cuda_type(dtype), width, height, pitch));
    return x;
}

#define SET(matmul, which, value) \
    CUBLAS(cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_##which, &(value), sizeof(value)))
#define SET_PREFERENCE(which, value) \
    CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_##which, &(value), sizeof(value)))

/* GEMMs with results in f32, the gradients of weights, are often split over K, with the parts in the workspace. With
   results in bf16 cuBLASLt would keep a tile counter there, which a memset clears in front of the GEMM: with its gaps
   9 us each, 4 % of a step of d6, 2 % at 124M, B = 4. */
static size_t workspace_of(DType c_dtype) { return c_dtype == F32 ? WORKSPACE_BYTES : 0; }

/* The heuristic's first algorithms, the one it expects to be fastest first; returns how many there are, at most max.
   With split-K the parts are added in the workspace in a fixed order. */
static int list_algorithms(const Plan *plan, int fused, Candidate *list, int max) {
    const Key *key = &plan->key;
    const uint64_t workspace_bytes = workspace_of((DType)key->c_dtype);
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t a_align = (uint32_t)key->a_align, b_align = (uint32_t)key->b_align, c_align = (uint32_t)key->c_align;
    const uint32_t d_align = fused && key->gelu_align < key->c_align ? (uint32_t)key->gelu_align : c_align;
    cublasLtMatmulPreference_t preference;
    CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
    SET_PREFERENCE(MAX_WORKSPACE_BYTES, workspace_bytes);
    SET_PREFERENCE(REDUCTION_SCHEME_MASK, reduction);
    SET_PREFERENCE(MIN_ALIGNMENT_A_BYTES, b_align);      /* operand A of cuBLASLt is our b */
    SET_PREFERENCE(MIN_ALIGNMENT_B_BYTES, a_align);
    SET_PREFERENCE(MIN_ALIGNMENT_C_BYTES, c_align);
    SET_PREFERENCE(MIN_ALIGNMENT_D_BYTES, d_align);
    cublasLtMatmulHeuristicResult_t result[LISTED];
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, plan->matmul[fused], plan->b, plan->a, plan->c,
                                                                 plan->c, preference, max, result, &found);
    REQUIRE(fused || (status == CUBLAS_STATUS_SUCCESS && found),
            "cublas: no algorithm for (%lld,%lld) x (%lld,%lld), %s to %s: %s", (long long)key->M, (long long)key->K,
            (long long)key->K, (long long)key->N, dtype_name((DType)key->dtype), dtype_name((DType)key->c_dtype),
            cublasGetStatusString(status));
    if (status != CUBLAS_STATUS_SUCCESS) found = 0;
    for (int i = 0; i < found; i++)
        list[i] = (Candidate){ .algorithm = result[i].algo, .choice = fused ? FUSED + i : i, .ms = INFINITY };
    CUBLAS(cublasLtMatmulPreferenceDestroy(preference));
    return found;
}

/* Sums are in f32 throughout: with FAST_ACCUM, which keeps fewer bits, the products of 48 blocks of 1558M take 2 % less
   (127.6 and 132.6 ms, H100, 2026-11-28). */
static void set_e4m3(cublasLtMatmulDesc_t matmul, const Gemm *g) {
    const cudaDataType_t bias_type = CUDA_R_16BF;
    SET(matmul, A_SCALE_POINTER, g->b_max);
    SET(matmul, B_SCALE_POINTER, g->a_max);
    SET(matmul, BIAS_DATA_TYPE, bias_type);
}

/* Enqueues the GEMM, and its GELU. */
static cublasStatus_t run(const Plan *plan, const Work *w, const Candidate *candidate) {
    const Gemm *g = &w->g;
    const int fused = candidate->choice >= FUSED;
    const cublasLtMatmulDesc_t matmul = plan->matmul[fused];
    const float alpha = g->dtype == E4M3 ? 1 / (E4M3_MAX * E4M3_MAX) : 1, beta = g->into == ACCUMULATE ? 1.0f : 0.0f;
    if (g->bias) SET(matmul, BIAS_POINTER, g->bias);
    if (g->dtype == E4M3) set_e4m3(matmul, g);
    if (fused) SET(matmul, EPILOGUE_AUX_POINTER, g->c);
    const cublasStatus_t status = cublasLtMatmul(handle, matmul, &alpha, g->b.data, plan->b, g->a.data, plan->a, &beta,
                                                 g->c, plan->c, fused ? w->gelu : g->c, plan->c, &candidate->algorithm,
                                                 workspace[cuda_side], workspace_of(g->c_dtype), cuda_stream);
    if (status == CUBLAS_STATUS_SUCCESS && w->gelu && !fused)
        gelu_forward(tensor_of(w->gelu, g->dtype, 2, g->M, g->N), tensor_of(g->c, g->dtype, 2, g->M, g->N));
    return status;
}

/* ---- Measuring */

/* Milliseconds per run, of `times` runs; infinite if the algorithm does not run. */
static float run_ms(const Plan *plan, const Work *w, const Candidate *candidate, int times) {
    static DeviceMark begin, end;
    device_mark(&begin);
    for (int i = 0; i < times; i++)
        if (run(plan, w, candidate)) return INFINITY;
    device_mark(&end);
    return (float)device_mark_ms(&begin, &end) / (float)times;
}

/* The fastest candidate's choice. A later candidate must be faster by 2 %: fused ones, which move fewer bytes, come
   first, then the heuristic's order. The first run of each loads its code. Those within 1.2 of the best are measured
   again in turn, three times about 0.5 ms: the clock changes with the power that the GEMM before has drawn. */
static int fastest(const Plan *plan, const Work *w, Candidate *list, int count) {
    float best_ms = INFINITY;
    for (int i = 0; i < count; i++) {
        list[i].ms = run_ms(plan, w, &list[i], 1) < INFINITY ? run_ms(plan, w, &list[i], 1) : INFINITY;
        best_ms = fminf(best_ms, list[i].ms);
    }
    const float limit = 1.2f * best_ms;
    const int times = (int)fminf(fmaxf(0.5f / best_ms, 1), 20);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < count; i++)
            if (list[i].ms <= limit) list[i].ms = fminf(list[i].ms, run_ms(plan, w, &list[i], times));
    const Candidate *best = list;
    for (int i = 1; i < count; i++)
        if (list[i].ms < 0.98f * best->ms) best = &list[i];
    return best->ms < INFINITY ? best->choice : 0;
}

/* A matrix that is added to is left alone: its GEMMs go to scratch memory. Without memory the choice is the default. */
static int measure(const Plan *plan, Work w, Candidate *list, int count) {
    CUDA(cudaDeviceSynchronize());          /* an earlier part may be running beside it */
    if (w.g.into == OVERWRITE) return fastest(plan, &w, list, count);
    if (cudaMalloc(&w.g.c, (size_t)(w.g.M * w.g.c_pitch) * dtype_bytes(w.g.c_dtype))) {
        cudaGetLastError();
        return 0;
    }
    const int choice = fastest(plan, &w, list, count);
    CUDA(cudaFree(w.g.c));
    return choice;
}

/* ---- Plans */

/* The shape as the name of its choice. */
static void key_name(const Key *k, char name[150]) {
    snprintf(name, 150, "gemm%s %lldx%lldx%lld %s %s %c%lld %c%lld %lld align %lld,%lld,%lld,%lld,%lld",
             k->gelu_align ? "+gelu" : "", (long long)k->M, (long long)k->N, (long long)k->K,
             dtype_name((DType)k->dtype), dtype_name((DType)k->c_dtype), k->a_layout == ROW_MAJOR ? 'r' : 'c',
             (long long)k->a_pitch, k->b_layout == ROW_MAJOR ? 'r' : 'c', (long long)k->b_pitch,
             (long long)k->c_pitch, (long long)k->a_align, (long long)k->b_align, (long long)k->c_align,
             (long long)k->bias_align, (long long)k->gelu_align);
}

static cublasLtMatmulDesc_t matmul_create(const Gemm *g, int fused) {
    const cublasOperation_t operation[] = { [ROW_MAJOR] = CUBLAS_OP_N, [COLUMN_MAJOR] = CUBLAS_OP_T };
    const cublasLtEpilogue_t epilogue = fused ? g->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX
                                              : g->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    cublasLtMatmulDesc_t matmul;
    CUBLAS(cublasLtMatmulDescCreate(&matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    SET(matmul, TRANSA, operation[g->b.layout]);
    SET(matmul, TRANSB, operation[g->a.layout]);
    if (fused) SET(matmul, EPILOGUE_AUX_LD, g->c_pitch);
    if (fused) SET(matmul, EPILOGUE_AUX_POINTER, g->c);             /* the heuristic looks at its alignment */
    SET(matmul, EPILOGUE, epilogue);
    if (g->bias) SET(matmul, BIAS_POINTER, g->bias);                /* the same */
    if (g->dtype == E4M3) set_e4m3(matmul, g);
    return matmul;
}

/* The default, the heuristic's first without a fused GELU, or the choice that training has made or makes now. */
static void plan_choose(Plan *plan, const Work *w) {
    Candidate list[2 * LISTED];
    char name[150];
    key_name(&plan->key, name);
    int choice = autotune_find(name);
    const int is_default = choice < 0 && !autotune_enabled(), max = is_default ? 1 : LISTED;
    const int fused = plan->matmul[1] && !is_default ? list_algorithms(plan, 1, list, max) : 0;
    const int count = fused + list_algorithms(plan, 0, list + fused, max);
    if (choice < 0 && autotune_enabled()) {
        choice = measure(plan, *w, list, count);
        autotune_add(name, choice);
    }
    const Candidate *chosen = &list[fused];
    for (int i = 0; i < count; i++)
        if (list[i].choice == choice) chosen = &list[i];
    plan->chosen = *chosen;
    plan->has_choice = choice >= 0;
    plan->version = autotune_version();
}

static void plan_create(Plan *plan, const Work *w, const Key *key) {
    const Gemm *g = &w->g;
    /* cuBLASLt wants rows of c that are multiples of 8 elements. Not for f32, whose GELU here is exact to f32. */
    const int can_fuse = w->gelu && g->dtype == BF16 && g->c_pitch % 8 == 0 && (uintptr_t)g->c % 16 == 0;
    plan->key = *key;
    plan->matmul[0] = matmul_create(g, 0);
    plan->matmul[1] = can_fuse ? matmul_create(g, 1) : NULL;
    plan->a = layout_of(g->dtype, g->M, g->K, g->a.layout, g->a.pitch);
    plan->b = layout_of(g->dtype, g->K, g->N, g->b.layout, g->b.pitch);
    plan->c = layout_of(g->c_dtype, g->M, g->N, ROW_MAJOR, g->c_pitch);
    plan_choose(plan, w);
}

static void plan_destroy(Plan *plan) {
    for (int i = 0; i < 2; i++)
        if (plan->matmul[i]) CUBLAS(cublasLtMatmulDescDestroy(plan->matmul[i]));
    CUBLAS(cublasLtMatrixLayoutDestroy(plan->a));
    CUBLAS(cublasLtMatrixLayoutDestroy(plan->b));
    CUBLAS(cublasLtMatrixLayoutDestroy(plan->c));
}

/* A training step has some 20 shapes; sampling adds new ones with every length of its text, which replace the least
   recently used. */
static Plan *plan_find(const Work *w) {
    static Plan plans[128];
    static int64_t uses;
    const Gemm *g = &w->g;
    const Key key = {
        .M = g->M, .N = g->N, .K = g->K, .dtype = g->dtype, .c_dtype = g->c_dtype,
        .a_layout = g->a.layout, .a_pitch = g->a.pitch, .b_layout = g->b.layout, .b_pitch = g->b.pitch,
        .c_pitch = g->c_pitch, .a_align = alignment(g->a.data, g->a.pitch, g->dtype),
        .b_align = alignment(g->b.data, g->b.pitch, g->dtype), .c_align = alignment(g->c, g->c_pitch, g->c_dtype),
        .bias_align = g->bias ? alignment(g->bias, 0, g->dtype) : 0,
        .gelu_align = w->gelu ? alignment(w->gelu, g->c_pitch, g->dtype) : 0
    };
    Plan *oldest = &plans[0], *end = plans + sizeof plans / sizeof *plans;
    for (Plan *plan = plans; plan < end; plan++) {
        if (plan->last_use && memcmp(&plan->key, &key, sizeof key) == 0) {
            oldest = plan;
            if (plan->version != autotune_version() || (autotune_enabled() && !plan->has_choice)) break;    /* again */
            plan->last_use = ++uses;
            return plan;
        }
        if (plan->last_use < oldest->last_use) oldest = plan;
    }
    if (oldest->last_use) plan_destroy(oldest);
    oldest->last_use = 0;                   /* in case the next line fails and the fail_hook does not exit */
    plan_create(oldest, w, &key);
    oldest->last_use = ++uses;
    return oldest;
}

const char *gemm_name(void) {
    static char text[40];
    const int version = (int)cublasLtGetVersion();
    snprintf(text, sizeof text, "cuBLASLt %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    return text;
}

static void execute(Work w) {
    if (gemv(&w.g, w.gelu)) return;
    if (!handle) CUBLAS(cublasLtCreate(&handle));
    void **own = &workspace[cuda_side];
    if (!*own) *own = device_alloc(WORKSPACE_BYTES, "the workspace of cuBLASLt");
    const Plan *plan = plan_find(&w);
    CUBLAS(run(plan, &w, &plan->chosen));
}

void gemm(Gemm g)                 { execute((Work){ .g = g }); }
void gemm_gelu(Gemm g, void *out) { execute((Work){ .g = g, .gelu = out }); }
