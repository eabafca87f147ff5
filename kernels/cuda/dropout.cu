/* Dropout. A thread has 16 bytes of rows r and r + 8: 8 columns in bf16, 4 in f32. Another lane, 1 or 2 away, has the
   columns 8 to the right or left, for which the same words are drawn. Each of the two makes half of the draws and gives
   the other its halves: none is made twice, and the accesses of a warp are contiguous. */
#include "common.cuh"
extern "C" {
#include "../dropout.h"
#include "../profile.h"
}

enum { THREADS = 256, UNITS = 4 };      /* units of a thread, for which it computes the mask, 10 rounds, once */

/* bits[k] of column + k: of row r in the low half, of r + 8 in the high one. Called by whole warps. */
template <int SIZE> __device__ inline void
draw(uint32_t (&bits)[SIZE], DropoutMask mask, uint32_t row, uint32_t column) {
    constexpr int HALF = SIZE / 2, PARTNER = 8 / SIZE;
    const bool right = column & 8;
    #pragma unroll
    for (int k = 0; k < HALF; k++) {
        const Random64 r = dropout_bits(mask, row, (column & ~8u) + (right ? HALF : 0) + k);
        const uint32_t low  = __byte_perm(r.word[0], r.word[1], 0x5410);
        const uint32_t high = __byte_perm(r.word[0], r.word[1], 0x7632);
        const uint32_t own = right ? high : low, got = __shfl_xor_sync(~0u, right ? low : high, PARTNER);
        bits[k]        = right ? got : own;
        bits[k + HALF] = right ? own : got;
    }
}

/* packs: rows are aligned to 16 bytes, and C is a multiple of SIZE. out may be x. */
template <class T> __global__ void __launch_bounds__(THREADS)
dropout_kernel(T *out, const T *x, int rows, int C, uint32_t site, uint64_t seed, const uint64_t *sequence,
               uint32_t threshold, float scale, bool packs) {
    constexpr int SIZE = Pack<T>::SIZE;
    const uint32_t row_units = (uint32_t)ceil_div(C, 16) * (16 / SIZE);
    const uint32_t units = (uint32_t)ceil_div(rows, 16) * 8 * row_units;
    const DropoutMask mask = dropout_mask(seed, site, (sequence ? *sequence : 0) + blockIdx.x, 0);
    out += (int64_t)blockIdx.x * rows * C;
    x   += (int64_t)blockIdx.x * rows * C;
    for (uint32_t first = blockIdx.y * THREADS; first < units; first += gridDim.y * THREADS) {
        const uint32_t unit = first + threadIdx.x, line = unit / row_units;
        const int c = (int)(unit % row_units) * SIZE, r = (int)(line / 8 * 16 + line % 8);
        float f[2][SIZE];
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            const bool inside = r + 8 * i < rows;
            const T *from = x + (int64_t)(r + 8 * i) * C + c;
            #pragma unroll
            for (int k = 0; k < SIZE; k++) f[i][k] = 0;
            if (packs) {
                if (inside && c < C) Pack<T>::load(from).to_float(f[i]);
            } else {
                #pragma unroll
                for (int k = 0; k < SIZE; k++)
                    if (inside && c + k < C) f[i][k] = to_float(from[k]);
            }
        }
        uint32_t bits[SIZE];
        draw(bits, mask, (uint32_t)r, (uint32_t)c);
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            const bool inside = r + 8 * i < rows;
            T *to = out + (int64_t)(r + 8 * i) * C + c;
            #pragma unroll
            for (int k = 0; k < SIZE; k++)
                f[i][k] = (bits[k] >> 16 * i & 0x7fff) >= threshold ? f[i][k] * scale : 0.0f;
            if (packs) {
                if (inside && c < C) Pack<T>::from_float(f[i]).store(to);
            } else {
                #pragma unroll
                for (int k = 0; k < SIZE; k++)
                    if (inside && c + k < C) to[k] = from_float<T>(f[i][k]);
            }
        }
    }
}

template <class T> static void launch(Tensor out, Tensor x, const Dropout *d) {
    const int64_t rows = x.dim[1], C = x.dim[2];
    const int64_t units = ceil_div(rows, 16) * 8 * ceil_div(C, 16) * (16 / Pack<T>::SIZE);
    REQUIRE(units < 1ll << 31, "dropout: a sequence of %lld x %lld", (long long)rows, (long long)C);
    const dim3 grid((unsigned)x.dim[0], (unsigned)min(ceil_div(units, THREADS * UNITS), (int64_t)65535));
    LAUNCH(dropout_kernel<T>, grid, THREADS, 0, (T *)out.data, (const T *)x.data, (int)rows, (int)C, d->site, d->seed,
           d->sequence, dropout_threshold(d->rate), dropout_scale(d->rate), rows_aligned(x) && rows_aligned(out));
}

void dropout(Tensor out, Tensor x, const Dropout *d) {
    check_dropout(out, x, d->rate);
    op_begin("dropout", op_bytes(2, out, x), 0);
    if (x.dtype == BF16) launch<bf16>(out, x, d);
    else                 launch<float>(out, x, d);
    op_end();
}
