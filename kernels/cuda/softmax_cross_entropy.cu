/* Softmax cross-entropy. Logits in bf16 are read once: a team of threads keeps a row in registers. In f32, and where
   rows are too long for that, a block has a row and reads it twice. */
#include "ptx.cuh"
extern "C" {
#include "../head.h"
}

enum {
    MAX_THREADS = 1024,
    BATCH = 4               /* loads in flight */
};

/* f32 is compared with the CPU; the error of ex2 is far below the rounding of bf16. */
template <class T> __device__ inline float exp_of(float x);
template <> __device__ inline float exp_of<float>(float x) { return expf(x); }
template <> __device__ inline float exp_of<bf16>(float x)  { return ex2(x * LOG2E); }

/* A block has a row: its loss, and with HAS_GRADIENT the gradient over its logits. Each thread writes the columns that
   it reads, the second time probably from the L2. */
template <class T, bool HAS_GRADIENT> __global__ void __launch_bounds__(MAX_THREADS)
softmax_kernel(float *losses, T *logits, int64_t pitch, const int32_t *targets, int V, int Vp, float dloss) {
    wait_for_previous();
    constexpr int WIDTH = Pack<T>::SIZE;
    T *logit = logits + blockIdx.x * pitch;
    const int target = targets[blockIdx.x], stride = blockDim.x * WIDTH, own = threadIdx.x * WIDTH;
    const bool ignored = target < 0 || target >= V;
    float row_max = -INFINITY, sum = 0, scale = 0;     /* first of the thread, then of the row */

    if (ignored) {
        if (threadIdx.x == 0) losses[blockIdx.x] = target == -1 ? 0.0f : NAN;     /* NAN: the step is not applied */
    } else {
        for (int first = own; first < V; first += BATCH * stride) {
            float f[BATCH][WIDTH], new_max = row_max;
            #pragma unroll
            for (int k = 0; k < BATCH; k++) {
                const int column = first + k * stride;
                if (column < V) load_floats(f[k], logit + column);
                for (int i = 0; i < WIDTH; i++)
                    if (column + i >= V) f[k][i] = -INFINITY;
            }
            #pragma unroll
            for (int k = 0; k < BATCH; k++)
                for (int i = 0; i < WIDTH; i++) new_max = fmaxf(new_max, f[k][i]);
            const float shift = new_max == -INFINITY ? 0.0f : new_max;      /* infinity - infinity is NaN */
            sum *= exp_of<T>(row_max - shift);
            #pragma unroll
            for (int k = 0; k < BATCH; k++)
                for (int i = 0; i < WIDTH; i++) sum += exp_of<T>(f[k][i] - shift);
            row_max = new_max;
        }
        const float at_target = threadIdx.x == 0 ? to_float(logit[target]) : 0.0f;
        const float thread_max = row_max;
        row_max = block_max(thread_max);
        sum = block_sum(sum * exp_of<T>(thread_max - row_max));
        if (threadIdx.x == 0) losses[blockIdx.x] = logf(sum) + (row_max - at_target);
        scale = dloss / sum;
    }
    if constexpr (HAS_GRADIENT)
        for (int column = own; column < Vp; column += stride) {
            float f[WIDTH] = {0};
            if (!ignored && column < V) {
                load_floats(f, logit + column);
                for (int i = 0; i < WIDTH; i++) {
                    f[i] = column + i < V ? exp_of<T>(f[i] - row_max) * scale : 0.0f;
                    if (column + i == target) f[i] -= dloss;
                }
            }
            store_floats(logit + column, f);
        }
}

/* ---- Rows in registers */

enum {
    STAGES = 2,             /* rows that are on their way to shared memory while one is in registers */
    SM_THREADS = 1024       /* with 64 registers each */
};
/* Threads of a block: a team, or 8 warps that are a team each. */
template <int TEAM> static constexpr int BLOCK = TEAM == 32 ? 256 : TEAM;

static constexpr float LOWEST = -1e38f;     /* initial maximum: with -infinity, infinity - infinity would be NaN */

