/* The choice of the next token. Up to 32 blocks share a row of logits; they meet after the maximum, after each digit of
   a threshold, and before the draw. Sums are of integers: the bits do not depend on the number of blocks. */
#include "partial_sums.cuh"
extern "C" {
#include "../sample.h"
}

typedef unsigned long long Fixed;       /* a weight, 0 to 1, in units of 2^-38: up to 2^25 of them */

enum { THREADS = 1024, WARPS = THREADS / 32, MAX_ROWS = 64, MAX_SLICES = 32, DIGIT_BITS = 10, LEVELS = 3 };
static_assert(THREADS == 1 << DIGIT_BITS, "a thread per digit");

/* Of a launch: where the blocks of a row exchange results. */
static __device__ struct Row {
    Fixed    measure[2][LEVELS][THREADS];   /* of top_k, of top_p: by digit */
    Fixed    sum[MAX_SLICES];
    float    max[MAX_SLICES];
    int      bad[MAX_SLICES], best[MAX_SLICES];
    Arrivals arrivals;
} exchange[MAX_ROWS];

__device__ static inline Fixed fixed(float weight) { return (Fixed)((double)weight * (double)(1ull << 38)); }

/* Inclusive prefix sum over the lanes of a warp. */
__device__ static inline Fixed warp_scan(Fixed x) {
    #pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const Fixed before = __shfl_up_sync(0xffffffffu, x, d);
        if (threadIdx.x % 32 >= d) x += before;
    }
    return x;
}

