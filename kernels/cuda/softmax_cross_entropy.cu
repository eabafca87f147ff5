/* Softmax cross-entropy: a block a row. The gradient takes the place of the f32 logits; in bf16 it fills the front half
   of each row. */
#include "common.cuh"
extern "C" {
#include "../softmax_cross_entropy.h"
#include "../profile.h"
}

enum {
    MAX_THREADS = 1024,
    BATCH = 4               /* loads in flight */
};

/* f32 is compared with the CPU; the error of __expf is far below the rounding of bf16. */
template <class D> __device__ inline float exp_of(float x);
template <> __device__ inline float exp_of<float>(float x)         { return expf(x); }
template <> __device__ inline float exp_of<bf16>(float x) { return __expf(x); }

/* dloss * (softmax - one at target) over the logits of a row; zero in the padding, and in a row that is ignored. */
template <class D, int WIDTH> __device__ inline void
write_gradient(float *logit, const float *kept, int held, int V, int Vp, int target, bool ignored, float row_max,
               float scale, float dloss) {
    const int stride = blockDim.x * WIDTH, own = threadIdx.x * WIDTH;
    D *gradient = (D *)logit;
    for (int tile = 0; tile < Vp; tile += stride) {
        const int column = tile + own;
        float f[WIDTH];
        if (!ignored && column < V) {
            if (column < held) load_floats(f, kept + column);
            else               load_floats(f, logit + column);
            #pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                f[i] = column + i < V ? exp_of<D>(f[i] - row_max) * scale : 0.0f;
                if (column + i == target) f[i] -= dloss;
            }
        } else {
            #pragma unroll
            for (int i = 0; i < WIDTH; i++) f[i] = 0.0f;
        }
        /* the bf16 of this tile overwrite logits of this tile and earlier ones: all threads must have read them */
        if (sizeof(D) < sizeof(float) && !ignored && tile + stride > held) __syncthreads();
        if (column < Vp) store_floats(gradient + column, f);
    }
}

/* A block has a row: its loss, and with HAS_GRADIENT the gradient over its logits. The first held logits are kept in
   shared memory, all of them where it is large enough, so that they are read from global memory once. */
template <class D, int WIDTH, bool HAS_GRADIENT> __global__ void __launch_bounds__(MAX_THREADS)
softmax_kernel(float *losses, float *logits, int64_t pitch, const int32_t *targets, int V, int Vp, float dloss,
               int held) {
    extern __shared__ float4 shared[];
    float *kept = (float *)shared, *logit = logits + blockIdx.x * pitch;
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
                #pragma unroll
                for (int i = 0; i < WIDTH; i++)
                    if (column + i >= V) f[k][i] = -INFINITY;
            }
            #pragma unroll
            for (int k = 0; k < BATCH; k++) {
                const int column = first + k * stride;
                if (HAS_GRADIENT && column < held) store_floats(kept + column, f[k]);
                #pragma unroll
                for (int i = 0; i < WIDTH; i++) new_max = fmaxf(new_max, f[k][i]);
            }
            const float shift = new_max == -INFINITY ? 0.0f : new_max;      /* infinity - infinity is NaN */
            sum *= exp_of<D>(row_max - shift);
            #pragma unroll
            for (int k = 0; k < BATCH; k++)
                #pragma unroll
                for (int i = 0; i < WIDTH; i++) sum += exp_of<D>(f[k][i] - shift);
            row_max = new_max;
        }
        const float at_target = threadIdx.x == 0 ? logit[target] : 0.0f;
        const float thread_max = row_max;
        row_max = block_max(thread_max);
        sum = block_sum(sum * exp_of<D>(thread_max - row_max));
        if (threadIdx.x == 0) losses[blockIdx.x] = logf(sum) + (row_max - at_target);
        scale = dloss / sum;
    }
    if constexpr (HAS_GRADIENT)
        write_gradient<D, WIDTH>(logit, kept, held, V, Vp, target, ignored, row_max, scale, dloss);
}

template <class D, int WIDTH>
static void softmax_rows(Tensor losses, Tensor logits, Tensor targets, int V, float dloss, bool has_gradient) {
    static int max_held;               /* floats of shared memory */
    if (!max_held) {
        int bytes;
        CUDA(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
        max_held = (bytes - 1024) / 16 * 4;     /* 1024: of block_max and block_sum */
    }
    const int row_count = (int)logits.dim[0], columns = (int)logits.dim[1], rounded = (V + 3) / 4 * 4;
    const int held = has_gradient ? (rounded < max_held ? rounded : max_held) : 0;
    const auto kernel = has_gradient ? softmax_kernel<D, WIDTH, true> : softmax_kernel<D, WIDTH, false>;
    int threads = 64;
    while (threads < MAX_THREADS && threads * 16 < V) threads *= 2;       /* 16 logits a thread, or more */
    LAUNCH(kernel, row_count, threads, held * sizeof(float), (float *)losses.data, (float *)logits.data, logits.pitch,
           (const int32_t *)targets.data, V, columns, dloss, held);
}

void softmax_cross_entropy(Tensor losses, Tensor dlogits, Tensor logits, Tensor targets, int V, float dloss) {
    check_softmax_cross_entropy(losses, dlogits, logits, targets, V);
    op_begin("softmax cross-entropy", op_bytes(2, logits, dlogits), 0);
    const bool wide = rows_aligned(logits);
    const auto softmax = dlogits.dtype == BF16 ? (wide ? softmax_rows<bf16, 4>  : softmax_rows<bf16, 1>)
                                               : (wide ? softmax_rows<float, 4> : softmax_rows<float, 1>);
    softmax(losses, logits, targets, V, dloss, dlogits.data != NULL);
    op_end();
}
