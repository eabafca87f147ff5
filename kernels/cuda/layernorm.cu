/* LayerNorm. Rows of up to 2048 columns are held in the registers of one warp (forward) or of a team of one to eight
   warps (backward), and are read once. Longer rows are in a block of 1024 threads each. */
#include "partial_sums.cuh"
#include "ptx.cuh"
extern "C" {
#include "../layernorm.h"
}

enum { WARP = 32, WIDE = 1024 };        /* threads of a row: of up to NARROW_COLUMNS, and of more */
enum { NARROW_COLUMNS = 2048 };

static constexpr float EPS = 1e-5f;

/* ---- forward */

template <int TEAM> constexpr int BLOCK = TEAM == WARP ? 128 : TEAM;

template <int TEAM> __device__ inline float sum_over(float x) {
    if constexpr (TEAM == WARP) return warp_sum(x);
    else                        return block_sum(x);
}

/* The variance is that of the differences from the mean, a second pass over registers. The sum is normalised as it is
   stored, rounded: the backward pass reads it and must see the same x. sum may be the memory of x: each element is read
   and then written by one lane only. */
template <class T, int PACKS, int TEAM = WARP> __global__ void __launch_bounds__(BLOCK<TEAM>)
layernorm_forward_kernel(T *sum, T *normed, float *max, float *mean, float *rstd, const T *x, const T *branch,
                         const T *weight, const T *bias, int64_t rows, int C) {
    wait_for_previous();
    constexpr int SIZE = Pack<T>::SIZE;
    const int lane = threadIdx.x % TEAM;
    const int64_t row = (int64_t)blockIdx.x * (BLOCK<TEAM> / TEAM) + threadIdx.x / TEAM, at = row * C;
    if (row >= rows) return;
    Pack<T> pack[PACKS], added[PACKS];
    #pragma unroll
    for (int j = 0; j < PACKS; j++) {
        const int c = (TEAM * j + lane) * SIZE;
        pack[j].bits = added[j].bits = make_uint4(0, 0, 0, 0);
        if (c < C) pack[j] = Pack<T>::load(x + at + c);
        if (c < C && branch) added[j] = Pack<T>::load_once(branch + at + c);
    }
    float value[PACKS][SIZE], total = 0, squares = 0;
    #pragma unroll
    for (int j = 0; j < PACKS; j++) {
        const int c = (TEAM * j + lane) * SIZE;
        pack[j].to_float(value[j]);
        if (branch) {
            float f[SIZE];
            added[j].to_float(f);
            for (int k = 0; k < SIZE; k++) f[k] += value[j][k];
            const Pack<T> rounded = Pack<T>::from_float(f);
            if (c < C) rounded.store(sum + at + c);
            rounded.to_float(value[j]);
        }
        for (int k = 0; k < SIZE; k++) total += value[j][k];
    }
    const float mu = sum_over<TEAM>(total) / (float)C;
    #pragma unroll
    for (int j = 0; j < PACKS; j++) {
        if ((TEAM * j + lane) * SIZE >= C) continue;
        for (int k = 0; k < SIZE; k++) squares += (value[j][k] - mu) * (value[j][k] - mu);
    }
    const float scale = 1.0f / sqrtf(sum_over<TEAM>(squares) / (float)C + EPS);
    unsigned bits = 0;
    #pragma unroll
    for (int j = 0; j < PACKS; j++) {
        const int c = (TEAM * j + lane) * SIZE;
        if (c >= C) continue;
        float w[SIZE], b[SIZE];
        Pack<T>::load(weight + c).to_float(w);
        Pack<T>::load(bias + c).to_float(b);
        for (int k = 0; k < SIZE; k++) b[k] += (value[j][k] - mu) * scale * w[k];
        const Pack<T> rounded = Pack<T>::from_float(b);
        rounded.store(normed + at + c);
        if (max) bits = max_magnitude(bits, rounded);
    }
    max_raise(max, bits);
    if (lane == 0) {
        mean[row] = mu;
        rstd[row] = scale;
    }
}