/* Inclusive prefix sum over the threads of the block; total: of all. */
__device__ static Fixed block_scan(Fixed x, Fixed *total) {
    __shared__ Fixed of_warp[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    x = warp_scan(x);
    __syncthreads();                        /* of_warp may be in use by the call before */
    if (lane == 31) of_warp[warp] = x;
    __syncthreads();
    const Fixed passed = warp_scan(of_warp[lane]);
    *total = __shfl_sync(0xffffffffu, passed, 31);
    const Fixed before = __shfl_sync(0xffffffffu, passed, (warp + 31) % 32);
    return warp ? x + before : x;
}

/* All blocks of the row. */
__device__ static inline void meet(Row *row) {
    if (gridDim.x > 1) arrive(&row->arrivals, gridDim.x, gridDim.x);
    else               __syncthreads();
}

/* The largest weight c for which the tokens of weights c and more, of those from `from` on, measure the target: k in
   number, or where k is 0 the share of their sum; 0 where all measure less. A digit of its bits at a time, of the three
   that weights up to 1 have; fewer where a single token has the digit. */
__device__ static float find_cut(Row *row, const float *weight, int begin, int end, float from, int k, double share) {
    __shared__ Fixed of_block[THREADS];     /* 32 digits have most tokens of an untrained model: not all in the L2 */
    __shared__ double left_of;
    __shared__ unsigned digit;
    __shared__ bool is_single;
    unsigned cut = 0;
    double left = k;
    for (int level = 0; level < LEVELS; level++) {
        const int shift = DIGIT_BITS * (LEVELS - 1 - level);
        Fixed *measure = row->measure[k == 0][level], total;
        of_block[threadIdx.x] = 0;
        __syncthreads();
        for (int i = begin + threadIdx.x; i < end; i += THREADS) {
            const unsigned bits = __float_as_uint(weight[i]);
            if (weight[i] >= from && bits >> shift >> DIGIT_BITS == cut)
                atomicAdd(of_block + (bits >> shift) % THREADS, k ? 1 : fixed(weight[i]));
        }
        __syncthreads();
        if (of_block[threadIdx.x]) atomicAdd(measure + threadIdx.x, of_block[threadIdx.x]);
        meet(row);
        const unsigned own = THREADS - 1 - threadIdx.x;     /* the highest first */
        const Fixed of_own = __ldcg(measure + own), passed = block_scan(of_own, &total);
        if (!k && level == 0) left = fmax(1.0, share * (double)total);
        const bool reached = (double)passed >= left, before = (double)(passed - of_own) >= left;
        if ((reached && !before) || (own == 0 && !reached)) {
            const float lowest = __uint_as_float((cut << DIGIT_BITS | own) << shift);
            digit = own;
            left_of = left - (double)(passed - of_own);
            is_single = of_own < 2 * (k ? 1 : fixed(lowest));
        }
        __syncthreads();
        cut = cut << DIGIT_BITS | digit;
        left = left_of;
        if (is_single) return __uint_as_float(cut << shift);
    }
    return __uint_as_float(cut);
}

/* blockIdx.x: the slice of the row blockIdx.y. */
static __global__ void __launch_bounds__(THREADS, 1)
sample_kernel(int *tokens, float *logits, int64_t pitch, const double *uniform, int V, Sampling s) {
    __shared__ int bad, best;
    Row *const row = exchange + blockIdx.y;
    float *const weight = logits + blockIdx.y * pitch;      /* the logits at first */
    const int lane = threadIdx.x % 32, slices = gridDim.x, slice = blockIdx.x, length = (int)ceil_div(V, slices);
    const int begin = min(V, slice * length), end = min(V, begin + length);
    float max = -INFINITY;
    if (threadIdx.x == 0) bad = best = V;
    __syncthreads();
    #pragma unroll 4
    for (int i = begin + threadIdx.x; i < end; i += THREADS) {
        if (!isfinite(weight[i])) atomicMin(&bad, i);
        max = fmaxf(max, weight[i]);
    }
    max = block_max(max);                   /* synchronizes */
    for (int i = begin + threadIdx.x; i < end && s.temperature == 0; i += THREADS)
        if (weight[i] == max) atomicMin(&best, i);
    for (int i = slice * THREADS + threadIdx.x; i < 2 * LEVELS * THREADS; i += slices * THREADS)
        ((Fixed *)row->measure)[i] = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        row->max[slice] = max;
        row->bad[slice] = bad;
        row->best[slice] = best;
    }
    meet(row);
    const float slice_max = lane < slices ? __ldcg(row->max + lane) : -INFINITY;
    max = warp_max(slice_max);
    const int first_bad = __reduce_min_sync(0xffffffffu, lane < slices ? __ldcg(row->bad + lane) : V);
    const int first_best =
        __reduce_min_sync(0xffffffffu, lane < slices && slice_max == max ? __ldcg(row->best + lane) : V);
    if (first_bad < V || s.temperature == 0) {
        if (slice == 0 && threadIdx.x == 0) tokens[blockIdx.y] = first_bad < V ? -1 - first_bad : first_best;
        return;
    }
    const float temperature = (float)s.temperature;
    for (int i = begin + threadIdx.x; i < end; i += THREADS)
        weight[i] = weight[i] == max ? 1.0f : expf((weight[i] - max) / temperature);
    float cut = 0;
    if (s.top_k > 0 && s.top_k < V) cut = find_cut(row, weight, begin, end, 0, s.top_k, 0);
    if (s.top_p < 1)                cut = fmaxf(cut, find_cut(row, weight, begin, end, cut, 0, s.top_p));
    const auto kept = [&](int i) {
        return i < end && weight[i] >= cut && weight[i] >= s.min_p ? fixed(weight[i]) : 0;
    };

    Fixed sum = 0, total;
    for (int i = begin + threadIdx.x; i < end; i += THREADS) sum += kept(i);
    sum = block_sum(sum);
    if (threadIdx.x == 0) row->sum[slice] = sum;
    meet(row);
    const Fixed passed = warp_scan(lane < slices ? __ldcg(row->sum + lane) : 0);
    const Fixed before = __shfl_sync(0xffffffffu, passed, slice) - sum;
    total = __shfl_sync(0xffffffffu, passed, 31);
    Fixed left = min((Fixed)(uniform[blockIdx.y] * (double)total), total - 1);      /* may round up to total */
    if (left < before || left >= before + sum) return;
    left -= before;
    for (int first = begin; first < end; first += THREADS) {
        const int i = first + threadIdx.x;
        const Fixed w = kept(i), up_to = block_scan(w, &total);
        if (up_to > left && up_to - w <= left) tokens[blockIdx.y] = i;
        if (left < total) return;
        left -= total;
    }
}

/* The blocks of a row wait for each other: there are at most as many as SMs, so that all are resident. */
void sample_tokens(Tensor tokens, Tensor logits, Tensor uniform, int V, Sampling sampling) {
    check_sample_tokens(tokens, logits, uniform, V);
    static int sms;
    if (!sms) CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    for (int64_t b = 0, rows; b < logits.dim[0]; b += rows) {
        rows = min(logits.dim[0] - b, (int64_t)MAX_ROWS);
        const int64_t slices = max((int64_t)1, min((int64_t)MAX_SLICES, sms / rows));
        LAUNCH(sample_kernel, dim3((unsigned)slices, (unsigned)rows), THREADS, 0, (int *)tokens.data + b,
               (float *)logits.data + b * logits.pitch, logits.pitch, (const double *)uniform.data + b, V, sampling);
    }
}
