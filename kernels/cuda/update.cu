/* The end of a training step. Sums are made in two stages of a fixed shape, in double: 256 threads of 1056 blocks (8
   for each SM of an H200, on any card), then the last of them over the 1056 partial sums: the same bits every time. */
#include <math.h>
#include "partial_sums.cuh"
extern "C" {
#include "../update.h"
}

enum { THREADS = 256, SUM_BLOCKS = 1056, ONE_BLOCK = 1024 };

/* ---- loss and norm */

/* One block: 32768 losses are 128 KiB, about 5 microseconds. */
static __global__ void __launch_bounds__(ONE_BLOCK)
loss_add_kernel(StepStats *stats, const float *losses, int64_t count, float scale) {
    wait_for_previous();
    double total = 0;
    #pragma unroll 8
    for (int64_t i = threadIdx.x; i < count; i += ONE_BLOCK) total += losses[i];
    total = block_sum(total);
    if (threadIdx.x == 0) stats->loss += scale * total;
}

void loss_add(StepStats *stats, Tensor losses, float scale) {
    REQUIRE(losses.data && losses.dtype == F32, "loss: losses are %s, want f32", dtype_name(losses.dtype));
    op_begin("loss", op_bytes(1, losses), 0);
    LAUNCH_EARLY(loss_add_kernel, 1, ONE_BLOCK, 0, stats, losses, tensor_count(losses), scale);
    op_end();
}

static __device__ double partial[SUM_BLOCKS];
static __device__ Arrivals square_arrivals;

/* Squares are double: 1e25 squared overflows a float. An H200 does 13 multiplications in double in the time in which it
   reads a float. */
static __global__ void __launch_bounds__(THREADS)
square_sum_kernel(StepStats *stats, const float *grads, int64_t packs) {
    wait_for_previous();
    const int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x, threads = (int64_t)SUM_BLOCKS * THREADS;
    double total[4] = {};
    #pragma unroll 4
    for (int64_t i = thread; i < packs; i += threads) {
        float g[4];
        load_floats(g, grads + 4 * i);
        for (int k = 0; k < 4; k++) total[k] += (double)g[k] * g[k];
    }
    const double sum = block_sum((total[0] + total[1]) + (total[2] + total[3]));
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
    if (arrive(&square_arrivals, 1) < 0) return;
    double all = 0;
    for (int i = threadIdx.x; i < SUM_BLOCKS; i += THREADS) all += __ldcg(&partial[i]);
    all = block_sum(all);
    if (threadIdx.x == 0) stats->square_sum += all;
}

void gradient_square_sum(StepStats *stats, Tensor grads) {
    REQUIRE(grads.data && grads.dtype == F32, "norm: gradients are %s, want f32", dtype_name(grads.dtype));
    require_aligned_rows("norm", { grads });
    op_begin("gradient norm", op_bytes(1, grads), 0);
    LAUNCH_EARLY(square_sum_kernel, SUM_BLOCKS, THREADS, 0, stats, grads, tensor_count(grads) / 4);
    op_end();
}

static __global__ void update_decide_kernel(StepStats *stats) {
    wait_for_previous();
    const double norm = sqrt(stats->square_sum);
    stats->norm = norm;
    stats->clip = stats->max_norm > 0 && norm > stats->max_norm ? (float)(stats->max_norm / norm) : 1.0f;
    /* The square, too: without clipping a norm from 1.8e19 on is finite, and the g^2 of AdamW's v may not be. */
    const double clipped = stats->clip * norm;
    stats->apply = isfinite(norm) && isfinite((float)(clipped * clipped)) && isfinite(stats->loss)
                     && norm <= stats->norm_limit && stats->loss <= stats->loss_limit;
}

void update_decide(StepStats *stats) {
    op_begin("decision", sizeof *stats, 0);
    LAUNCH_EARLY(update_decide_kernel, 1, 1, 0, stats);
    op_end();
}

/* ---- AdamW */

/* The approximate square root and division err by 3 ulp of a step that is itself a small part of w. The exact ones
   branch for rare operands, and the compiler moves no load across a branch: param was read after the first square
   root. */
__device__ inline float approx_sqrt(float x) {
    float root;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
    return root;
}

/* A block has SPAN elements of the flat memory, 240 KiB of traffic, and finds the rows in them: its threads look at all
   rows at once, one access to the cache where a bisection would need eight. Row sizes range from 768 to 38.6 million: a
   fixed number of blocks per row would leave most of them without work. */
