/* GELU: 16 bytes of each operand a thread; the backward pass adds up columns on the way. */
#include "gelu.cuh"
#include "partial_sums.cuh"
extern "C" {
#include "../device.h"
#include "../gelu.h"
#include "../profile.h"
}

enum {
    THREADS = 256, WARPS = 8, LANES = 32,
    BLOCKS = 528                    /* of the backward pass, 4 of 256 threads on each of 132 SMs: one wave */
};

/* packs: all operands are aligned to 16 bytes. The last thread may have less than a pack. */
template <class T> __global__ void __launch_bounds__(THREADS)
gelu_forward_kernel(T *y, const T *x, int64_t count, bool packs) {
    wait_for_previous();
    constexpr int SIZE = Pack<T>::SIZE;
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * SIZE;
    if (packs && i + SIZE <= count) {
        float f[SIZE];
        Pack<T>::load(x + i).to_float(f);
        #pragma unroll
        for (int k = 0; k < SIZE; k++) f[k] = gelu<T>(f[k]);
        Pack<T>::from_float(f).store(y + i);
    } else {
        for (int64_t k = i; k < i + SIZE && k < count; k++) y[k] = from_float<T>(gelu<T>(to_float(x[k])));
    }
}

/* As in column_sums.cu, a block has the rows of one slice in 32 * WIDTH columns, a warp every eighth row. A lane has
   WIDTH columns: 16 bytes, or one where rows are not aligned to 16 bytes. partial (slices, columns): the sums of dx
   before it is rounded; NULL = none. */
template <class T, int WIDTH> __global__ void __launch_bounds__(WARPS * LANES, 4)
gelu_backward_kernel(PartialSums sums, T *dx, const T *dy, const T *x, int64_t rows, int64_t columns,
                     int64_t slice_rows) {
    wait_for_previous();
    constexpr int UNROLL = 2;               /* dx may be dy: the compiler keeps the loads of a row behind the stores of
                                               the one before; two rows have 64 KiB in flight on an SM */
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int64_t column = ((int64_t)blockIdx.x * LANES + lane) * WIDTH;
    const int64_t first = blockIdx.y * slice_rows, last = min(first + slice_rows, rows);
    float sum[WIDTH] = {};
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
                #pragma unroll
                for (int k = 0; k < WIDTH; k++) {
                    d[i][k] *= gelu_slope<T>(f[i][k]);
                    sum[k] += d[i][k];
                }
                /* by an intrinsic: the compiler splits the plain store of a uint4 into four */
                if constexpr (WIDTH == 1) store_floats(dx + at + i * step, d[i]);
                else __stwb((uint4 *)(dx + at + i * step), Pack<T>::from_float(d[i]).bits);
            }
    }
    if (sums.partial) partial_sums_write_tile(sums, sum);
}

static bool on_16_bytes(Tensor t) { return (uintptr_t)t.data % 16 == 0; }

template <class T> static void forward(Tensor y, Tensor x) {
    const int64_t count = tensor_count(x);
    LAUNCH_EARLY(gelu_forward_kernel<T>, (unsigned)ceil_div(count, THREADS * Pack<T>::SIZE), THREADS, 0,
                 (T *)y.data, (const T *)x.data, count, on_16_bytes(y) && on_16_bytes(x));
}

template <class T, int WIDTH> static void backward(Tensor dx, Tensor dy, Tensor x, Tensor dx_sum, Into sum_into) {
    const int64_t rows = tensor_rows(x), columns = tensor_columns(x), tiles = ceil_div(columns, LANES * WIDTH);
    int64_t slices = min(max(BLOCKS / tiles, (int64_t)1), ceil_div(rows, 8 * WARPS));   /* at least 8 rows a warp */
    const int64_t slice_rows = ceil_div(rows, slices);
    slices = ceil_div(rows, slice_rows);
    const PartialSums sums = dx_sum.data ? partial_sums(slices, dx_sum, {}, {}, sum_into) : PartialSums{};
    LAUNCH_EARLY((gelu_backward_kernel<T, WIDTH>), dim3((unsigned)tiles, (unsigned)slices), WARPS * LANES, 0, sums,
                 (T *)dx.data, (const T *)dy.data, (const T *)x.data, rows, columns, slice_rows);
    if (!dx_sum.data) return;
    device_side_begin();
    partial_sums_add(sums, WARPS);
    device_side_end();
}

void gelu_forward(Tensor y, Tensor x) {
    check_gelu("gelu", y, x);
    op_begin("gelu", op_bytes(2, y, x), 0);
    if (x.dtype == BF16) forward<bf16>(y, x);
    else                 forward<float>(y, x);
    op_end();
}

void gelu_backward(Tensor dx, Tensor dy, Tensor x, Tensor dx_sum, Into sum_into) {
    check_gelu_backward(dx, dy, x, dx_sum);
    const bool wide = rows_aligned(dx) && rows_aligned(dy) && rows_aligned(x);
    op_begin("gelu backward", op_bytes(3, dx, dy, x), 0);
    if (x.dtype == BF16 && wide) backward<bf16, 8>(dx, dy, x, dx_sum, sum_into);
    else if (x.dtype == BF16)    backward<bf16, 1>(dx, dy, x, dx_sum, sum_into);
    else if (wide)               backward<float, 4>(dx, dy, x, dx_sum, sum_into);
    else                         backward<float, 1>(dx, dy, x, dx_sum, sum_into);
    op_end();
}
