/* LayerNorm. Where rows are aligned to 16 bytes and C <= 2048, a row is held in the registers of one warp (forward) or
   of a team of one or two warps (backward), and is read once. For other C the _any kernels read a row again from the
   cache. */
#include "common.cuh"
extern "C" {
#include "../layernorm.h"
#include "../profile.h"
}

enum { THREADS = 128, WARPS = THREADS / 32 };

static constexpr float EPS = 1e-5f;

/* ---- forward */

/* The variance is that of the differences from the mean, a second pass over registers. The sum is normalised as it is
   stored, rounded: the backward pass reads it and must see the same x. sum may be the memory of x: each element is read
   and then written by one lane only. */
template <class T, int PACKS> __global__ void __launch_bounds__(THREADS)
layernorm_forward_kernel(T *sum, T *normed, float *mean, float *rstd, const T *x, const T *branch,
                         const T *weight, const T *bias, int64_t rows, int C) {
    constexpr int SIZE = Pack<T>::SIZE;
    const int lane = threadIdx.x % 32;
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, at = row * C;
    if (row >= rows) return;
    Pack<T> pack[PACKS], added[PACKS];
    #pragma unroll
    for (int j = 0; j < PACKS; j++) {
        const int c = (32 * j + lane) * SIZE;
        pack[j].bits = added[j].bits = make_uint4(0, 0, 0, 0);
        if (c < C) pack[j] = Pack<T>::load(x + at + c);
        if (c < C && branch) added[j] = Pack<T>::load_once(branch + at + c);
    }
    float value[PACKS][SIZE], total = 0, squares = 0;
    #pragma unroll
    for (int j = 0; j < PACKS; j++) {
        const int c = (32 * j + lane) * SIZE;
        pack[j].to_float(value[j]);
        if (branch) {
            float f[SIZE];
            added[j].to_float(f);
            #pragma unroll
            for (int k = 0; k < SIZE; k++) f[k] += value[j][k];
            const Pack<T> rounded = Pack<T>::from_float(f);
            if (c < C) rounded.store(sum + at + c);
            rounded.to_float(value[j]);
        }
        #pragma unroll
        for (int k = 0; k < SIZE; k++) total += value[j][k];
    }
    const float mu = warp_sum(total) / (float)C;
    #pragma unroll
    for (int j = 0; j < PACKS; j++) {
        if ((32 * j + lane) * SIZE >= C) continue;
        #pragma unroll
        for (int k = 0; k < SIZE; k++) squares += (value[j][k] - mu) * (value[j][k] - mu);
    }
    const float scale = 1.0f / sqrtf(warp_sum(squares) / (float)C + EPS);
    #pragma unroll
    for (int j = 0; j < PACKS; j++) {
        const int c = (32 * j + lane) * SIZE;
        if (c >= C) continue;
        float w[SIZE], b[SIZE];
        Pack<T>::load(weight + c).to_float(w);
        Pack<T>::load(bias + c).to_float(b);
        #pragma unroll
        for (int k = 0; k < SIZE; k++) b[k] += (value[j][k] - mu) * scale * w[k];
        Pack<T>::from_float(b).store(normed + at + c);
    }
    if (lane == 0) {
        mean[row] = mu;
        rstd[row] = scale;
    }
}

template <class T> __global__ void __launch_bounds__(THREADS)
layernorm_forward_any_kernel(T *sum, T *normed, float *mean, float *rstd, const T *x, const T *branch,
                             const T *weight, const T *bias, int64_t rows, int C) {
    const int lane = threadIdx.x % 32;
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, at = row * C;
    if (row >= rows) return;
    float total = 0, squares = 0;
    for (int c = lane; c < C; c += 32) {
        T value = x[at + c];
        if (branch) sum[at + c] = value = from_float<T>(to_float(value) + to_float(branch[at + c]));
        total += to_float(value);
    }
    const float mu = warp_sum(total) / (float)C;
    const T *from = branch ? sum : x;               /* a lane reads what it has written */
    for (int c = lane; c < C; c += 32) squares += (to_float(from[at + c]) - mu) * (to_float(from[at + c]) - mu);
    const float scale = 1.0f / sqrtf(warp_sum(squares) / (float)C + EPS);
    for (int c = lane; c < C; c += 32)
        normed[at + c] = from_float<T>((to_float(from[at + c]) - mu) * scale * to_float(weight[c]) + to_float(bias[c]));
    if (lane == 0) {
        mean[row] = mu;
        rstd[row] = scale;
    }
}

