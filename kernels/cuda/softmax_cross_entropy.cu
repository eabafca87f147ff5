/* Softmax cross-entropy: a block a row. The gradient takes the place of the f32 logits; in bf16 it fills the front half
   of each row. */
#include "cuda.h"
extern "C" {
#include "../softmax_cross_entropy.h"
}

enum {
    MOST_THREADS = 1024,
    BATCH = 4               /* accesses that are under way before the first is used */
};

__device__ static float block_max(float x) {
    __shared__ float partial[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    x = warp_max(x);
    __syncthreads();
    if (lane == 0) partial[warp] = x;
    __syncthreads();
    return warp_max(lane < warps ? partial[lane] : -INFINITY);
}

/* WIDTH consecutive floats (4 or 1) as one access; what is stored is rounded to D. */
template <int WIDTH> __device__ inline void load_floats(float (&f)[WIDTH], const float *x) {
    if constexpr (WIDTH == 1) f[0] = *x;
    else                      Pack<float>::load(x).to_float(f);
}

template <int WIDTH> __device__ inline void store_floats(float *x, const float (&f)[WIDTH]) {
    if constexpr (WIDTH == 1) *x = f[0];
    else                      Pack<float>::from_float(f).store(x);
}

template <int WIDTH> __device__ inline void store_floats(__nv_bfloat16 *x, const float (&f)[WIDTH]) {
    if constexpr (WIDTH == 1) *x = from_float<__nv_bfloat16>(f[0]);
    else                      *(uint2 *)x = make_uint2(bf16_pair(f[0], f[1]), bf16_pair(f[2], f[3]));
}

/* f32 is there to be compared with the CPU; 2^x of the special function unit is as good as bf16 ever needs. */
template <class D> __device__ inline float exp_of(float x);
template <> __device__ inline float exp_of<float>(float x)         { return expf(x); }
template <> __device__ inline float exp_of<__nv_bfloat16>(float x) { return __expf(x); }

/* dloss * (softmax - one at target) over the logits of a row; zero in the padding, and all over where it is ignored. */
template <class D, int WIDTH> __device__ inline void
write_gradient(float *logit, const float *kept, int held, int V, int Vp, int target, bool ignored, float greatest,
               float scale, float dloss) {
    const int stride = blockDim.x * WIDTH, own = threadIdx.x * WIDTH;
    D *gradient = (D *)logit;
    for (int tile = 0; tile < Vp; tile += stride) {
        const int column = tile + own;
        float f[WIDTH];
        if (!ignored && column < V) {
            if (column < held) load_floats<WIDTH>(f, kept + column);
            else               load_floats<WIDTH>(f, logit + column);
            #pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                f[i] = column + i < V ? exp_of<D>(f[i] - greatest) * scale : 0.0f;
                if (column + i == target) f[i] -= dloss;
            }
        } else {
            #pragma unroll
            for (int i = 0; i < WIDTH; i++) f[i] = 0.0f;
        }
        /* bf16 of this tile lie over logits of this tile or earlier ones: all threads have read those now */
        if (sizeof(D) < sizeof(float) && !ignored && tile + stride > held) __syncthreads();
        if (column < Vp) store_floats<WIDTH>(gradient + column, f);
    }
}

/* A block takes a row of the chunk: its loss, and with HAS_GRADIENT the gradient dloss * (softmax - one at target) over
   its logits. The first held logits are kept in shared memory, all of them where it is large enough, so that they are
   read once from far. */