template <class T> static void forward(Tensor sum, Tensor normed, Tensor mean, Tensor rstd,
                                       Tensor x, Tensor branch, Tensor weight, Tensor bias) {
    constexpr int SIZE = Pack<T>::SIZE;
    const int64_t rows = tensor_rows(x), C = tensor_columns(x), threads = C > NARROW_COLUMNS ? WIDE : BLOCK<WARP>;
    const int64_t block_rows = C > NARROW_COLUMNS ? 1 : BLOCK<WARP> / WARP;
    const auto layernorm_forward = C > NARROW_COLUMNS ? layernorm_forward_kernel<T, 16 / SIZE, WIDE>
                                 : C <= 256  ? layernorm_forward_kernel<T,  8 / SIZE>
                                 : C <= 512  ? layernorm_forward_kernel<T, 16 / SIZE>
                                 : C <= 768  ? layernorm_forward_kernel<T, 24 / SIZE>
                                 : C <= 1024 ? layernorm_forward_kernel<T, 32 / SIZE>
                                 : C <= 1280 ? layernorm_forward_kernel<T, 40 / SIZE>
                                             : layernorm_forward_kernel<T, 64 / SIZE>;
    LAUNCH_EARLY(layernorm_forward, (unsigned)ceil_div(rows, block_rows), (unsigned)threads, 0, sum, normed, normed.max,
                 mean, rstd, x, branch, weight, bias, rows, C);
}

void residual_layernorm_forward(Tensor sum, Tensor normed, Tensor mean, Tensor rstd,
                                Tensor x, Tensor branch, Tensor weight, Tensor bias) {
    check_residual_layernorm(sum, normed, mean, rstd, x, branch, weight, bias);
    require_aligned_rows("layernorm", { x, normed, weight, bias, branch, sum });
    op_begin("residual layernorm", op_bytes(branch.data ? 6 : 4, normed, mean, rstd, x, branch, sum), 0);
    max_begin(normed.max);
    if (x.dtype == BF16) forward<bf16>(sum, normed, mean, rstd, x, branch, weight, bias);
    else                 forward<float>(sum, normed, mean, rstd, x, branch, weight, bias);
    op_end();
}

/* ---- backward */

/* A lane has 8 columns, of two rows at a time: a team of one warp does for C up to 256, one of eight for 2048. While a
   warp computes, its next two rows are on their way to shared memory: in bf16 72 KiB for the 24 warps of an SM, where
   3.2 TB/s of loads at a latency of 900 ns need 22 KiB. Operands are read there twice, not kept in registers: 24 hold
   the sums of a lane's columns. In f32 8 warps have 96 KiB, what an SM of compute capability 8.6 gives to a block. */
enum { COLUMNS = 8, TOGETHER = 2 };
template <class T> constexpr int MAX_WARPS = sizeof(T) == 2 ? 12 : 8;
template <class T> constexpr int RESIDENT_WARPS = sizeof(T) == 2 ? 24 : 16;
template <class T> constexpr int STAGED_BYTES = 2 * 3 * TOGETHER * COLUMNS * (int)sizeof(T);     /* per thread */

/* Sums over a team of warps; every lane gets them. Each of two steps halves the values of a lane: 6 shuffles for 20.
   Two slots alternate from call to call: the barrier of the call between separates the reads of a slot from its next
   writes. */
__device__ inline float4 team_sum(float4 v, int team, int team_warps, int turn) {
    __shared__ float4 slot[2][MAX_WARPS<bf16>];
    const unsigned all = 0xffffffffu;
    const int lane = threadIdx.x % 32;
    const bool upper = lane & 16, odd = lane & 8;
    const float a = (upper ? v.z : v.x) + __shfl_xor_sync(all, upper ? v.x : v.z, 16);
    const float b = (upper ? v.w : v.y) + __shfl_xor_sync(all, upper ? v.y : v.w, 16);
    const float sum = warp_sum<8>((odd ? b : a) + __shfl_xor_sync(all, odd ? a : b, 8)); /* 8 lanes have x, 8 y .. */
    if (team_warps == 1) return make_float4(__shfl_sync(all, sum, 0), __shfl_sync(all, sum, 8),
                                            __shfl_sync(all, sum, 16), __shfl_sync(all, sum, 24));
    if (lane % 8 == 0) ((float *)&slot[turn][threadIdx.x / 32])[lane / 8] = sum;
    asm volatile("bar.sync %0, %1;" :: "r"(team + 1), "r"(32 * team_warps) : "memory");
    v = slot[turn][team * team_warps];
    #pragma unroll 1
    for (int w = 1; w < team_warps; w++) {
        const float4 other = slot[turn][team * team_warps + w];
        v = make_float4(v.x + other.x, v.y + other.y, v.z + other.z, v.w + other.w);
    }
    return v;
}

