/* The choice of the next token. Several blocks share a row of logits. They exchange the maximum,
   the measure of each digit of a threshold, and the sum before the draw. Sums are of integers: the bits do not depend
   on the number of blocks. A warp has a contiguous part of the row. */
#include "partial_sums.cuh"
extern "C" {
#include "../sample.h"
}

typedef unsigned long long Fixed;       /* a weight, 0 to 1, in units of 2^-38: up to 2^25 of them */

enum { THREADS = 1024, WARPS = THREADS / 32, MAX_ROWS = 64, MAX_SLICES = 32 };
enum { DIGIT_BITS = 10, LEVELS = 3, BATCH = 8 };
enum { BEST, SUM, EXCHANGES };
static_assert(THREADS == 1 << DIGIT_BITS, "a thread per digit");

/* Memory in which the blocks of a row exchange results during a launch. */
static __device__ struct Row {
    Fixed    measure[2][LEVELS][THREADS];   /* measures of top_k and top_p, by digit */
    Fixed    word[EXCHANGES][MAX_SLICES];
    Arrivals arrivals;
} exchange[MAX_ROWS];

__device__ static inline Fixed fixed(float weight) { return __float2ull_rz(weight * (float)(1ull << 38)); }

/* A logit and its index: the largest of all belongs to the largest logit, of equal ones to the lowest index. That of a
   logit that is not finite is larger than all others. */
typedef unsigned long long Key;
__device__ static inline Key key_of(float logit, int i) {
    const int bits = __float_as_int(logit + 0.0f);       /* -0 becomes 0 */
    const unsigned ordered = isfinite(logit) ? bits ^ (bits >> 31 | 1 << 31) : ~0u;
    return (Key)ordered << 32 | ~(unsigned)i;
}
__device__ static inline bool is_finite_key(Key key) { return key >> 32 != ~0u; }
__device__ static inline int index_of(Key key)       { return (int)~(unsigned)key; }
__device__ static inline float logit_of(Key key) {
    const int bits = (int)(key >> 32);
    return __int_as_float(bits ^ (~bits >> 31 | 1 << 31));
}

__device__ static inline Key warp_max_key(Key key) {
    const unsigned high = (unsigned)(key >> 32), max = __reduce_max_sync(0xffffffffu, high);
    return (Key)max << 32 | __reduce_max_sync(0xffffffffu, high == max ? (unsigned)key : 0);
}

/* Inclusive prefix sum over the lanes of a warp. */
__device__ static inline Fixed warp_scan(Fixed x) {
    #pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const Fixed before = __shfl_up_sync(0xffffffffu, x, d);
        if (threadIdx.x % 32 >= d) x += before;
    }
    return x;
}
/* x of lane `lane`, 0 where it is -1 */
__device__ static inline Fixed of_lane(Fixed x, int lane) {
    x = __shfl_sync(0xffffffffu, x, lane & 31);
    return lane < 0 ? 0 : x;
}

/* f(i, x[i]) for i = begin, begin + step, ... below end: BATCH loads in flight. */
template <class F> __device__ static inline void for_each(const float *x, int begin, int end, int step, F f) {
    for (int first = begin; first < end; first += BATCH * step) {
        float value[BATCH];
        for (int j = 0; j < BATCH; j++) value[j] = first + j * step < end ? x[first + j * step] : 0;
        for (int j = 0; j < BATCH; j++) if (first + j * step < end) f(first + j * step, value[j]);
    }
}

/* The blocks of a row. meet: waits for all, and for their writes. */
__device__ static inline void meet() { arrive(&exchange[blockIdx.y].arrivals, gridDim.x, gridDim.x); }

/* Called by all threads, once for each `which`: x of block `lane`, 0 where there is none. */
__device__ static inline Fixed pass(int which, Fixed x) {
    Fixed *const word = exchange[blockIdx.y].word[which];
    if (threadIdx.x == 0) word[blockIdx.x] = x;
    meet();
    return threadIdx.x % 32 < gridDim.x ? __ldcg(word + threadIdx.x % 32) : 0;
}

/* sum += x, as two words: a 64-bit atomicAdd in shared memory is a loop of compare-and-swap. */
__device__ static inline void add(uint2 *sum, Fixed x) {
    const unsigned low = (unsigned)x, before = atomicAdd(&sum->x, low);
    const unsigned high = (unsigned)(x >> 32) + (before + low < low);
    if (high) atomicAdd(&sum->y, high);
}

/* The largest weight c for which the tokens of weights c and more, of those from `from` on, measure the target: k in
   number, or where k is 0 the share of their sum; 0 where all measure less. A digit of its bits at a time, of the three
   that weights up to 1 have; fewer where a single token has the digit. */
