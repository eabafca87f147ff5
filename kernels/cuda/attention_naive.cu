/* kernels/cuda/attention_naive.cu - Attention as the formula says, all of P in memory: the baseline for flash.
   One cuBLAS call serves the heads of one sequence, with q, k and v as they lie. Sequence after sequence, so that the
   scores and dP can be f32 (rounded to bf16, a score of 9 would be off by up to 0.03, and P by 3 %) in a
   workspace that does not grow with B: 48 MiB at T = 1024 with 12 heads. */
#include <cublas_v2.h>
#include "attention_cuda.h"
#include "common.cuh"

/* ---- softmax: one warp per row, f32 inside, a fixed order of every sum */

enum { WARPS = 8 };

/* The row of this warp among the (NH,Tq) rows of one sequence, which sees the first so many keys. */
struct Row { int64_t row; int seen, lane; };

__device__ inline Row row_of_warp(const AttentionSpec &s, int diagonal) {
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int position = s.position ? *s.position : 0;
    return { row, max(0, min(diagonal + position + (int)(row % s.Tq) + 1, s.Tk)), (int)threadIdx.x % 32 };
}

/* P = softmax(scale scores) and lse; columns behind the last key that is seen become 0, up to the pitch. */
template <class T>
static __global__ void softmax_kernel(AttentionSpec spec, int diagonal, T *P, float *lse, int64_t lse_pitch,
                                      const float *scores, int pitch) {
    const Row r = row_of_warp(spec, diagonal);
    if (r.row >= (int64_t)spec.NH * spec.Tq) return;
    const float *s = scores + r.row * pitch;
    T *p = P + r.row * pitch;
    float row_max = -INFINITY, total = 0;
    for (int j = r.lane; j < r.seen; j += 32) row_max = fmaxf(row_max, spec.scale * s[j]);
    row_max = warp_max(row_max);
    for (int j = r.lane; j < r.seen; j += 32) total += expf(spec.scale * s[j] - row_max);
    total = warp_sum(total);
    if (r.lane == 0)                                            /* -infinity where no key is seen */
        lse[r.row / spec.Tq * lse_pitch + r.row % spec.Tq] = row_max + logf(total);
    for (int j = r.lane; j < pitch; j += 32)
        p[j] = from_float<T>(j < r.seen ? expf(spec.scale * s[j] - row_max) / total : 0.0f);
}

/* dS = scale P (dP - rowsum(P dP)), with the same zeros. dS may be dP: each thread reads an element before it writes
   it, and no other thread does. */
template <class T>
static __global__ void softmax_backward_kernel(AttentionSpec spec, int diagonal, T *dS, const T *P, const float *dP,
                                               int pitch) {
    const Row r = row_of_warp(spec, diagonal);
    if (r.row >= (int64_t)spec.NH * spec.Tq) return;
    const T *p = P + r.row * pitch;
    const float *dp = dP + r.row * pitch;
    T *ds = dS + r.row * pitch;
    float mean = 0;
    for (int j = r.lane; j < r.seen; j += 32) mean += to_float(p[j]) * dp[j];
    mean = warp_sum(mean);
    for (int j = r.lane; j < pitch; j += 32)
        ds[j] = from_float<T>(j < r.seen ? spec.scale * to_float(p[j]) * (dp[j] - mean) : 0.0f);
}

/* ---- GEMMs by cuBLAS */

/* One matrix for each head of a sequence, stride elements apart. */
struct Heads { void *data; DType dtype; int64_t pitch, stride; };
enum Layout { ROW_MAJOR, COLUMN_MAJOR };

static Heads heads_of(Tensor t, const AttentionSpec *s, int64_t b) {
    return { (char *)t.data + (size_t)(b * t.dim[1] * t.pitch) * dtype_bytes(t.dtype), t.dtype, t.pitch, s->HS };
}

/* The rows of the (Tq,Tk) matrices begin on 16 bytes whatever Tk is: cuBLAS takes 16 bytes at a time then. */
static int64_t row_pitch(const AttentionSpec *s)   { return ceil_div(s->Tk, 8) * 8; }
static size_t  score_count(const AttentionSpec *s) { return (size_t)s->NH * (size_t)s->Tq * (size_t)row_pitch(s); }

static Heads scores_of(void *data, DType dtype, const AttentionSpec *s) {
    return { data, dtype, row_pitch(s), s->Tq * row_pitch(s) };
}

/* P of sequence b */
static Heads P_of(const void *kept, const AttentionSpec *s, int64_t b) {
    return scores_of((char *)kept + (size_t)b * score_count(s) * dtype_bytes(s->dtype), s->dtype, s);
}

static cublasHandle_t cublas;