/* One pass over dnormed, x and dx makes dx and the block's part of the column sums: of dweight, dbias, and dx as it is
   stored. Outside of the tensors operands are 0, as are mean and rstd, and so are all terms of sums. */
template <class T> __global__ void __launch_bounds__(32 * MAX_WARPS<T>, RESIDENT_WARPS<T> / MAX_WARPS<T>)
layernorm_backward_kernel(PartialSums sums, T *dx, float *max, const T *dnormed, const T *x, const float *mean,
                          const float *rstd, const T *weight, int64_t rows, int C, float per_column, int team_warps,
                          bool add) {
    wait_for_previous();
    constexpr int SIZE = Pack<T>::SIZE, PACKS = COLUMNS / SIZE;
    extern __shared__ uint4 staged[];               /* (warps, 2, 3, TOGETHER, PACKS, 32), then (teams, 3 C) floats */
    const int team_lanes = 32 * team_warps, teams = blockDim.x / team_lanes;
    const int team = threadIdx.x / team_lanes, lane = threadIdx.x % team_lanes;
    const int64_t step = (int64_t)gridDim.x * teams * TOGETHER;
    float dw[PACKS][SIZE] = {}, db[PACKS][SIZE] = {}, dx_total[PACKS][SIZE] = {};
    int64_t row = (int64_t)(blockIdx.x * teams + team) * TOGETHER;

    /* A thread reads only what it has copied itself: no barrier. */
    float next_mu[TOGETHER], next_scale[TOGETHER];
    Pack<T> *const own_staged =
        (Pack<T> *)staged + threadIdx.x / 32 * (32 * 2 * 3 * TOGETHER * PACKS) + threadIdx.x % 32;
    const auto staged_pack = [&](int turn, int operand, int r, int j) {
        return own_staged + turn * (32 * 3 * TOGETHER * PACKS) + ((operand * TOGETHER + r) * PACKS + j) * 32;
    };
    const auto load = [&](int64_t row, int turn) {
        #pragma unroll
        for (int r = 0; r < TOGETHER; r++) {
            const bool inside = row + r < rows;
            #pragma unroll
            for (int j = 0; j < PACKS; j++) {
                const int c = (team_lanes * j + lane) * SIZE;
                const int64_t at = (row + r) * C + c;
                const bool own = inside && c < C;
                cp_async_16(shared_address(staged_pack(turn, 0, r, j)), x + at, own);
                cp_async_16(shared_address(staged_pack(turn, 1, r, j)), dnormed + at, own);
                cp_async_16(shared_address(staged_pack(turn, 2, r, j)), dx + at, own && add);
            }
            next_mu[r] = inside ? mean[row + r] : 0;
            next_scale[r] = inside ? rstd[row + r] : 0;
        }
        cp_async_commit_group();
    };
    load(row, 0);
    Pack<T> w_pack[PACKS];
    #pragma unroll
    for (int j = 0; j < PACKS; j++) {
        const int c = (team_lanes * j + lane) * SIZE;
        w_pack[j].bits = make_uint4(0, 0, 0, 0);
        if (c < C) w_pack[j] = Pack<T>::load(weight + c);
    }
    for (int turn = 0; row < rows; row += step, turn ^= 1) {
        float mu[TOGETHER], scale[TOGETHER], sum[TOGETHER][2] = {};
        for (int r = 0; r < TOGETHER; r++) {
            mu[r] = next_mu[r];
            scale[r] = next_scale[r];
        }
        load(row + step, turn ^ 1);
        cp_async_wait_group<1>();
        #pragma unroll
        for (int j = 0; j < PACKS; j++) {           /* sums of g = dnormed * weight, and of g (x - mean) */
            float w[SIZE];
            w_pack[j].to_float(w);
            #pragma unroll
            for (int r = 0; r < TOGETHER; r++) {
                float value[SIZE], dn[SIZE];
                staged_pack(turn, 0, r, j)->to_float(value);
                staged_pack(turn, 1, r, j)->to_float(dn);
                for (int k = 0; k < SIZE; k++) {
                    const float centred = value[k] - mu[r], g = dn[k] * w[k];
                    dw[j][k] += dn[k] * (centred * scale[r]);
                    db[j][k] += dn[k];
                    sum[r][0] += g;
                    sum[r][1] += g * centred;
                }
            }
        }
        const float4 total = team_sum({ sum[0][0], sum[0][1], sum[1][0], sum[1][1] }, team, team_warps, turn);
        const float g_mean[TOGETHER]  = { total.x * per_column, total.z * per_column };
        const float gx_mean[TOGETHER] = { total.y * per_column * scale[0], total.w * per_column * scale[1] };
        #pragma unroll
        for (int j = 0; j < PACKS; j++) {           /* dx = or += rstd (g - mean of g - normed * mean of g normed) */
            const int c = (team_lanes * j + lane) * SIZE;
            float w[SIZE];
            w_pack[j].forget_floats();
            w_pack[j].to_float(w);
            #pragma unroll
            for (int r = 0; r < TOGETHER; r++) {
                const float of_one = -scale[r] * g_mean[r], of_x = -scale[r] * scale[r] * gx_mean[r];
                float value[SIZE], dn[SIZE], to[SIZE];
                staged_pack(turn, 0, r, j)->to_float(value);
                staged_pack(turn, 1, r, j)->to_float(dn);
                staged_pack(turn, 2, r, j)->to_float(to);
                for (int k = 0; k < SIZE; k++)
                    to[k] += scale[r] * (dn[k] * w[k]) + ((value[k] - mu[r]) * of_x + of_one);
                const Pack<T> rounded = Pack<T>::from_float(to);
                if (c < C && row + r < rows) rounded.store(dx + (row + r) * C + c);
                if (max) max_raise(max, max_magnitude(0, rounded));     /* each row: no register is left for bits */
                rounded.to_float(to);
                for (int k = 0; k < SIZE; k++) dx_total[j][k] += to[k];
            }
        }
    }
    cp_async_wait_all();
    __syncthreads();                                /* the copies have ended: the memory is free for the sums */
    float *const team_total = (float *)staged;
    #pragma unroll
    for (int j = 0; j < PACKS; j++) {
        const int c = (team_lanes * j + lane) * SIZE;
        if (c >= C) continue;
        float *to = team_total + team * 3 * C + c;
        for (int k = 0; k < SIZE; k++) {
            to[k]         = dw[j][k];
            to[C + k]     = db[j][k];
            to[2 * C + k] = dx_total[j][k];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < sums.columns; i += blockDim.x) {
        float total = 0;
        #pragma unroll 4
        for (int t = 0; t < teams; t++) total += team_total[t * 3 * C + i];
        sums.partial[(int64_t)blockIdx.x * sums.columns + i] = total;
    }
}

/* Longer rows. A block has every gridDim.x-th row, and its column sums in shared memory: (3, SIZE, C / SIZE), so that
   neighbouring threads, which have neighbouring packs, use different banks. A thread adds to its own columns only. */
template <class T> __global__ void __launch_bounds__(WIDE)
layernorm_backward_wide_kernel(PartialSums sums, T *dx, float *max, const T *dnormed, const T *x, const float *mean,
                               const float *rstd, const T *weight, int64_t rows, int C, bool add) {
    wait_for_previous();
    constexpr int SIZE = Pack<T>::SIZE;
    extern __shared__ float total[];
    const int packs = C / SIZE;
    unsigned bits = 0;
    for (int i = threadIdx.x; i < 3 * C; i += WIDE) total[i] = 0;
    __syncthreads();
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const float mu = mean[row], scale = rstd[row];
        const int64_t at = row * C;
        float g_sum = 0, gx_sum = 0, value[SIZE], dn[SIZE], w[SIZE];
        for (int p = threadIdx.x; p < packs; p += WIDE) {
            load_floats(value, x + at + p * SIZE);
            load_floats(dn, dnormed + at + p * SIZE);
            load_floats(w, weight + p * SIZE);
            for (int k = 0; k < SIZE; k++) {
                const float normed = (value[k] - mu) * scale, g = dn[k] * w[k];
                total[k * packs + p] += dn[k] * normed;
                total[(SIZE + k) * packs + p] += dn[k];
                g_sum += g;
                gx_sum += g * normed;
            }
        }
        const float g_mean = block_sum(g_sum) / (float)C, gx_mean = block_sum(gx_sum) / (float)C;
        for (int p = threadIdx.x; p < packs; p += WIDE) {
            float to[SIZE] = {};
            load_floats(value, x + at + p * SIZE);
            load_floats(dn, dnormed + at + p * SIZE);
            load_floats(w, weight + p * SIZE);
            if (add) load_floats(to, dx + at + p * SIZE);
            for (int k = 0; k < SIZE; k++) {
                to[k] += scale * (dn[k] * w[k] - g_mean - (value[k] - mu) * scale * gx_mean);
                total[(2 * SIZE + k) * packs + p] += to_float(from_float<T>(to[k]));
            }
            bits = max_magnitude(bits, Pack<T>::from_float(to));
            store_floats(dx + at + p * SIZE, to);
        }
    }
    max_raise(max, bits);
    __syncthreads();
    for (int i = threadIdx.x; i < sums.columns; i += WIDE)
        sums.partial[(int64_t)blockIdx.x * sums.columns + i] = total[(i / C * SIZE + i % SIZE) * packs + i % C / SIZE];
}