enum { SPAN = 8192 };
static __global__ void __launch_bounds__(THREADS)
adamw_kernel(float *__restrict__ param, bf16 *__restrict__ param_bf16, float *__restrict__ m, float *__restrict__ v,
             const float *__restrict__ grad, const UpdateRow *rows, int row_count, const StepStats *stats) {
    __shared__ int first_row, last_row;
    const int64_t begin = (int64_t)blockIdx.x * SPAN, end = begin + SPAN;
    if (threadIdx.x == 0) {
        first_row = row_count;
        last_row = -1;
    }
    __syncthreads();
    for (int r = threadIdx.x; r < row_count; r += THREADS)
        if (rows[r].first < end && rows[r].first + rows[r].count > begin) {
            atomicMin(&first_row, r);
            atomicMax(&last_row, r);
        }
    __syncthreads();
    wait_for_previous();            /* rows has not changed since the start of the program */
    if (!stats->apply) return;
    const float beta1 = stats->beta1, beta2 = stats->beta2, eps = stats->eps, clip = stats->clip;
    const float step = stats->learning_rate / stats->correction1, rescale = 1.0f / sqrtf(stats->correction2);
    for (int r = first_row; r <= last_row; r++) {
        const int64_t first = max(begin, rows[r].first), last = min(end, rows[r].first + rows[r].count);
        float *const v_row = v - rows[r].v_shift;
        const float decay = stats->learning_rate * (rows[r].decay ? stats->weight_decay : 0.0f);
        #pragma unroll 2
        for (int64_t i = first + 4 * threadIdx.x; i < last; i += 4 * THREADS) {
            float w4[4], m4[4], v4[4], g4[4];
            load_floats(w4, param + i);
            load_floats(m4, m + i);
            load_floats(v4, v_row + i);
            load_floats(g4, grad + i);
            for (int k = 0; k < 4; k++) {
                const float g = clip * g4[k];
                m4[k] = beta1 * m4[k] + (1.0f - beta1) * g;
                v4[k] = beta2 * v4[k] + (1.0f - beta2) * g * g;
                w4[k] -= __fdividef(step * m4[k], approx_sqrt(v4[k]) * rescale + eps) + decay * w4[k];
            }
            store_floats(param + i, w4);
            store_floats(m + i, m4);
            store_floats(v_row + i, v4);
            if (param_bf16) store_floats(param_bf16 + i, w4);
        }
    }
}

void adamw_update(Tensor param, Tensor param_bf16, Tensor m, Tensor v, Tensor grad,
                  const UpdateRow *rows, int row_count, const StepStats *stats) {
    check_update("adamw", param, param_bf16, m, grad, 1);
    check_like("adamw", "v", v, F32, param, v.dim[0] < param.dim[0] ? v.dim[0] : param.dim[0]);
    require_aligned_rows("adamw", { param, param_bf16, m, v, grad });
    op_begin("adamw", op_bytes(8, param, param, m, m, v, v, grad, param_bf16), 0);
    LAUNCH_EARLY(adamw_kernel, (unsigned)ceil_div(tensor_count(param), SPAN), THREADS, 0, param, param_bf16, m, v, grad,
                 rows, row_count, stats);
    op_end();
}

/* ---- conversion */

/* SIZE elements a thread: 4, or 1 where rows are not aligned (a head of a ring). parts: threads of a row. */
template <class To, class Sum, class From, bool ADD, int SIZE> __global__ void __launch_bounds__(THREADS)
tensor_rows_kernel(To *to, int64_t to_pitch, const Sum *add, int64_t add_pitch, const From *from, int64_t from_pitch,
                   int64_t rows, int64_t parts) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = rows == 1 ? 0 : i / parts;
    const int64_t first = (i - row * parts) * SIZE;
    if (i >= rows * parts) return;
    float f[SIZE], sum[SIZE];
    load_floats(f, from + row * from_pitch + first);
    if (ADD) {
        load_floats(sum, add + row * add_pitch + first);
        for (int k = 0; k < SIZE; k++) f[k] += sum[k];
    }
    store_floats(to + row * to_pitch + first, f);
}

