/* Column sums in a fixed order: of slices of rows, whose number depends on the shape alone, then of the slices. Lower
   bound: reading the tensor once. */
#include "partial_sums.cuh"
extern "C" {
#include "../device.h"
#include "../gemm.h"
#include "../profile.h"
}

enum {
    WARPS = 8, LANES = 32,
    BLOCKS = 528                    /* 4 of 256 threads, 64 KiB in flight, on each of 132 SMs: one wave */
};

/* A block adds up the rows of one slice, in 32 * WIDTH columns; a warp every eighth row. A lane has WIDTH columns: 16
   bytes, or one where rows are not aligned to 16 bytes. */
template <class T, int WIDTH> __global__ void __launch_bounds__(WARPS * LANES)
column_sums_kernel(PartialSums sums, const T *x, int64_t rows, int64_t columns, int64_t pitch, int64_t slice_rows) {
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int64_t column = ((int64_t)blockIdx.x * LANES + lane) * WIDTH;
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
    partial_sums_finish_tile(sums, sum);
}

template <class T, int WIDTH> static void column_sums_of(Tensor sum, Tensor t, Into into) {
    const int64_t rows = tensor_rows(t), columns = tensor_columns(t);
    const int64_t tiles = ceil_div(columns, LANES * WIDTH);
    int64_t slices = ceil_div(BLOCKS, tiles);
    slices = min(slices, ceil_div(rows, 8 * WARPS));        /* at least eight rows a warp: slices take time to add */
    slices = min(slices, PARTIAL_COUNT / columns);
    REQUIRE(slices, "column sums: %lld columns, want %d or less", (long long)columns, PARTIAL_COUNT);
    const int64_t slice_rows = ceil_div(rows, slices);
    slices = ceil_div(rows, slice_rows);
    LAUNCH((column_sums_kernel<T, WIDTH>), dim3((unsigned)tiles, (unsigned)slices), WARPS * LANES, 0,
           partial_sums(slices, sum, {}, {}, into), (const T *)t.data, rows, columns, t.pitch, slice_rows);
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

/* The results do not depend on how many blocks wait: three for four SMs, which hold one each (layernorm at C = 768 has
   72 tiles of 32 columns, for one block each). */
PartialSums partial_sums(int64_t slices, Tensor a, Tensor b, Tensor c, Into into) {
    static float *partials[2];              /* by cuda_side */
    static Arrivals *counters[2];           /* of a whole grid, then of the tiles: of 32 columns or more */
    static int64_t may_wait;
    float *&partial = partials[cuda_side];
    Arrivals *&arrivals = counters[cuda_side];
    if (!partial) {
        int device, sms;
        CUDA(cudaGetDevice(&device));
        CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
        may_wait = max(1, sms * 3 / 4);
        arrivals = (Arrivals *)device_alloc((1 + PARTIAL_COUNT / 32) * sizeof *arrivals,
                                            "the counters of the partial sums");
        partial = (float *)device_alloc(PARTIAL_COUNT * sizeof *partial, "the partial sums");
    }
    const int64_t width = tensor_count(a), columns = width * (c.data ? 3 : b.data ? 2 : 1);
    return { partial, (int)slices, (int)columns, (int)width, { (float *)a.data, (float *)b.data, (float *)c.data },
             into == ACCUMULATE, (unsigned)min(min(ceil_div(columns, 32), may_wait), slices), arrivals, arrivals + 1 };
}
