/* Quantization to E4M3: the largest magnitude where it is not known, then one pass that writes both layouts. Lower
   bound of that pass: reading 2 bytes an element and writing 1 for each layout. */
#include <cuda_fp8.h>
#include "gelu.cuh"
extern "C" {
#include "../fp8.h"
}

enum { THREADS = 256, WARPS = THREADS / 32, TILE = 128, BLOCKS = 8 * 132 };

template <bool GELU> __device__ inline void load_values(float (&f)[8], const uint4 &bits) {
    Pack<bf16>{ bits }.to_float(f);
    if (GELU) for (int k = 0; k < 8; k++) f[k] = gelu<bf16>(f[k]);
}

/* From the end to the start: the next kernel finds the start in the cache. */
template <bool GELU> __global__ void __launch_bounds__(THREADS) max_kernel(float *to, const uint4 *x, int64_t packs) {
    wait_for_previous();
    unsigned bits = 0;
    #pragma unroll 4
    for (int64_t i = packs - 1 - ((int64_t)blockIdx.x * THREADS + threadIdx.x); i >= 0; i -= BLOCKS * THREADS) {
        float f[8];
        load_values<GELU>(f, x[i]);
        for (int k = 0; k < 8; k++) bits = max(bits, __float_as_uint(f[k]) & 0x7fffffffu);
    }
    max_raise(to, bits);
}

__device__ inline unsigned e4m3_pair(float low, float high) {
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

/* A block has a tile of 128 x 128. A thread has two patches of 4 rows and 8 columns, whose bytes it transposes in
   registers to a word for each column. In shared memory a column is a row of 32 words, word w at w ^ (2 (column / 8)):
   the lanes of a store (16 groups of columns, 2 of rows) use all banks, and 16 rows of a column are one access, whose
   halves are exchanged in every other group. q or qt may be NULL. */
template <bool GELU> __global__ void __launch_bounds__(THREADS)
quantize_kernel(uint8_t *q, uint8_t *qt, const bf16 *x, const float *max, int64_t rows, int64_t columns) {
    __shared__ uint4 tile[TILE * TILE / 16];
    wait_for_previous();
    unsigned *const words = (unsigned *)tile;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane % 16;
    const int64_t row0 = (int64_t)blockIdx.y * TILE, column0 = (int64_t)blockIdx.x * TILE, column = column0 + group * 8;
    uint4 loaded[2][4];
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        const int64_t row = row0 + i / 4 * 64 + (warp * 2 + lane / 16) * 4 + i % 4;
        loaded[i / 4][i % 4] = row < rows && column < columns ? *(const uint4 *)(x + row * columns + column) : uint4{};
    }
    const float scale = E4M3_MAX / *max;
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        const int word = i * 16 + warp * 2 + lane / 16;         /* index in a column: a word has 4 rows */
        unsigned half[2][4];                                    /* 4 columns of each row */
        #pragma unroll
        for (int k = 0; k < 4; k++) {
            const int64_t row = row0 + word * 4 + k;
            float f[8];
            load_values<GELU>(f, loaded[i][k]);
            for (int j = 0; j < 8; j++) f[j] *= scale;
            for (int j = 0; j < 2; j++)
                half[j][k] = e4m3_pair(f[4 * j], f[4 * j + 1]) | e4m3_pair(f[4 * j + 2], f[4 * j + 3]) << 16;
            if (q && row < rows && column < columns)
                *(uint2 *)(q + row * columns + column) = { half[0][k], half[1][k] };
        }
        #pragma unroll
        for (int j = 0; j < 2; j++) {
            const unsigned *r = half[j];
            unsigned *const to = words + (group * 8 + j * 4) * 32 + (word ^ (2 * group));
            const unsigned low01 = __byte_perm(r[0], r[1], 0x5140), high01 = __byte_perm(r[0], r[1], 0x7362);
            const unsigned low23 = __byte_perm(r[2], r[3], 0x5140), high23 = __byte_perm(r[2], r[3], 0x7362);
            to[0 * 32] = __byte_perm(low01, low23, 0x5410);
            to[1 * 32] = __byte_perm(low01, low23, 0x7632);
            to[2 * 32] = __byte_perm(high01, high23, 0x5410);
            to[3 * 32] = __byte_perm(high01, high23, 0x7632);
        }
    }
    if (!qt) return;
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const int of_tile = i * 32 + warp * 4 + lane / 8, part = lane % 8, swizzle = of_tile / 8;
        const int64_t row = row0 + part * 16, c = column0 + of_tile;
        const uint4 t = tile[of_tile * 8 + (part ^ swizzle / 2)];
        if (c < columns && row < rows)
            *(uint4 *)(qt + c * rows + row) = swizzle % 2 ? uint4{ t.z, t.w, t.x, t.y } : t;
    }
}

template <bool GELU> static void launch(Tensor q, Tensor qt, Tensor x) {
    const int64_t rows = tensor_rows(x), columns = tensor_columns(x);
    float *const max = q.data ? q.max : qt.max;
    check_quantize(q, qt, x);
    require_aligned_rows("quantize", { x });
    if (GELU || x.max != max) {
        op_begin(GELU ? "maximum of gelu" : "maximum", op_bytes(1, x), 0);
        max_begin(max);
        LAUNCH_EARLY(max_kernel<GELU>, BLOCKS, THREADS, 0, max, x, rows * columns / 8);
        op_end();
    }
    op_begin(GELU ? "quantize gelu" : "quantize", op_bytes(3, q, qt, x), 0);
    LAUNCH_EARLY(quantize_kernel<GELU>, dim3((unsigned)ceil_div(columns, TILE), (unsigned)ceil_div(rows, TILE)),
                 THREADS, 0, q, qt, x, max, rows, columns);
    op_end();
}

void quantize(Tensor q, Tensor qt, Tensor x)      { launch<false>(q, qt, x); }
void quantize_gelu(Tensor q, Tensor qt, Tensor x) { launch<true>(q, qt, x); }