/* The maximum of 8 logits and of `max`, a pair of running maxima. */
__device__ inline __nv_bfloat162 max_of(uint4 pack, __nv_bfloat162 max) {
    const unsigned word[4] = { pack.x, pack.y, pack.z, pack.w };
    for (int i = 0; i < 4; i++) max = __hmax2(max, *(const __nv_bfloat162 *)&word[i]);
    return max;
}

/* -infinity in place of all but the first `inside` of 8 logits. */
__device__ inline uint4 keep_first(uint4 pack, int inside) {
    unsigned word[4] = { pack.x, pack.y, pack.z, pack.w };
    for (int i = 0; i < 4; i++) {
        if (2 * i >= inside)     word[i] = word[i] & 0xffff0000u | 0x0000ff80u;
        if (2 * i + 1 >= inside) word[i] = word[i] & 0x0000ffffu | 0xff800000u;
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* sum: of exp(x - max). */
struct Normalizer { float max, sum; };

__device__ inline Normalizer warp_merge(Normalizer x) {
    const float max = warp_max(x.max);
    return { max, warp_sum(x.sum * exp_of<bf16>(x.max - max)) };
}

/* Over a team. One barrier: `stage` alternates, so that no warp writes what another still reads. */
template <int TEAM> __device__ inline Normalizer team_merge(Normalizer x, int stage) {
    x = warp_merge(x);
    if constexpr (TEAM > 32) {
        __shared__ Normalizer partial[STAGES][TEAM / 32];
        const int lane = threadIdx.x % 32;
        if (lane == 0) partial[stage][threadIdx.x / 32] = x;
        __syncthreads();
        x = warp_merge(lane < TEAM / 32 ? partial[stage][lane] : Normalizer{ LOWEST, 0 });
    }
    return x;
}

/* A team of TEAM threads, a warp or the block, has a row, then the one after those of all other teams; a thread has up
   to PACKS packs of 8 columns, TEAM packs apart. It copies its packs to shared memory STAGES rows ahead, and no other
   thread reads them: a row has one barrier, that of the sum. GPT-2's vocabulary, 7 packs, has 200 KB in flight. */
template <int TEAM, int PACKS> __global__ void __launch_bounds__(BLOCK<TEAM>, SM_THREADS / BLOCK<TEAM>)
softmax_rows_kernel(float *losses, bf16 *logits, int64_t pitch, const int32_t *targets, int rows, int V, int Vp,
                    float dloss) {
    wait_for_previous();
    extern __shared__ uint4 staged[];       /* (STAGES, PACKS, threads) */
    constexpr int THREADS = BLOCK<TEAM>, STRIDE = TEAM * 8;
    const int member = threadIdx.x % TEAM, first = member * 8, step = gridDim.x * (THREADS / TEAM);
    int row = blockIdx.x * (THREADS / TEAM) + threadIdx.x / TEAM;
    uint4 *const own = staged + threadIdx.x;
    const auto load = [&](int row, int stage) {
        const bf16 *from = logits + row * pitch + first;
        #pragma unroll
        for (int k = 0; k < PACKS; k++)
            cp_async_16(shared_address(own + (stage * PACKS + k) * THREADS), from + k * STRIDE,
                        row < rows && k * STRIDE < Vp - first);
        cp_async_commit_group();
    };
    for (int stage = 0; stage < STAGES; stage++) load(row + stage * step, stage);
    int target = row < rows ? targets[row] : -1;

    for (int stage = 0; row < rows; row += step, stage = (stage + 1) % STAGES) {
        cp_async_wait_group<STAGES - 1>();
        const uint4 *const arrived = own + stage * PACKS * THREADS;
        const bool ignored = target < 0 || target >= V, has_target = !ignored && target / 8 % TEAM == member;
        const int inside = (ignored ? 0 : V) - first;       /* columns from the thread's first one on */
        uint4 pack[PACKS];
        #pragma unroll
        for (int k = 0; k < PACKS; k++) {
            pack[k] = arrived[k * THREADS];
            if (k * STRIDE + 8 > inside) pack[k] = keep_first(pack[k], inside - k * STRIDE);
        }
        float at_target = 0;
        if (has_target) at_target = to_float(((const bf16 *)(arrived + target / STRIDE * THREADS))[target % 8]);
        load(row + STAGES * step, stage);
        const int next_target = row + step < rows ? targets[row + step] : -1;

        __nv_bfloat162 pair_max = __float2bfloat162_rn(LOWEST);
        #pragma unroll
        for (int k = 0; k < PACKS; k++) pair_max = max_of(pack[k], pair_max);
        Normalizer part = { fmaxf(__low2float(pair_max), __high2float(pair_max)), 0 };
        float sum[2] = {0};
        #pragma unroll
        for (int k = 0; k < PACKS; k++)
            if (k * STRIDE < inside) {
                float f[8];
                Pack<bf16>{ pack[k] }.to_float(f);
                for (int i = 0; i < 8; i++) sum[i % 2] += exp_of<bf16>(f[i] - part.max);
            }
        part.sum = sum[0] + sum[1];
        const Normalizer all = team_merge<TEAM>(part, stage);

        bf16 *const logit = logits + row * pitch;
        const float scale = ignored ? 0.0f : dloss / all.sum;
        #pragma unroll
        for (int k = 0; k < PACKS; k++)
            if (k * STRIDE < Vp - first) {
                float f[8];
                Pack<bf16>{ pack[k] }.to_float(f);
                for (int i = 0; i < 8; i++) f[i] = exp_of<bf16>(f[i] - all.max) * scale;
                Pack<bf16>::from_float(f).store(logit + first + k * STRIDE);
            }
        if (has_target) {
            logit[target] = from_float<bf16>(exp_of<bf16>(at_target - all.max) * scale - dloss);
            losses[row] = logf(all.sum) + (all.max - at_target);
        } else if (ignored && member == 0) {
            losses[row] = target == -1 ? 0.0f : NAN;
        }
        target = next_target;
    }
    cp_async_wait_all();
}

/* Returns false, and does nothing, where the rows are too long for a team, or this GPU has too little shared memory. */
template <int TEAM, int PACKS>
static bool rows_in_registers(Tensor losses, Tensor logits, Tensor targets, int V, float dloss) {
    constexpr int THREADS = BLOCK<TEAM>;
    constexpr size_t SMEM_BYTES = STAGES * PACKS * THREADS * 16;
    const int64_t max_blocks = cuda_sm_count() * (SM_THREADS / THREADS);
    const int64_t blocks = min(ceil_div(logits.dim[0], THREADS / TEAM), max_blocks);
    if (logits.dim[1] > TEAM * PACKS * 8 || SMEM_BYTES + 1024 > cuda_smem_bytes()) return false;
    LAUNCH_EARLY((softmax_rows_kernel<TEAM, PACKS>), (unsigned)blocks, THREADS, SMEM_BYTES, losses, logits,
                 logits.pitch, targets, logits.dim[0], V, logits.dim[1], dloss);
    return true;
}

/* ---- */

template <class T>
static void rows_in_memory(Tensor losses, Tensor logits, Tensor targets, int V, float dloss, bool has_gradient) {
    const auto kernel = has_gradient ? softmax_kernel<T, true> : softmax_kernel<T, false>;
    int threads = 64;
    while (threads < MAX_THREADS && threads * 16 < V) threads *= 2;       /* 16 logits a thread, or more */
    LAUNCH_EARLY(kernel, (unsigned)logits.dim[0], threads, 0, losses, logits, logits.pitch, targets, V, logits.dim[1],
                 dloss);
}

void softmax_cross_entropy(Tensor losses, Tensor dlogits, Tensor logits, Tensor targets, int V, float dloss) {
    check_softmax_cross_entropy(losses, dlogits, logits, targets, V);
    require_aligned_rows("softmax", { logits });
    op_begin("softmax cross-entropy", op_bytes(2, logits, dlogits), 0);
    const bool in_registers = logits.dtype == BF16 && dlogits.data &&
                              (rows_in_registers<32, 1>(losses, logits, targets, V, dloss) ||
                               rows_in_registers<256, 4>(losses, logits, targets, V, dloss) ||
                               rows_in_registers<1024, 7>(losses, logits, targets, V, dloss));
    if (!in_registers)
        (logits.dtype == BF16 ? rows_in_memory<bf16> : rows_in_memory<float>)
            (losses, logits, targets, V, dloss, dlogits.data != NULL);
    op_end();
}
