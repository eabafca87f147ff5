/* The choice of the next token: a block per sequence. The weights are in shared memory where they fit (56,000 tokens on
   Hopper), else in place of the logits; all sums have a fixed order. */
#include "common.cuh"
extern "C" {
#include "../sample.h"
}

enum { THREADS = 1024, WARPS = THREADS / 32 };

/* The largest weight c for which the tokens of weight c and more measure target: their number, or their sum where
   by_weight; 0 where all measure less. Two of its bits at a time: weights are at most 1, whose highest bit is 29. */
__device__ static float find_cut(const float *weight, int V, bool by_weight, double target) {
    unsigned cut = 0;
    for (int shift = 28; shift >= 0; shift -= 2) {
        float measure[3] = {};
        #pragma unroll 4
        for (int i = threadIdx.x; i < V; i += THREADS) {
            const float w = weight[i];
            #pragma unroll
            for (unsigned d = 1; d < 4; d++)
                if (__float_as_uint(w) >= (cut | d << shift)) measure[d - 1] += by_weight ? w : 1.0f;
        }
        unsigned digit = 0;
        for (unsigned d = 1; d < 4; d++)
            if (block_sum((double)measure[d - 1]) >= target) digit = d;
        cut |= digit << shift;
    }
    return __uint_as_float(cut);
}

static __global__ void __launch_bounds__(THREADS)
sample_kernel(int *tokens, float *logits, int64_t pitch, const double *uniform, int V, Sampling s, bool fits) {
    extern __shared__ float shared_weights[];
    __shared__ int first_bad, best;
    __shared__ double warp_total[WARPS];
    float *row = logits + blockIdx.x * pitch, *weight = fits ? shared_weights : row;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float max = -INFINITY;
    if (threadIdx.x == 0) { first_bad = best = V; }
    __syncthreads();
    #pragma unroll 8
    for (int i = threadIdx.x; i < V; i += THREADS) {
        const float x = row[i];
        if (!isfinite(x)) atomicMin(&first_bad, i);
        max = fmaxf(max, x);
        weight[i] = x;
    }
    max = block_max(max);                   /* synchronizes */
    if (first_bad < V) {
        if (threadIdx.x == 0) tokens[blockIdx.x] = -1 - first_bad;
        return;
    }
    if (s.temperature == 0) {
        for (int i = threadIdx.x; i < V; i += THREADS)
            if (weight[i] == max) atomicMin(&best, i);
        __syncthreads();
        if (threadIdx.x == 0) tokens[blockIdx.x] = best;
        return;
    }
    const float temperature = (float)s.temperature;
    float sum = 0;
    for (int i = threadIdx.x; i < V; i += THREADS) {
        const float x = weight[i];
        sum += weight[i] = x == max ? 1.0f : expf((x - max) / temperature);
    }
    float cut = 0;
    if (s.top_k > 0 && s.top_k < V) cut = find_cut(weight, V, false, s.top_k);
    if (s.top_p < 1) {
        if (cut > 0) {
            sum = 0;
            for (int i = threadIdx.x; i < V; i += THREADS) sum += weight[i] >= cut ? weight[i] : 0.0f;
        }
        cut = fmaxf(cut, find_cut(weight, V, true, s.top_p * block_sum((double)sum)));
    }
    const auto kept = [&](int i) {
        return i < V && weight[i] >= cut && weight[i] >= s.min_p ? (double)weight[i] : 0.0;
    };

    /* a warp has a range of the tokens */
    const int range = (int)ceil_div(V, WARPS * 32) * 32, begin = warp * range;
    double total = 0;
    __syncthreads();
    for (int i = begin + lane; i < begin + range; i += 32) total += kept(i);
    total = warp_sum(total);
    if (lane == 0) warp_total[warp] = total;
    __syncthreads();
    double all = 0;
    for (int w = 0; w < WARPS; w++) all += warp_total[w];
    double left = uniform[blockIdx.x] * all;
    int mine = 0, last = 0;                 /* rounding may leave none: then the last token with a weight */
    for (int w = 0; w < WARPS; w++) if (warp_total[w] > 0) last = w;
    while (mine < last && left >= warp_total[mine]) left -= warp_total[mine++];
    if (warp != mine) return;
    int found = -1;
    for (int i = begin + lane; i - lane < begin + range; i += 32) {
        const double w = kept(i);
        double passed = w;                  /* inclusive prefix sum over the lanes */
        for (int d = 1; d < 32; d *= 2) {
            const double below = __shfl_up_sync(0xffffffffu, passed, d);
            if (lane >= d) passed += below;
        }
        const unsigned weighted = __ballot_sync(0xffffffffu, w > 0), over = weighted &
                                  __ballot_sync(0xffffffffu, passed > left);
        if (weighted) found = i - lane + 31 - __clz(weighted);
        if (over) { found = i - lane + __ffs(over) - 1; break; }
        left -= __shfl_sync(0xffffffffu, passed, 31);
    }
    if (lane == 0) tokens[blockIdx.x] = found;
}

void sample_tokens(Tensor tokens, Tensor logits, Tensor uniform, int V, Sampling sampling) {
    check_sample_tokens(tokens, logits, uniform, V);
    static int max_bytes;
    if (!max_bytes) CUDA(cudaDeviceGetAttribute(&max_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    const size_t bytes = (size_t)V * sizeof(float);
    const bool fits = bytes + 2048 <= (size_t)max_bytes;
    LAUNCH(sample_kernel, (unsigned)logits.dim[0], THREADS, fits ? bytes : 0, (int *)tokens.data, (float *)logits.data,
           logits.pitch, (const double *)uniform.data, V, sampling, fits);
}