template <class To, class Sum, class From, bool ADD> static void write_rows(Tensor to, Tensor sum, Tensor from) {
    const bool packed = tensor_is_packed(to) && (!sum.data || tensor_is_packed(sum)) && tensor_is_packed(from);
    const int64_t rows = packed ? 1 : tensor_rows(from), columns = packed ? tensor_count(from) : tensor_columns(from);
    const bool aligned = rows_aligned(to) && (!sum.data || rows_aligned(sum)) && rows_aligned(from);
    const int64_t parts = columns / (aligned ? 4 : 1);
    const auto kernel = aligned ? tensor_rows_kernel<To, Sum, From, ADD, 4> : tensor_rows_kernel<To, Sum, From, ADD, 1>;
    LAUNCH(kernel, (unsigned)ceil_div(rows * parts, THREADS), THREADS, 0, to, to.pitch, sum, sum.pitch, from,
           from.pitch, rows, parts);
}

/* sum without data: 0 */
template <bool ADD> static void write_rows_of(const char *op, Tensor to, Tensor sum, Tensor from) {
    if      (!tensor_count(to))                      return;         /* a rank without tokens; no launch is empty */
    if      (ADD && sum.dtype == BF16)               write_rows<bf16, bf16, bf16, ADD>(to, sum, from);
    else if (to.dtype == BF16 && from.dtype == F32)  write_rows<bf16, float, float, ADD>(to, sum, from);
    else if (to.dtype == F32  && from.dtype == BF16) write_rows<float, float, bf16, ADD>(to, sum, from);
    else if (to.dtype == BF16 && from.dtype == BF16) write_rows<bf16, float, bf16, ADD>(to, sum, from);
    else if (to.dtype == F32  && from.dtype == F32)  write_rows<float, float, float, ADD>(to, sum, from);
    else fail("%s: %s to %s, want f32 and bf16", op, dtype_name(from.dtype), dtype_name(to.dtype));
}

void tensor_convert(Tensor to, Tensor from) {
    check_convert("convert", to, from);
    op_begin("convert", op_bytes(2, to, from), 0);
    if (to.dtype == from.dtype && tensor_is_packed(to) && tensor_is_packed(from))
        CUDA(cudaMemcpyAsync(to.data, from.data, tensor_bytes(from), cudaMemcpyDeviceToDevice, cuda_stream));
    else
        write_rows_of<false>("convert", to, {}, from);
    op_end();
}

void tensor_add(Tensor to, Tensor sum, Tensor from) {
    check_add(to, sum, from);
    op_begin("add", op_bytes(3, to, sum, from), 0);
    write_rows_of<true>("add", to, sum, from);
    op_end();
}

/* ---- statistics */

static __device__ TensorStats stats_of_tensor;

/* One block: speed does not matter, this runs at the start and after a failure. */
template <class T> __global__ void __launch_bounds__(ONE_BLOCK)
tensor_stats_kernel(const T *data, int64_t count, int64_t columns, int64_t pitch) {
    long long nan_count = 0, inf_count = 0;
    float x_min = INFINITY, x_max = -INFINITY;
    for (int64_t i = threadIdx.x; i < count; i += ONE_BLOCK) {
        const float x = to_float(data[pitch == columns ? i : i / columns * pitch + i % columns]);
        if (isnan(x)) nan_count++;
        else if (isinf(x)) inf_count++;
        else {
            x_min = fminf(x_min, x);
            x_max = fmaxf(x_max, x);
        }
    }
    nan_count = block_sum(nan_count);
    inf_count = block_sum(inf_count);
    x_min = -block_max(-x_min);
    x_max = block_max(x_max);
    if (threadIdx.x == 0) stats_of_tensor = { nan_count, inf_count, x_min, x_max };
}

TensorStats tensor_stats(Tensor t) {
    const int64_t count = tensor_count(t), columns = tensor_columns(t);
    if (t.dtype == BF16)
        LAUNCH(tensor_stats_kernel<bf16>, 1, ONE_BLOCK, 0, t, count, columns, t.pitch);
    else if (t.dtype == F32)
        LAUNCH(tensor_stats_kernel<float>, 1, ONE_BLOCK, 0, t, count, columns, t.pitch);
    else fail("statistics: a tensor of %s, want f32 or bf16", dtype_name(t.dtype));
    TensorStats stats;
    void *address;
    CUDA(cudaGetSymbolAddress(&address, stats_of_tensor));
    device_download(&stats, address, sizeof stats);
    return stats;
}
