/* Column sums in two steps, both in a fixed order: slices of rows, whose number depends on the shape alone, then the
   sums of the slices. Lower bound: reading the tensor once. */
#include "common.cuh"
extern "C" {
#include "../device.h"
#include "../gemm.h"
#include "../profile.h"
}

enum {
    WARPS = 8, LANES = 32,
    BLOCKS = 528,                   /* 4 of 256 threads, 64 KiB in flight, on each of 132 SMs: one wave */
    PARTIAL_COUNT = 1 << 21         /* floats: 8 MiB */
};

static float *partial;

/* partial (slices, columns): a block adds up the rows of one slice, in 32 * WIDTH columns; a warp every eighth row. A
   lane has WIDTH columns: 16 bytes, or one where rows are not aligned to 16 bytes. */
template <class T, int WIDTH> __global__ void __launch_bounds__(WARPS * LANES)
column_slices_kernel(float *partial, const T *x, int64_t rows, int64_t columns, int64_t pitch, int64_t slice_rows) {
    constexpr int STEP = 36;        /* 32 lanes + 4: the 8 values of a lane are in different banks */
    __shared__ float sums[WARPS][WIDTH * STEP];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int64_t tile = (int64_t)blockIdx.x * LANES * WIDTH, column = tile + lane * WIDTH;
    const int64_t first = blockIdx.y * slice_rows, last = min(first + slice_rows, rows);
    float sum[WIDTH] = {};
    if (column < columns) {
        #pragma unroll 4
        for (int64_t row = first + warp; row < last; row += WARPS) {
            float f[WIDTH];
            load_floats(f, x + row * pitch + column);
            #pragma unroll
            for (int i = 0; i < WIDTH; i++) sum[i] += f[i];
        }
    }
    #pragma unroll
    for (int i = 0; i < WIDTH; i++) sums[warp][i * STEP + lane] = sum[i];
    __syncthreads();
    const int at = threadIdx.x % WIDTH * STEP + threadIdx.x / WIDTH;
    if (threadIdx.x < LANES * WIDTH && tile + threadIdx.x < columns) {
        float total = 0;
        #pragma unroll
        for (int i = 0; i < WARPS; i++) total += sums[i][at];
        partial[blockIdx.y * columns + tile + threadIdx.x] = total;
    }
}

/* A block has 32 columns; its warp w adds the slices w, w + 32, ... (17 of 528, independent loads), then one column's
   32 sums. A thread a column would make 528 dependent additions. */
static __global__ void __launch_bounds__(32 * LANES)
slices_sum_kernel(float *sum, int count, float *sum2, const float *partial, int columns, int slices, bool add) {
    __shared__ float part[32][LANES + 1];           /* 33: a column is in 32 banks */
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, from = blockIdx.x * LANES + lane;
    float total = 0;
    if (from < columns) {
        #pragma unroll 8
        for (int i = warp; i < slices; i += 32) total += partial[(int64_t)i * columns + from];
    }
    part[warp][lane] = total;
    __syncthreads();
    total = warp_sum(part[lane][warp]);
    const int to = blockIdx.x * LANES + warp;
    if (lane || to >= columns) return;
    float *own = to < count ? sum + to : sum2 + (to - count);
    *own = (add ? *own : 0.0f) + total;
}

void slices_sum(Tensor sum, Tensor sum2, const float *partial, int slices, Into into) {
    const int64_t count = tensor_count(sum), columns = count + (sum2.data ? tensor_count(sum2) : 0);
    LAUNCH(slices_sum_kernel, (unsigned)ceil_div(columns, LANES), 32 * LANES, 0, (float *)sum.data, (int)count,
           (float *)sum2.data, partial, (int)columns, slices, into == ACCUMULATE);
}

template <class T, int WIDTH> static void column_sums_of(Tensor sum, Tensor t, Into into) {
    static_assert(WIDTH <= WARPS, "a block has a thread for every column");
    const int64_t rows = tensor_rows(t), columns = tensor_columns(t);
    const int64_t tiles = ceil_div(columns, LANES * WIDTH);
    int64_t slices = ceil_div(BLOCKS, tiles);
    slices = min(slices, ceil_div(rows, 4 * WARPS));        /* at least four rows a warp */
    slices = min(slices, PARTIAL_COUNT / columns);
    REQUIRE(slices, "column sums: %lld columns, want %d or less", (long long)columns, PARTIAL_COUNT);
    const int64_t slice_rows = ceil_div(rows, slices);
    slices = ceil_div(rows, slice_rows);
    if (!partial) partial = (float *)device_alloc(PARTIAL_COUNT * sizeof *partial, "the partial sums of the biases");
    LAUNCH((column_slices_kernel<T, WIDTH>), dim3((unsigned)tiles, (unsigned)slices), WARPS * LANES, 0, partial,
           (const T *)t.data, rows, columns, t.pitch, slice_rows);
    slices_sum(sum, {}, partial, (int)slices, into);
}

void column_sums(Tensor sum, Tensor t, Into into) {
    op_begin("column sums", op_bytes(2, sum, t), 0);
    const bool wide = rows_aligned(t);
    if (t.dtype == BF16 && wide) column_sums_of<bf16, 8>(sum, t, into);
    else if (t.dtype == BF16)    column_sums_of<bf16, 1>(sum, t, into);
    else if (wide)               column_sums_of<float, 4>(sum, t, into);
    else                         column_sums_of<float, 1>(sum, t, into);
    op_end();
}
