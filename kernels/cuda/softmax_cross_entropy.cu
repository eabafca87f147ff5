/* Softmax cross-entropy: a block has a row, and reads it twice. */
#include "common.cuh"
extern "C" {
#include "../softmax_cross_entropy.h"
}

enum {
    MAX_THREADS = 1024,
    BATCH = 4               /* loads in flight */
};

/* f32 is compared with the CPU; the error of __expf is far below the rounding of bf16. */
template <class T> __device__ inline float exp_of(float x);
template <> __device__ inline float exp_of<float>(float x) { return expf(x); }
template <> __device__ inline float exp_of<bf16>(float x)  { return __expf(x); }

/* A block has a row: its loss, and with HAS_GRADIENT the gradient over its logits. Each thread writes the columns that
   it reads, the second time probably from the L2. */
template <class T, int WIDTH, bool HAS_GRADIENT> __global__ void __launch_bounds__(MAX_THREADS)
softmax_kernel(float *losses, T *logits, int64_t pitch, const int32_t *targets, int V, int Vp, float dloss) {
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
                #pragma unroll
                for (int i = 0; i < WIDTH; i++)
                    if (column + i >= V) f[k][i] = -INFINITY;
            }
            #pragma unroll
            for (int k = 0; k < BATCH; k++)
                #pragma unroll
                for (int i = 0; i < WIDTH; i++) new_max = fmaxf(new_max, f[k][i]);
            const float shift = new_max == -INFINITY ? 0.0f : new_max;      /* infinity - infinity is NaN */
            sum *= exp_of<T>(row_max - shift);
            #pragma unroll
            for (int k = 0; k < BATCH; k++)
                #pragma unroll
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
                #pragma unroll
                for (int i = 0; i < WIDTH; i++) {
                    f[i] = column + i < V ? exp_of<T>(f[i] - row_max) * scale : 0.0f;
                    if (column + i == target) f[i] -= dloss;
                }
            }
            store_floats(logit + column, f);
        }
}

template <class T, int WIDTH>
static void softmax_rows(Tensor losses, Tensor logits, Tensor targets, int V, float dloss, bool has_gradient) {
    const int row_count = (int)logits.dim[0], columns = (int)logits.dim[1];
    const auto kernel = has_gradient ? softmax_kernel<T, WIDTH, true> : softmax_kernel<T, WIDTH, false>;
    int threads = 64;
    while (threads < MAX_THREADS && threads * 16 < V) threads *= 2;       /* 16 logits a thread, or more */
    LAUNCH(kernel, row_count, threads, 0, (float *)losses.data, (T *)logits.data, logits.pitch,
           (const int32_t *)targets.data, V, columns, dloss);
}

void softmax_cross_entropy(Tensor losses, Tensor dlogits, Tensor logits, Tensor targets, int V, float dloss) {
    check_softmax_cross_entropy(losses, dlogits, logits, targets, V);
    const bool wide = rows_aligned(logits);
    const auto softmax = logits.dtype == BF16 ? (wide ? softmax_rows<bf16, 8>  : softmax_rows<bf16, 1>)
                                              : (wide ? softmax_rows<float, 4> : softmax_rows<float, 1>);
    softmax(losses, logits, targets, V, dloss, dlogits.data != NULL);
}
