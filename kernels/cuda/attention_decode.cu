/* attention_decode.cu - Attention of a few queries over many keys, as in generation: flash decoding (Dao et al. 2023,
   "Flash-Decoding for long-context inference"; README.md, "Attention over a cache"). A warp reads 512 contiguous bytes
   of a key: several heads, LANES lanes with 16 bytes each to a head. 16 warps with 2 STEP loads in flight each are up
   to 128 KiB on an SM; 4.25 TB/s at 0.8 us of latency need 26. */
#include "attention_cuda.h"
#include "ptx.cuh"
#include <cfloat>

enum { MAX_QUERIES = 8, WARPS = 16, THREADS = 32 * WARPS, STEP = 8, SPLITS_MAX = 132, MAX_HEAD_GROUPS = 1 << 16 };

/* Splits whose results are written, for each query and group of heads. The last block sets it to 0 again. */
static __device__ unsigned finished[MAX_HEAD_GROUPS];

/* Results of one split, one query and one head: columns of out, not yet divided by total; scores in units of log2. */
struct Partial { float *sums, *row_max, *total; };

__device__ static inline Partial partial_of(void *work, int64_t rows, int splits, int HS) {
    float *sums = (float *)work, *row_max = sums + rows * splits * HS;
    return { sums, row_max, row_max + rows * splits };
}

/* The block's heads of one query: blockIdx.x is the group of heads, y the split, z the query of a sequence. */
template <class T, int LANES> static __global__ void __launch_bounds__(THREADS)
decode_kernel(AttentionSpec s, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, void *work) {
    constexpr int SIZE = Pack<T>::SIZE, HEADS = 32 / LANES, COLUMNS = 32 * SIZE, SLICES = THREADS / COLUMNS;
    __shared__ float sums_of[WARPS][COLUMNS], max_of[SPLITS_MAX][HEADS], total_of[SPLITS_MAX][HEADS];
    __shared__ bool is_last;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, splits = gridDim.y, split = blockIdx.y;
    const int head = blockIdx.x * HEADS + lane / LANES, column = lane % LANES * SIZE;
    const int64_t b = blockIdx.z / s.Tq, i = blockIdx.z % s.Tq, place = head * s.HS + column;
    const bool mine = head < s.NH && column < s.HS;
    wait_for_previous();
    const int seen = max(0, min(s.q0 + (s.position ? *s.position : 0) + (int)i + 1, s.Tk));
    const int begin = (int)((int64_t)seen * split / splits), end = (int)((int64_t)seen * (split + 1) / splits);
    const T *keys = (const T *)k.data + b * s.Tk * k.pitch + place;
    const T *values = (const T *)v.data + b * s.Tk * v.pitch + place;

    float query[SIZE] = {}, sums[SIZE] = {}, row_max = -FLT_MAX, total = 0;     /* finite: it is subtracted */
    if (mine) Pack<T>::load((const T *)q.data + (b * s.Tq + i) * q.pitch + place).to_float(query);
    for (int c = 0; c < SIZE; c++) query[c] *= s.scale * LOG2E;
    for (int j0 = begin + warp; j0 < end; j0 += STEP * WARPS) {
        Pack<T> key[STEP] = {}, value[STEP] = {};
        float score[STEP], new_max = row_max;
        if (mine) {
            #pragma unroll
            for (int n = 0; n < STEP; n++) {
                const int j = min(j0 + n * WARPS, end - 1);
                key[n] = Pack<T>::load_once(keys + j * k.pitch);
                value[n] = Pack<T>::load_once(values + j * v.pitch);
            }
        }
        #pragma unroll
        for (int n = 0; n < STEP; n++) {
            float x[SIZE], dot = 0;
            key[n].to_float(x);
            for (int c = 0; c < SIZE; c++) dot += query[c] * x[c];
            dot = warp_sum<LANES>(dot);
            score[n] = j0 + n * WARPS < end ? dot : -INFINITY;
            new_max = fmaxf(new_max, score[n]);
        }
        const float rescale = ex2(row_max - new_max);
        row_max = new_max;
        total *= rescale;
        for (int c = 0; c < SIZE; c++) sums[c] *= rescale;
        #pragma unroll
        for (int n = 0; n < STEP; n++) {
            float x[SIZE];
            const float P = ex2(score[n] - row_max);
            value[n].to_float(x);
            total += P;
            for (int c = 0; c < SIZE; c++) sums[c] += P * x[c];
        }
    }

    /* the merge of the warps */
    for (int c = 0; c < SIZE; c++) sums_of[warp][lane * SIZE + c] = sums[c];
    if (lane % LANES == 0) {
        max_of[warp][lane / LANES] = row_max;
        total_of[warp][lane / LANES] = total;
    }
    __syncthreads();
    const int at = threadIdx.x % COLUMNS, slice = threadIdx.x / COLUMNS, of = at / (LANES * SIZE);   /* of: its head */
    const int h = blockIdx.x * HEADS + of, c = at % (LANES * SIZE);
    const int64_t row = (b * s.NH + h) * s.Tq + i, rows = (int64_t)s.B * s.NH * s.Tq;       /* (b, h, i) of (B,NH,Tq) */
    const bool valid = h < s.NH && c < s.HS;
    float merged_max = -FLT_MAX, merged_total = 0, merged = 0;
    for (int w = 0; w < WARPS; w++) merged_max = fmaxf(merged_max, max_of[w][of]);
    for (int w = 0; w < WARPS; w++) {
        const float weight = ex2(max_of[w][of] - merged_max);
        merged_total += weight * total_of[w][of];
        merged += weight * sums_of[w][at];
    }

    /* the merge of the splits */
    if (splits > 1) {
        const Partial part = partial_of(work, rows, splits, s.HS);
        if (slice == 0 && valid) {
            part.sums[(row * splits + split) * s.HS + c] = merged;
            if (c == 0) {
                part.row_max[row * splits + split] = merged_max;
                part.total[row * splits + split] = merged_total;
            }
        }
        __threadfence();
        __syncthreads();
        unsigned *counter = &finished[blockIdx.z * gridDim.x + blockIdx.x];
        if (threadIdx.x == 0) is_last = atomicInc(counter, (unsigned)splits - 1) == (unsigned)splits - 1;
        __syncthreads();
        if (!is_last) return;
        __threadfence();
        for (int n = threadIdx.x; n < splits * HEADS; n += THREADS) {
            const int64_t near = min(blockIdx.x * HEADS + n % HEADS, s.NH - 1);
            const int64_t from = ((b * s.NH + near) * s.Tq + i) * splits + n / HEADS;
            max_of[n / HEADS][n % HEADS] = __ldcg(part.row_max + from);
            total_of[n / HEADS][n % HEADS] = __ldcg(part.total + from);
        }
        __syncthreads();
        merged_max = -FLT_MAX;
        merged_total = merged = 0;
        for (int n = 0; n < splits; n++) merged_max = fmaxf(merged_max, max_of[n][of]);
        for (int n = 0; n < splits; n++) merged_total += ex2(max_of[n][of] - merged_max) * total_of[n][of];
        #pragma unroll 8
        for (int n = slice; n < splits; n += SLICES)
            if (valid) merged += ex2(max_of[n][of] - merged_max) * __ldcg(part.sums + (row * splits + n) * s.HS + c);
        sums_of[slice][at] = merged;
        __syncthreads();
        merged = 0;
        for (int n = 0; n < SLICES; n++) merged += sums_of[n][at];
    }
    if (slice || !valid) return;
    const float result = seen ? merged / merged_total : 0.0f;
    const int64_t to = (b * s.Tq + i) * out.pitch + h * s.HS + c;
    if (out.dtype == F32) ((float *)out.data)[to] = result;
    else                  ((T *)out.data)[to] = from_float<T>(result);
    if (c == 0)
        ((float *)lse.data)[(b * s.NH + h) * lse.pitch + i] = seen ? (merged_max + log2f(merged_total)) * LN2
                                                                   : -INFINITY;
}