static void open_cublas(void) {
    if (!cublas) {
        CUBLAS(cublasCreate(&cublas));
        CUBLAS(cublasSetMathMode(cublas, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
    }
    CUBLAS(cublasSetStream(cublas, cuda_stream));
}

/* c (M,N) = or += a b for each head. cuBLAS is column-major: it sees the transposed matrices, and c^T = b^T a^T. */
static void matmul(const AttentionSpec *s, Heads c, int M, int N, int K, Heads a, Layout a_layout,
                   Heads b, Layout b_layout, Into into) {
    const float one = 1, beta = into == ACCUMULATE;
    CUBLAS(cublasGemmStridedBatchedEx(cublas, b_layout == COLUMN_MAJOR ? CUBLAS_OP_T : CUBLAS_OP_N,
                                      a_layout == COLUMN_MAJOR ? CUBLAS_OP_T : CUBLAS_OP_N, N, M, K,
                                      &one, b.data, cuda_type(b.dtype), (int)b.pitch, b.stride,
                                      a.data, cuda_type(a.dtype), (int)a.pitch, a.stride,
                                      &beta, c.data, cuda_type(c.dtype), (int)c.pitch, c.stride, s->NH,
                                      s->dtype == F32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F,
                                      CUBLAS_GEMM_DEFAULT));
}

/* ---- the two passes */

static size_t probability_bytes(const AttentionSpec *s) {
    return (size_t)s->B * score_count(s) * dtype_bytes(s->dtype);
}

/* Of one sequence: the scores or dP in f32; dS overwrites dP where it is f32, too, and lies behind it in bf16. */
static size_t workspace_bytes(const AttentionSpec *s) {
    return score_count(s) * (s->dtype == F32 ? sizeof(float) : sizeof(float) + dtype_bytes(s->dtype));
}

/* P = softmax(scale q k^T), out = P v */
template <class T>
static void forward_as(const AttentionSpec *s, Tensor out, Tensor lse, void *kept, Tensor q, Tensor k, Tensor v,
                       void *work) {
    const int blocks = (int)ceil_div((int64_t)s->NH * s->Tq, WARPS), pitch = (int)row_pitch(s);
    const Heads scores = scores_of(work, F32, s);
    for (int b = 0; b < s->B; b++) {
        const Heads P = P_of(kept, s, b);
        matmul(s, scores, s->Tq, s->Tk, s->HS, heads_of(q, s, b), ROW_MAJOR, heads_of(k, s, b), COLUMN_MAJOR,
               OVERWRITE);
        LAUNCH(softmax_kernel<T>, blocks, 32 * WARPS, 0, *s, attention_diagonal(s), (T *)P.data,
               (float *)lse.data + b * s->NH * lse.pitch, lse.pitch, (const float *)scores.data, pitch);
        matmul(s, heads_of(out, s, b), s->Tq, s->HS, s->Tk, P, ROW_MAJOR, heads_of(v, s, b), ROW_MAJOR, OVERWRITE);
    }
}

static void forward(const AttentionSpec *s, Tensor out, Tensor lse, void *kept, Tensor q, Tensor k, Tensor v,
                    void *work) {
    attention_check_forward(&attention_naive, s, out, lse, q, k, v);
    open_cublas();
    (s->dtype == F32 ? forward_as<float> : forward_as<__nv_bfloat16>)(s, out, lse, kept, q, k, v, work);
}

/* dv = P^T dout, dP = dout v^T, dS = scale P (dP - rowsum(P dP)), dq = dS k, dk = dS^T q */
template <class T>
static void backward_as(const AttentionSpec *s, Tensor dq, Tensor dk, Tensor dv, Tensor dout,
                        const void *kept, Tensor q, Tensor k, Tensor v, void *work) {
    const int blocks = (int)ceil_div((int64_t)s->NH * s->Tq, WARPS), pitch = (int)row_pitch(s);
    const Heads dP = scores_of(work, F32, s);
    const Heads dS = s->dtype == F32 ? dP : scores_of((float *)work + score_count(s), s->dtype, s);
    for (int b = 0; b < s->B; b++) {
        const Heads P = P_of(kept, s, b), g = heads_of(dout, s, b);
        matmul(s, heads_of(dv, s, b), s->Tk, s->HS, s->Tq, P, COLUMN_MAJOR, g, ROW_MAJOR, s->dqkv_into);
        matmul(s, dP, s->Tq, s->Tk, s->HS, g, ROW_MAJOR, heads_of(v, s, b), COLUMN_MAJOR, OVERWRITE);
        LAUNCH(softmax_backward_kernel<T>, blocks, 32 * WARPS, 0, *s, attention_diagonal(s), (T *)dS.data,
               (const T *)P.data, (const float *)dP.data, pitch);
        matmul(s, heads_of(dq, s, b), s->Tq, s->HS, s->Tk, dS, ROW_MAJOR, heads_of(k, s, b), ROW_MAJOR, s->dqkv_into);
        matmul(s, heads_of(dk, s, b), s->Tk, s->HS, s->Tq, dS, COLUMN_MAJOR, heads_of(q, s, b), ROW_MAJOR,
               s->dqkv_into);
    }
}

static void backward(const AttentionSpec *s, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse,
                     const void *kept, Tensor q, Tensor k, Tensor v, void *work) {
    attention_check_backward(&attention_naive, s, dq, dk, dv, dout, out, lse, q, k, v);
    open_cublas();
    (s->dtype == F32 ? backward_as<float> : backward_as<__nv_bfloat16>)(s, dq, dk, dv, dout, kept, q, k, v, work);
}

const Attention attention_naive = {
    .name = "naive", .refuse = attention_refuse_on_cuda,
    .kept_bytes = probability_bytes, .workspace_bytes = workspace_bytes,
    .forward = forward, .backward = backward
};
