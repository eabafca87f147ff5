/* GELU: 16 bytes of each operand a thread; the backward pass adds up columns on the way. */
#include "gelu.cuh"
#include "partial_sums.cuh"
extern "C" {
#include "../gelu.h"
}

enum {
    THREADS = 256, WARPS = 8, LANES = 32,
    BLOCKS = 528                    /* backward pass: 4 blocks of 256 threads on each of 132 SMs, one wave */
};

template <class T> __global__ void __launch_bounds__(THREADS)
gelu_forward_kernel(T *y, const T *x, int64_t count) {
    wait_for_previous();
    constexpr int SIZE = Pack<T>::SIZE;
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * SIZE;
    if (i >= count) return;
    float f[SIZE];
    Pack<T>::load(x + i).to_float(f);
    for (int k = 0; k < SIZE; k++) f[k] = gelu<T>(f[k]);
    Pack<T>::from_float(f).store(y + i);
}

/* As in column_sums.cu, a block has the rows of one slice in 32 * WIDTH columns, a warp every eighth row, a lane 16
   bytes of each. partial (slices, columns): the sums of dx before it is rounded; NULL = none. */
template <class T> __global__ void __launch_bounds__(WARPS * LANES, 4)
gelu_backward_kernel(PartialSums sums, T *dx, float *max, const T *dy, const T *x, int64_t rows, int64_t columns,
                     int64_t slice_rows) {
    wait_for_previous();
    constexpr int WIDTH = Pack<T>::SIZE;
    constexpr int UNROLL = 2;               /* dx may be dy: the compiler keeps the loads of a row behind the stores of
                                               the one before; two rows have 64 KiB in flight on an SM */
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int64_t column = ((int64_t)blockIdx.x * LANES + lane) * WIDTH;
    const int64_t first = blockIdx.y * slice_rows, last = min(first + slice_rows, rows);
    float sum[WIDTH] = {};
    unsigned bits = 0;
    for (int64_t row = first + warp; row < last && column < columns; row += UNROLL * WARPS) {
        float f[UNROLL][WIDTH], d[UNROLL][WIDTH];
        const int64_t at = row * columns + column, step = WARPS * columns;
        const int count = row + (UNROLL - 1) * WARPS < last ? UNROLL : 1;       /* UNROLL is 2 */
        #pragma unroll
        for (int i = 0; i < UNROLL; i++)
            if (i < count) {
                load_floats(f[i], x + at + i * step);
                load_floats(d[i], dy + at + i * step);
            }
        #pragma unroll
        for (int i = 0; i < UNROLL; i++)
            if (i < count) {
                for (int k = 0; k < WIDTH; k++) {
                    d[i][k] *= gelu_slope<T>(f[i][k]);
                    sum[k] += d[i][k];
                }
                /* by an intrinsic: the compiler splits the plain store of a uint4 into four */
                const Pack<T> rounded = Pack<T>::from_float(d[i]);
                __stwb((uint4 *)(dx + at + i * step), rounded.bits);
                if (max) bits = max_magnitude(bits, rounded);
            }
    }
    max_raise(max, bits);
    if (sums.partial) partial_sums_write_tile(sums, sum);
}

template <class T> static void forward(Tensor y, Tensor x) {
    const int64_t count = tensor_count(x);
    LAUNCH_EARLY(gelu_forward_kernel<T>, (unsigned)ceil_div(count, THREADS * Pack<T>::SIZE), THREADS, 0, y, x,
                 count);
}

template <class T> static void backward(Tensor dx, Tensor dy, Tensor x, Tensor dx_sum, Into sum_into) {
    const int64_t rows = tensor_rows(x), columns = tensor_columns(x), tiles = ceil_div(columns, LANES * Pack<T>::SIZE);
    int64_t slices = min(max(BLOCKS / tiles, (int64_t)1), ceil_div(rows, 8 * WARPS));   /* at least 8 rows a warp */
    const int64_t slice_rows = ceil_div(rows, slices);
    slices = ceil_div(rows, slice_rows);
    const PartialSums sums = dx_sum.data ? partial_sums(slices, dx_sum, {}, {}, sum_into) : PartialSums{};
    LAUNCH_EARLY(gelu_backward_kernel<T>, dim3((unsigned)tiles, (unsigned)slices), WARPS * LANES, 0, sums,
                 dx, dx.max, dy, x, rows, columns, slice_rows);
    if (!dx_sum.data) return;
    device_side_begin();
    partial_sums_add(sums, WARPS);
    device_side_end();
}

void gelu_forward(Tensor y, Tensor x) {
    check_gelu("gelu", y, x);
    require_aligned_rows("gelu", { y, x });
    op_begin("gelu", op_bytes(2, y, x), 0);
    (x.dtype == BF16 ? forward<bf16> : forward<float>)(y, x);
    op_end();
}

void gelu_backward(Tensor dx, Tensor dy, Tensor x, Tensor dx_sum, Into sum_into) {
    check_gelu_backward(dx, dy, x, dx_sum);
    require_aligned_rows("gelu backward", { dx, dy, x });
    op_begin("gelu backward", op_bytes(3, dx, dy, x), 0);
    max_begin(dx.max);
    (x.dtype == BF16 ? backward<bf16> : backward<float>)(dx, dy, x, dx_sum, sum_into);
    op_end();
}