/* ---- host */

/* Lanes of a head: its 16-byte parts, rounded up to a power of two, at least 2. */
static int lanes_of(const AttentionSpec *s) {
    const int parts = s->HS * (int)dtype_bytes(s->dtype) / 16;
    int lanes = 2;
    while (lanes < parts) lanes *= 2;
    return lanes;
}

static int head_groups(const AttentionSpec *s) { return (int)ceil_div(s->NH, 32 / lanes_of(s)); }

/* One block on each of the 132 SMs of an H200, on any card: the bits depend on the shape alone. A split has at least 64
   keys. */
static int splits_of(const AttentionSpec *s) {
    const int64_t groups = (int64_t)head_groups(s) * s->B * s->Tq, splits = SPLITS_MAX / groups;
    const int64_t most = ceil_div(s->Tk, 64);
    return (int)(splits < 1 ? 1 : splits < most ? splits : most);
}

static const char *refuse(const AttentionSpec *s) {
    const char *refusal = attention_refuse_on_cuda(s);
    if (refusal) return refusal;
    if (s->Tq > MAX_QUERIES)                          return "this kernel takes at most 8 queries of a sequence";
    if (s->dropout.rate > 0)                          return "this kernel has no dropout";
    if (s->Tq == s->Tk && !s->position)               return "this kernel takes fewer queries than keys";
    if (s->HS * dtype_bytes(s->dtype) % 16 != 0)      return "the head size is not a multiple of 16 bytes";
    if ((int64_t)s->B * s->Tq > MAX_HEAD_GROUPS / head_groups(s) || (int64_t)s->B * s->Tq > 65535)
        return "this kernel takes at most 65535 queries";
    return NULL;
}

static size_t workspace_bytes(const AttentionSpec *s) {
    const size_t rows = attention_row_bytes(s), splits = (size_t)splits_of(s);
    return splits > 1 ? rows * splits * ((size_t)s->HS + 2) : rows;
}

template <class T> static void launch(const AttentionSpec *s, const AttentionOperands *o) {
    const int lanes = lanes_of(s);
    const auto kernel = lanes <= 2 ? decode_kernel<T, 2> : lanes <= 4  ? decode_kernel<T, 4>
                      : lanes <= 8 ? decode_kernel<T, 8> : lanes <= 16 ? decode_kernel<T, 16> : decode_kernel<T, 32>;
    const dim3 grid((unsigned)head_groups(s), (unsigned)splits_of(s), (unsigned)(s->B * s->Tq));
    LAUNCH_EARLY(kernel, grid, THREADS, 0, *s, o->out, o->lse, o->q, o->k, o->v, o->work);
}

static void forward(const AttentionSpec *s, const AttentionOperands *o) {
    require_aligned_rows("attention", { o->q, o->k, o->v });
    (s->dtype == BF16 ? launch<bf16> : launch<float>)(s, o);
}

static void backward(const AttentionSpec *s, const AttentionOperands *o) {
    attention_backward(s->dtype == BF16 ? &attention_flash_sm80 : &attention_flash_f32, s, o);
}

const Attention attention_decode = { "flash", refuse, attention_no_bytes, workspace_bytes, forward, backward, NULL };