__device__ static float find_cut(const float *weight, int begin, int end, float from, int k,
                                 double share) {
    __shared__ uint2 of_block[THREADS];     /* 32 digits have most tokens of an untrained model: slow in the L2 */
    __shared__ Fixed of_warp[WARPS];
    __shared__ double left_of;
    __shared__ unsigned digit;
    __shared__ bool is_single;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned cut = 0;
    double left = k;
    for (int level = 0; level < LEVELS; level++) {
        const int shift = DIGIT_BITS * (LEVELS - 1 - level);
        Fixed *measure = exchange[blockIdx.y].measure[k == 0][level];
        of_block[threadIdx.x] = { 0, 0 };
        __syncthreads();
        for_each(weight, begin + lane, end, 32, [&](int, float w) {
            const unsigned bits = __float_as_uint(w);
            if (w >= from && bits >> shift >> DIGIT_BITS == cut)
                add(of_block + (bits >> shift) % THREADS, k ? 1 : fixed(w));
        });
        __syncthreads();
        const Fixed own_part = (Fixed)of_block[threadIdx.x].y << 32 | of_block[threadIdx.x].x;
        if (own_part) atomicAdd(measure + threadIdx.x, own_part);
        meet();
        const unsigned own = THREADS - 1 - threadIdx.x;     /* the highest first */
        const Fixed of_own = __ldcg(measure + own), in_warp = warp_scan(of_own);
        if (lane == 31) of_warp[warp] = in_warp;
        __syncthreads();
        const Fixed warps = warp_scan(of_warp[lane]), passed = in_warp + of_lane(warps, warp - 1);
        if (!k && level == 0) left = fmax(1.0, share * (double)of_lane(warps, 31));
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
    __shared__ Fixed of_warp[EXCHANGES][WARPS];
    float *const weight = logits + blockIdx.y * pitch;      /* the logits at first */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slices = gridDim.x, slice = blockIdx.x;
    const int length = (int)ceil_div(V, slices * WARPS);
    const int begin = min(V, (slice * WARPS + warp) * length), end = min(V, begin + length);
    wait_for_previous();
    const double own_uniform = uniform[blockIdx.y];
    if (s.top_k > 0 || s.top_p < 1) {
        for (int i = slice * THREADS + threadIdx.x; i < 2 * LEVELS * THREADS; i += slices * THREADS)
            ((Fixed *)exchange[blockIdx.y].measure)[i] = 0;
        meet();
    }
    float lane_max = -INFINITY, zeros = 0;
    int at = V;
    for_each(weight, begin + lane, end, 32, [&](int i, float x) {
        if (x > lane_max) lane_max = x, at = i;
        zeros += x * 0.0f;
    });
    Key best = at < V ? key_of(lane_max, at) : 0;
    if (zeros != 0)                         /* NaN: not all logits are finite */
        for_each(weight, begin + lane, end, 32, [&](int i, float x) { best = max(best, key_of(x, i)); });
    best = warp_max_key(best);
    if (lane == 0) of_warp[BEST][warp] = best;
    __syncthreads();
    best = warp_max_key(pass(BEST, warp_max_key(of_warp[BEST][lane])));
    if (!is_finite_key(best) || s.temperature == 0) {
        if (slice == 0 && threadIdx.x == 0)
            tokens[blockIdx.y] = is_finite_key(best) ? index_of(best) : -1 - index_of(best);
        return;
    }
    const float row_max = logit_of(best), factor = 1 / (float)s.temperature;
    for_each(weight, begin + lane, end, 32, [&](int i, float x) {
        weight[i] = x == row_max ? 1 : expf((x - row_max) * factor);
    });
    __syncwarp();
    float cut = 0;
    if (s.top_k > 0 && s.top_k < V) cut = find_cut(weight, begin, end, 0, s.top_k, 0);
    if (s.top_p < 1)                cut = fmaxf(cut, find_cut(weight, begin, end, cut, 0, s.top_p));
    const auto kept = [&](float w) { return w >= cut ? fixed(w) : 0; };

    /* A lane's part is contiguous, too. */
    const int part = (length + 31) / 32, own_begin = min(end, begin + lane * part);
    const int own_end = min(end, own_begin + part);
    Fixed sum = 0;
    for_each(weight, own_begin, own_end, 1, [&](int, float w) { sum += kept(w); });
    const Fixed lanes = warp_scan(sum);
    if (lane == 31) of_warp[SUM][warp] = lanes;
    __syncthreads();
    const Fixed warps = warp_scan(of_warp[SUM][lane]), all = warp_scan(pass(SUM, of_lane(warps, 31)));
    const Fixed before = of_lane(all, slice - 1) + of_lane(warps, warp - 1) + lanes - sum, total = of_lane(all, 31);
    const Fixed drawn = min((Fixed)(own_uniform * (double)total), total - 1);      /* may round up to total */
    Fixed left = drawn - before;
    if (drawn < before || left >= sum) return;
    int i = own_begin;
    for (Fixed w; (w = kept(weight[i])) <= left; i++) left -= w;
    tokens[blockIdx.y] = i;
}

/* The blocks of a row wait for each other: at most as many as SMs, so that all are resident. */
void sample_tokens(Tensor tokens, Tensor logits, Tensor uniform, int V, Sampling sampling) {
    check_sample_tokens(tokens, logits, uniform, V);
    for (int64_t b = 0, rows; b < logits.dim[0]; b += rows) {
        rows = min(logits.dim[0] - b, (int64_t)MAX_ROWS);
        const int64_t slices = max((int64_t)1, min((int64_t)MAX_SLICES, cuda_sm_count() / rows));
        LAUNCH_EARLY(sample_kernel, dim3((unsigned)slices, (unsigned)rows), THREADS, 0, (int *)tokens.data + b,
                     (float *)logits.data + b * logits.pitch, logits.pitch, (const double *)uniform.data + b, V,
                     sampling);
    }
}
