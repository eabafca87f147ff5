/* GEMM of a few rows: a warp reads the ROWS weight rows of as many columns of c, or a part of them, in 16-byte loads of
   which 4 ROWS are in flight. cuBLASLt has tiles of 64 rows and more, of which one would be used. */
#include "gelu.cuh"
extern "C" {
#include "../gemm.h"
}

enum { THREADS = 128, WARPS = THREADS / 32, STEP = 4, MAX_M = 4 };

/* Warps for all SMs: 64 each on 132. */
enum { MANY_ROWS = 64 * 132 };

/* split: warps that share a row, 1, 2 or 4. M: rows of a, or more. early: the first weights of each lane, all where
   K <= split * STEP * 32 * SIZE, are read while the kernel that makes a still runs. */
template <class T, class Out, int M, int ROWS> static __global__ void __launch_bounds__(THREADS)
gemv_kernel(Gemm g, int split, Out *gelu_out, bool early) {
    constexpr int SIZE = Pack<T>::SIZE;
    __shared__ float part_of[WARPS][ROWS * M];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % split;
    const int64_t n0 = ((int64_t)blockIdx.x * (WARPS / split) + warp / split) * ROWS;
    const int64_t length = ceil_div(g.K, split * 32 * SIZE) * 32 * SIZE, begin = part * length;
    const int64_t end = begin + length < g.K ? begin + length : g.K;
    const T *a = (const T *)g.a.data, *b = (const T *)g.b.data;
    float sum[ROWS][M] = {};
    Pack<T> weight[ROWS][STEP];
    const auto load = [&](int64_t k0) {
        #pragma unroll
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < STEP; i++) {
                weight[r][i] = {};
                if (k0 + i * 32 * SIZE < end && n0 + r < g.N)
                    weight[r][i] = Pack<T>::load_no_allocate(b + (n0 + r) * g.b.pitch + k0 + i * 32 * SIZE);
            }
    };
    /* the element of c that the thread stores */
    const int own_r = lane / M, own_m = lane % M;
    const bool stores = !part && own_r < ROWS && n0 + own_r < g.N && own_m < g.M;
    T bias = from_float<T>(0);
    launch_next();
    if (!early) wait_for_previous();
    load(begin + lane * SIZE);
    if (stores && g.bias) bias = ((const T *)g.bias)[n0 + own_r];
    if (early) wait_for_previous();
    for (int64_t k0 = begin + lane * SIZE; k0 < end; k0 += STEP * 32 * SIZE) {
        if (k0 >= begin + STEP * 32 * SIZE) load(k0);
        Pack<T> x[STEP][M] = {};                    /* all loads before their use: one latency */
        #pragma unroll
        for (int i = 0; i < STEP; i++)
            for (int m = 0; m < M; m++)
                if (m < g.M && k0 + i * 32 * SIZE < end)
                    x[i][m] = Pack<T>::load(a + m * g.a.pitch + k0 + i * 32 * SIZE);
        #pragma unroll
        for (int i = 0; i < STEP; i++)
            #pragma unroll
            for (int m = 0; m < M; m++) {
                float f[SIZE];
                x[i][m].to_float(f);
                #pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    float w[SIZE];
                    weight[r][i].to_float(w);
                    for (int c = 0; c < SIZE; c++) sum[r][m] += w[c] * f[c];
                }
            }
    }
    #pragma unroll
    for (int r = 0; r < ROWS; r++)
        for (int m = 0; m < M; m++) {
            sum[r][m] = warp_sum(sum[r][m]);
            if (lane == 0) part_of[warp][r * M + m] = sum[r][m];
        }
    __syncthreads();
    if (!stores) return;
    float total = to_float(bias);
    for (int p = 0; p < split; p++) total += part_of[warp + p][lane];
    const int64_t at = own_m * g.c_pitch + n0 + own_r;
    Out *c = (Out *)g.c + at;
    const Out rounded = from_float<Out>(g.into == ACCUMULATE ? to_float(*c) + total : total);
    *c = rounded;
    if (gelu_out) gelu_out[at] = from_float<Out>(gelu<T>(to_float(rounded)));
}

template <class T, class Out> static void launch(const Gemm &g, void *gelu) {
    const bool many = g.N >= MANY_ROWS;
    const auto gemv = g.M > 2 ? gemv_kernel<T, Out, MAX_M, 1>
                    : g.M > 1 ? many ? gemv_kernel<T, Out, 2, 2> : gemv_kernel<T, Out, 2, 1>
                              : many ? gemv_kernel<T, Out, 1, 2> : gemv_kernel<T, Out, 1, 1>;
    const int64_t steps = ceil_div(g.K, STEP * 32 * Pack<T>::SIZE);
    const int split = steps <= 1 ? 1 : steps <= 2 ? 2 : WARPS;
    LAUNCH_EARLY(gemv, (unsigned)ceil_div(g.N, WARPS / split * (many ? 2 : 1)), THREADS, 0, g, split, (Out *)gelu,
                 cuda_early_reads);
}

static bool is_aligned(const Gemm *g, Operand x) {
    return rows_aligned({ (void *)x.data, g->dtype, 2, { 1, g->K }, x.pitch, NULL });
}

/* On an H200 in bf16, M = 4, before weights were read early, four rows cost a block of 124M 16.5 us and cuBLASLt's 16
   rows 18.7; of the head 35.8 and 24.2. At M = 8 it is 22.8 for a block. */
int gemv(const Gemm *g, void *gelu) {
    if (g->dtype == E4M3 || g->M > (g->N < MANY_ROWS ? MAX_M : 2) || g->a.layout != ROW_MAJOR ||
        g->b.layout != COLUMN_MAJOR || !is_aligned(g, g->a) || !is_aligned(g, g->b)) return 0;
    (g->dtype == F32 ? launch<float, float> : g->c_dtype == F32 ? launch<bf16, float> : launch<bf16, bf16>)(*g, gelu);
    return 1;
}