template <class T> static void forward(Tensor sum, Tensor normed, Tensor mean, Tensor rstd,
                                       Tensor x, Tensor branch, Tensor weight, Tensor bias) {
    constexpr int SIZE = Pack<T>::SIZE;
    const int64_t rows = tensor_rows(x), C = tensor_columns(x);
    const bool aligned = rows_aligned(x) && rows_aligned(normed) && rows_aligned(weight) && rows_aligned(bias)
                         && (!branch.data || (rows_aligned(branch) && rows_aligned(sum)));
    const auto layernorm_forward = !aligned || C > 2048 ? layernorm_forward_any_kernel<T>
                                 : C <= 256  ? layernorm_forward_kernel<T,  8 / SIZE>
                                 : C <= 512  ? layernorm_forward_kernel<T, 16 / SIZE>
                                 : C <= 768  ? layernorm_forward_kernel<T, 24 / SIZE>
                                 : C <= 1024 ? layernorm_forward_kernel<T, 32 / SIZE>
                                             : layernorm_forward_kernel<T, 64 / SIZE>;
    LAUNCH(layernorm_forward, (unsigned)ceil_div(rows, WARPS), THREADS, 0, (T *)sum.data, (T *)normed.data,
           (float *)mean.data, (float *)rstd.data, (const T *)x.data, (const T *)branch.data,
           (const T *)weight.data, (const T *)bias.data, rows, (int)C);
}

void residual_layernorm_forward(Tensor sum, Tensor normed, Tensor mean, Tensor rstd,
                                Tensor x, Tensor branch, Tensor weight, Tensor bias) {
    check_residual_layernorm(sum, normed, mean, rstd, x, branch, weight, bias);
    op_begin("residual layernorm", op_bytes(branch.data ? 6 : 4, normed, mean, rstd, x, branch, sum), 0);
    if (x.dtype == BF16) forward<bf16>(sum, normed, mean, rstd, x, branch, weight, bias);
    else                 forward<float>(sum, normed, mean, rstd, x, branch, weight, bias);
    op_end();
}

/* ---- backward */

/* Every block writes its sums of dweight (C) and dbias (C), a row of 2 C a block; the second kernel adds them in order.
   8 MiB: 528 blocks at C = 768 take 3.1 MiB. */
enum { PARTIAL_ROOM = 1 << 21 };
static __device__ float partial[PARTIAL_ROOM];

/* How many blocks an SM holds: a thread needs 2 registers an element for the two sums, 3 operands as they are stored,
   and about 40 more. */
template <class T, int PACKS> constexpr int resident_blocks() {
    return 65536 / THREADS / (PACKS * Pack<T>::SIZE * (8 + 3 * (int)sizeof(T)) / 4 + 40);
}

/* As many blocks as are resident on the 132 SMs of an H200, on any card: the order of the sums, and so their bits,
   depend on the shape alone. */
static int partial_blocks(int64_t rows_at_a_time, int resident, int64_t C) {
    int64_t blocks = 132 * resident;
    if (blocks > rows_at_a_time) blocks = rows_at_a_time;
    if (blocks > PARTIAL_ROOM / (2 * C)) blocks = PARTIAL_ROOM / (2 * C);
    return (int)blocks;
}

/* Sums over a team of warps; every lane gets them. Two slots alternate from row to row: the barrier of the row between
   separates the reads of a slot from its next writes. */
template <int TEAM> __device__ inline float2 team_sum(float2 v, int team, int turn) {
    v.x = warp_sum(v.x);
    v.y = warp_sum(v.y);
    if (TEAM > 1) {
        __shared__ float2 slot[2][WARPS];
        if (threadIdx.x % 32 == 0) slot[turn][threadIdx.x / 32] = v;
        asm volatile("bar.sync %0, %1;" :: "r"(team + 1), "n"(32 * TEAM) : "memory");
        v = slot[turn][team * TEAM];
        #pragma unroll
        for (int w = 1; w < TEAM; w++) {
            v.x += slot[turn][team * TEAM + w].x;
            v.y += slot[turn][team * TEAM + w].y;
        }
    }
    return v;
}

/* One pass over dnormed and x makes dx and the block's part of dweight and dbias. The operands stay as they were
   loaded and are widened twice, which halves their registers in bf16. */