template <class D, int WIDTH, bool HAS_GRADIENT> __global__ void __launch_bounds__(MOST_THREADS)
softmax_kernel(float *losses, float *logits, int64_t pitch, const int32_t *targets, int V, int Vp, float dloss,
               int held) {
    extern __shared__ float4 shared[];
    float *kept = (float *)shared, *logit = logits + blockIdx.x * pitch;
    const int target = targets[blockIdx.x], stride = blockDim.x * WIDTH, own = threadIdx.x * WIDTH;
    const bool ignored = target < 0 || target >= V;
    float greatest = -INFINITY, sum = 0, scale = 0;

    if (ignored) {
        if (threadIdx.x == 0) losses[blockIdx.x] = target == -1 ? 0.0f : NAN;     /* NAN: no step is made of it */
    } else {
        for (int first = own; first < V; first += BATCH * stride) {
            float f[BATCH][WIDTH], most = greatest;
            #pragma unroll
            for (int k = 0; k < BATCH; k++) {
                const int column = first + k * stride;
                if (column < V) load_floats<WIDTH>(f[k], logit + column);
                #pragma unroll
                for (int i = 0; i < WIDTH; i++)
                    if (column + i >= V) f[k][i] = -INFINITY;
            }
            #pragma unroll
            for (int k = 0; k < BATCH; k++) {
                const int column = first + k * stride;
                if (HAS_GRADIENT && column < held) store_floats<WIDTH>(kept + column, f[k]);
                #pragma unroll
                for (int i = 0; i < WIDTH; i++) most = fmaxf(most, f[k][i]);
            }
            const float from = most == -INFINITY ? 0.0f : most;      /* infinity - infinity is none of ours */
            sum *= exp_of<D>(greatest - from);
            #pragma unroll
            for (int k = 0; k < BATCH; k++)
                #pragma unroll
                for (int i = 0; i < WIDTH; i++) sum += exp_of<D>(f[k][i] - from);
            greatest = most;
        }
        const float at_target = threadIdx.x == 0 ? logit[target] : 0.0f;
        const float row_greatest = block_max(greatest);
        sum = block_sum(sum * exp_of<D>(greatest - row_greatest));
        if (threadIdx.x == 0) losses[blockIdx.x] = logf(sum) + (row_greatest - at_target);
        greatest = row_greatest;
        scale = dloss / sum;
    }
    if constexpr (HAS_GRADIENT)
        write_gradient<D, WIDTH>(logit, kept, held, V, Vp, target, ignored, greatest, scale, dloss);
}

template <class D, int WIDTH, bool HAS_GRADIENT>
static void softmax_rows(Tensor losses, Tensor logits, Tensor targets, int V, float dloss) {
    static int most_held = -1;          /* floats of shared memory, which the runtime must be asked for */
    if (HAS_GRADIENT && most_held < 0) {
        int bytes;
        CUDA(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
        bytes -= 1024;                  /* for the two reductions */
        CUDA(cudaFuncSetAttribute(softmax_kernel<D, WIDTH, HAS_GRADIENT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  bytes));
        most_held = bytes / 16 * 4;
    }
    const int row_count = (int)logits.dim[0], columns = (int)logits.dim[1], rounded = (V + 3) / 4 * 4;
    const int held = HAS_GRADIENT ? (rounded < most_held ? rounded : most_held) : 0;
    int threads = 64;
    while (threads < MOST_THREADS && threads * 16 < V) threads *= 2;       /* 16 logits a thread, or more */
    LAUNCH((softmax_kernel<D, WIDTH, HAS_GRADIENT>), row_count, threads, held * sizeof(float), (float *)losses.data,
           (float *)logits.data, logits.pitch, (const int32_t *)targets.data, V, columns, dloss, held);
}

template <class D, int WIDTH>
static void softmax_either(Tensor losses, Tensor logits, Tensor targets, int V, float dloss, bool has_gradient) {
    if (has_gradient) softmax_rows<D, WIDTH, true> (losses, logits, targets, V, dloss);
    else              softmax_rows<D, WIDTH, false>(losses, logits, targets, V, dloss);
}

void softmax_cross_entropy(Tensor losses, Tensor dlogits, Tensor logits, Tensor targets, int V, float dloss) {
    check_softmax_cross_entropy(losses, dlogits, logits, targets, V);
    const bool wide = rows_aligned(logits), is_bf16 = dlogits.dtype == BF16, has_gradient = dlogits.data != NULL;
    if (is_bf16 && wide) softmax_either<__nv_bfloat16, 4>(losses, logits, targets, V, dloss, has_gradient);
    else if (is_bf16)    softmax_either<__nv_bfloat16, 1>(losses, logits, targets, V, dloss, has_gradient);
    else if (wide)       softmax_either<float, 4>(losses, logits, targets, V, dloss, has_gradient);
    else                 softmax_either<float, 1>(losses, logits, targets, V, dloss, has_gradient);
}