/* The number of blocks is what the 132 SMs of an H200 hold, on any card: the order of the sums, and so their bits,
   depend on the shape alone. */
template <class T> static void backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dx_sum, Tensor dnormed,
                                        Tensor x, Tensor mean, Tensor rstd, Tensor weight, Into dx_into, Into into) {
    const int64_t rows = tensor_rows(x), C = tensor_columns(x);
    const bool wide = C > NARROW_COLUMNS, add = dx_into == ACCUMULATE;
    const int team_warps = (int)ceil_div(C, 32 * COLUMNS), teams = wide ? 1 : MAX_WARPS<T> / team_warps;
    const int warps = wide ? 12 : teams * team_warps;
    int64_t blocks = wide ? min((int64_t)132, rows)
                          : min((int64_t)132 * (RESIDENT_WARPS<T> / warps), ceil_div(rows, TOGETHER * teams));
    blocks = min(blocks, PARTIAL_COUNT / (3 * C));
    const int64_t sum_bytes = 3 * teams * C * (int64_t)sizeof(float), staged_bytes = 32 * warps * STAGED_BYTES<T>;
    const PartialSums sums = partial_sums(blocks, dweight, dbias, dx_sum, into);
    if (wide)
        LAUNCH_EARLY(layernorm_backward_wide_kernel<T>, (unsigned)blocks, WIDE, sum_bytes, sums, dx, dx.max, dnormed, x,
                     mean, rstd, weight, rows, C, add);
    else
        LAUNCH_EARLY(layernorm_backward_kernel<T>, (unsigned)blocks, 32 * warps, max(sum_bytes, staged_bytes), sums, dx,
                     dx.max, dnormed, x, mean, rstd, weight, rows, C, 1.0f / (float)C, team_warps, add);
    device_side_begin();
    partial_sums_add(sums, warps);
    device_side_end();
}

void layernorm_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dx_sum, Tensor dnormed,
                        Tensor x, Tensor mean, Tensor rstd, Tensor weight, Into dx_into, Into into) {
    check_layernorm_backward(dx, dweight, dbias, dx_sum, dnormed, x, mean, rstd, weight);
    require_aligned_rows("layernorm backward", { dx, dnormed, x, weight });
    op_begin("layernorm backward", op_bytes(dx_into == ACCUMULATE ? 6 : 5, dx, dnormed, x, mean, rstd, dx), 0);
    max_begin(dx.max);
    (x.dtype == BF16 ? backward<bf16> : backward<float>)(dx, dweight, dbias, dx_sum, dnormed, x, mean, rstd, weight,
                                                         dx_into, into);
    op_end();
}