template <class T, int PACKS, int TEAM> __global__ void __launch_bounds__(THREADS, resident_blocks<T, PACKS>())
layernorm_backward_kernel(T *dx, const T *dnormed, const T *x, const float *mean, const float *rstd, const T *weight,
                          int64_t rows, int C, bool add) {
    constexpr int SIZE = Pack<T>::SIZE, TEAMS = WARPS / TEAM;
    extern __shared__ float block_total[];
    const int lane = threadIdx.x % (32 * TEAM), team = threadIdx.x / (32 * TEAM);
    float dw[PACKS][SIZE] = {}, db[PACKS][SIZE] = {};
    int turn = 0;
    for (int64_t row = (int64_t)blockIdx.x * TEAMS + team; row < rows; row += (int64_t)gridDim.x * TEAMS, turn ^= 1) {
        const int64_t at = row * C;
        Pack<T> x_pack[PACKS], dn_pack[PACKS], dx_pack[PACKS];
        #pragma unroll
        for (int j = 0; j < PACKS; j++) {
            const int c = (32 * TEAM * j + lane) * SIZE;
            x_pack[j].bits = dn_pack[j].bits = dx_pack[j].bits = make_uint4(0, 0, 0, 0);
            if (c < C) x_pack[j] = Pack<T>::load_once(x + at + c);
            if (c < C) dn_pack[j] = Pack<T>::load_once(dnormed + at + c);
            if (c < C && add) dx_pack[j] = Pack<T>::load(dx + at + c);
        }
        const float mu = mean[row], scale = rstd[row];
        float2 sums = { 0, 0 };                     /* of g = dnormed * weight, and of g times the normalised x */
        #pragma unroll
        for (int j = 0; j < PACKS; j++) {
            const int c = (32 * TEAM * j + lane) * SIZE;
            if (c >= C) continue;
            float value[SIZE], dn[SIZE], w[SIZE];
            x_pack[j].to_float(value);
            dn_pack[j].to_float(dn);
            Pack<T>::load(weight + c).to_float(w);
            #pragma unroll
            for (int k = 0; k < SIZE; k++) {
                const float normed = (value[k] - mu) * scale, g = dn[k] * w[k];
                dw[j][k] += dn[k] * normed;
                db[j][k] += dn[k];
                sums.x += g;
                sums.y += g * normed;
            }
        }
        sums = team_sum<TEAM>(sums, team, turn);
        const float g_mean = sums.x / (float)C, gx_mean = sums.y / (float)C;
        #pragma unroll
        for (int j = 0; j < PACKS; j++) {
            const int c = (32 * TEAM * j + lane) * SIZE;
            if (c >= C) continue;
            float value[SIZE], dn[SIZE], w[SIZE], to[SIZE];
            x_pack[j].to_float(value);
            dn_pack[j].to_float(dn);
            dx_pack[j].to_float(to);
            Pack<T>::load(weight + c).to_float(w);
            #pragma unroll
            for (int k = 0; k < SIZE; k++)
                to[k] += scale * (dn[k] * w[k] - g_mean - (value[k] - mu) * scale * gx_mean);
            Pack<T>::from_float(to).store(dx + at + c);
        }
    }
    for (int t = 0; t < TEAMS; t++) {               /* the teams add their sums in turn */
        #pragma unroll
        for (int j = 0; j < PACKS; j++) {
            const int c = (32 * TEAM * j + lane) * SIZE;
            if (team != t || c >= C) continue;
            #pragma unroll
            for (int k = 0; k < SIZE; k++) {
                block_total[c + k]     = (t ? block_total[c + k]     : 0.0f) + dw[j][k];
                block_total[C + c + k] = (t ? block_total[C + c + k] : 0.0f) + db[j][k];
            }
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < 2 * C; i += THREADS) partial[(int64_t)blockIdx.x * 2 * C + i] = block_total[i];
}

template <class T> __global__ void __launch_bounds__(THREADS)
layernorm_dx_any_kernel(T *dx, const T *dnormed, const T *x, const float *mean, const float *rstd, const T *weight,
                        int64_t rows, int C, bool add) {
    const int lane = threadIdx.x % 32;
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, at = row * C;
    if (row >= rows) return;
    const float mu = mean[row], scale = rstd[row];
    float g_sum = 0, gx_sum = 0;
    for (int c = lane; c < C; c += 32) {
        const float g = to_float(dnormed[at + c]) * to_float(weight[c]);
        g_sum += g;
        gx_sum += g * ((to_float(x[at + c]) - mu) * scale);
    }
    const float g_mean = warp_sum(g_sum) / (float)C, gx_mean = warp_sum(gx_sum) / (float)C;
    for (int c = lane; c < C; c += 32) {
        const float g = to_float(dnormed[at + c]) * to_float(weight[c]);
        const float to = scale * (g - g_mean - (to_float(x[at + c]) - mu) * scale * gx_mean);
        dx[at + c] = from_float<T>((add ? to_float(dx[at + c]) : 0.0f) + to);
    }
}

/* A block has 32 columns; each of its 4 warps every fourth of the rows of blockIdx.y. */
template <class T> __global__ void __launch_bounds__(THREADS)
layernorm_partial_any_kernel(const T *dnormed, const T *x, const float *mean, const float *rstd, int64_t rows, int C) {
    __shared__ float2 part[WARPS][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = blockIdx.x * 32 + lane;
    float2 sum = { 0, 0 };
    for (int64_t row = (int64_t)blockIdx.y * WARPS + warp; c < C && row < rows; row += (int64_t)gridDim.y * WARPS) {
        const float dn = to_float(dnormed[row * C + c]);
        sum.x += dn * ((to_float(x[row * C + c]) - mean[row]) * rstd[row]);
        sum.y += dn;
    }
    part[warp][lane] = sum;
    __syncthreads();
    if (warp || c >= C) return;
    for (int w = 1; w < WARPS; w++) {
        sum.x += part[w][lane].x;
        sum.y += part[w][lane].y;
    }
    partial[(int64_t)blockIdx.y * 2 * C + c] = sum.x;
    partial[(int64_t)blockIdx.y * 2 * C + C + c] = sum.y;
}

template <class T> static int dx_and_partial_any(Tensor dx, Tensor dnormed, Tensor x, Tensor mean, Tensor rstd,
                                                 Tensor weight, Into dx_into) {
    const int64_t rows = tensor_rows(x), C = tensor_columns(x);
    const int blocks = partial_blocks(ceil_div(rows, 64), 1, C);
    LAUNCH(layernorm_dx_any_kernel<T>, (unsigned)ceil_div(rows, WARPS), THREADS, 0, (T *)dx.data,
           (const T *)dnormed.data, (const T *)x.data, (const float *)mean.data, (const float *)rstd.data,
           (const T *)weight.data, rows, (int)C, dx_into == ACCUMULATE);
    LAUNCH(layernorm_partial_any_kernel<T>, dim3((unsigned)ceil_div(C, 32), (unsigned)blocks), THREADS, 0,
           (const T *)dnormed.data, (const T *)x.data, (const float *)mean.data, (const float *)rstd.data,
           rows, (int)C);
    return blocks;
}

template <class T, int ELEMENTS, int TEAM> static int dx_and_partial(Tensor dx, Tensor dnormed, Tensor x, Tensor mean,
                                                                     Tensor rstd, Tensor weight, Into dx_into) {
    constexpr int PACKS = ELEMENTS / Pack<T>::SIZE;
    const int64_t rows = tensor_rows(x), C = tensor_columns(x);
    const int blocks = partial_blocks(ceil_div(rows, WARPS / TEAM), resident_blocks<T, PACKS>(), C);
    LAUNCH((layernorm_backward_kernel<T, PACKS, TEAM>), (unsigned)blocks, THREADS, 2 * (size_t)C * sizeof(float),
           (T *)dx.data, (const T *)dnormed.data, (const T *)x.data, (const float *)mean.data, (const float *)rstd.data,
           (const T *)weight.data, rows, (int)C, dx_into == ACCUMULATE);
    return blocks;
}

template <class T> static void backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dnormed, Tensor x, Tensor mean,
                                        Tensor rstd, Tensor weight, Into dx_into, Into dweight_into) {
    const int64_t C = tensor_columns(x);
    const bool aligned = rows_aligned(dx) && rows_aligned(dnormed) && rows_aligned(x) && rows_aligned(weight);
    const auto first_kernel = !aligned || C > 2048 ? dx_and_partial_any<T>
                            : C <= 256  ? dx_and_partial<T,  8, 1>
                            : C <= 512  ? dx_and_partial<T, 16, 1>
                            : C <= 768  ? dx_and_partial<T, 24, 1>
                            : C <= 1024 ? dx_and_partial<T, 32, 1>
                            : C <= 1536 ? dx_and_partial<T, 24, 2>
                                        : dx_and_partial<T, 32, 2>;
    const int blocks = first_kernel(dx, dnormed, x, mean, rstd, weight, dx_into);
    static void *sums;                      /* looked up once: not while a CUDA graph is recorded */
    if (!sums) CUDA(cudaGetSymbolAddress(&sums, partial));
    slices_sum(dweight, dbias, (const float *)sums, blocks, dweight_into);
}

void layernorm_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dnormed,
                        Tensor x, Tensor mean, Tensor rstd, Tensor weight, Into dx_into, Into dweight_into) {
    check_layernorm_backward(dx, dweight, dbias, dnormed, x, mean, rstd, weight);
    op_begin("layernorm backward", op_bytes(dx_into == ACCUMULATE ? 6 : 5, dx, dnormed, x, mean, rstd, dx), 0);
    if (x.dtype == BF16) backward<bf16>(dx, dweight, dbias, dnormed, x, mean, rstd, weight, dx_into, dweight_into);
    else                 backward<float>(dx, dweight, dbias, dnormed, x, mean, rstd, weight, dx_into, dweight_into);
    op_end();
}
