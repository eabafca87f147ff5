/* Column sums in a fixed order: of slices of rows, whose number depends on the shape alone, then of the slices. Lower
   bound: reading the tensor once. */
#include "partial_sums.cuh"
extern "C" {
#include "../gemm.h"
}

enum {
    WARPS = 8, LANES = 32,
    BLOCKS = 528                    /* 4 of 256 threads, 64 KiB in flight, on each of 132 SMs: one wave */
};

/* A block adds up the rows of one slice, in 32 * WIDTH columns; a warp every eighth row, a lane 16 bytes of each. */
template <class T> __global__ void __launch_bounds__(WARPS * LANES)
column_sums_kernel(PartialSums sums, float *max, const T *x, int64_t rows, int64_t columns, int64_t pitch,
                   int64_t slice_rows) {
    constexpr int WIDTH = Pack<T>::SIZE;
    wait_for_previous();
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int64_t column = ((int64_t)blockIdx.x * LANES + lane) * WIDTH;
    const int64_t first = blockIdx.y * slice_rows, last = min(first + slice_rows, rows);
    float sum[WIDTH] = {};
    unsigned bits = 0;
    if (column < columns) {
        #pragma unroll 4
        for (int64_t row = first + warp; row < last; row += WARPS) {
            float f[WIDTH];
            const Pack<T> pack = Pack<T>::load(x + row * pitch + column);
            pack.to_float(f);
            if (max) bits = max_magnitude(bits, pack);
            for (int i = 0; i < WIDTH; i++) sum[i] += f[i];
        }
    }
    max_raise(max, bits);
    partial_sums_write_tile(sums, sum);
}

template <class T> static void column_sums_of(Tensor sum, Tensor t, Into into) {
    const int64_t rows = tensor_rows(t), columns = tensor_columns(t);
    const int64_t tiles = ceil_div(columns, LANES * Pack<T>::SIZE);
    int64_t slices = ceil_div(BLOCKS, tiles);
    slices = min(slices, ceil_div(rows, 8 * WARPS));        /* at least eight rows a warp: slices take time to add */
    const int64_t slice_rows = ceil_div(rows, slices);
    slices = ceil_div(rows, slice_rows);
    const PartialSums sums = partial_sums(slices, sum, {}, {}, into);
    LAUNCH_EARLY(column_sums_kernel<T>, dim3((unsigned)tiles, (unsigned)slices), WARPS * LANES, 0, sums,
                 t.max, t, rows, columns, t.pitch, slice_rows);
    partial_sums_add(sums, WARPS);
}

void column_sums(Tensor sum, Tensor t, Into into) {
    require_aligned_rows("column sums", { t });
    op_begin("column sums", op_bytes(2, sum, t), 0);
    max_begin(t.max);
    (t.dtype == BF16 ? column_sums_of<bf16> : column_sums_of<float>)(sum, t, into);
    op_end();
}

/* ---- The parts of all kernels */

/* The main stream has two buffers in turn, so that a kernel can write its parts while those of the one before are added
   up beside it. */
PartialSums partial_sums(int64_t slices, Tensor a, Tensor b, Tensor c, Into into) {
    static struct { float *memory; int64_t joins; } buffer[3];     /* joins: cuda_joins when it was last taken */
    static int turn;
    auto &own = buffer[cuda_side ? 2 : turn ^= 1];
    if (!own.memory) own.memory = (float *)device_alloc(PARTIAL_COUNT * sizeof *own.memory, "the partial sums");
    if (!cuda_side && own.joins == cuda_joins) device_overlap_wait();
    own.joins = cuda_joins;
    const int64_t width = tensor_count(a), columns = width * (c.data ? 3 : b.data ? 2 : 1);
    REQUIRE(slices * columns <= PARTIAL_COUNT, "partial sums: %lld columns, want fewer", (long long)columns);
    return { own.memory, (int)slices, (int)columns, (int)width, { (float *)a.data, (float *)b.data, (float *)c.data },
             into == ACCUMULATE };
}

/* A block has 32 columns. */
enum { ADD_WARPS = 12 };
static __global__ void __launch_bounds__(32 * ADD_WARPS) partial_sums_kernel(PartialSums s) {
    constexpr int AHEAD = 22;       /* loads in flight: 264 slices are 22 for each of 12 warps */
    __shared__ float part[ADD_WARPS][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, c = 32 * blockIdx.x + lane;
    float total = 0;
    wait_for_previous();
    for (int first = warp; c < s.columns && first < s.slices; first += AHEAD * warps) {
        float f[AHEAD];
        #pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int i = first + k * warps;
            f[k] = i < s.slices ? s.partial[(int64_t)i * s.columns + c] : 0.0f;
        }
        #pragma unroll
        for (int k = 0; k < AHEAD; k++) total += f[k];
    }
    part[warp][lane] = total;
    __syncthreads();
    if (warp || c >= s.columns) return;
    #pragma unroll 4
    for (int w = 1; w < warps; w++) total += part[w][lane];
    float *to = c < s.width ? s.to[0] + c : c < 2 * s.width ? s.to[1] + c - s.width : s.to[2] + c - 2 * s.width;
    *to = (s.add ? *to : 0.0f) + total;
}

void partial_sums_add(const PartialSums &sums, int warps) {
    LAUNCH_EARLY(partial_sums_kernel, (unsigned)ceil_div(sums.columns, 32), 32 * warps, 0, sums);
}
