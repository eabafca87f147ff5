/* Dropout. A thread has 16 bytes of each of 8 rows: in bf16 the elements of a block of the mask, which it draws. In f32
   two neighbours have the columns of a block, and 8 rows more: each draws one of the two blocks for both. */
#include "common.cuh"
extern "C" {
#include "../dropout.h"
}

enum { THREADS = 128 };

template <class T> struct Unit {
    static constexpr int SIZE = Pack<T>::SIZE, BLOCKS = 8 / SIZE, ROWS = 8 * BLOCKS;
    /* units side by side in C columns, and in a matrix (rows,C) */
    static __host__ __device__ int64_t per_row(int64_t C)             { return ceil_div(C, 8) * BLOCKS; }
    static __host__ __device__ int64_t count(int64_t rows, int64_t C) { return ceil_div(rows, ROWS) * per_row(C); }
};

/* out may be x. */
template <class T> __global__ void __launch_bounds__(THREADS)
dropout_kernel(T *out, const T *x, int rows, int C, int per_sequence, uint32_t site, uint64_t seed,
               const uint64_t *sequence, uint32_t threshold, float scale) {
    using U = Unit<T>;
    const int b = blockIdx.x / per_sequence;
    const uint32_t unit = blockIdx.x % per_sequence * THREADS + threadIdx.x, per_row = (uint32_t)U::per_row(C);
    const int c = (int)(unit % per_row) * U::SIZE, r = (int)(unit / per_row) * U::ROWS;
    Random64 own = {};
    #pragma unroll
    for (int block = 0; block < U::BLOCKS; block++) {
        const int top = r + 8 * block, height = c < C ? rows - top : 0;
        const int64_t start = ((int64_t)b * rows + top) * C + c;
        Pack<T> pack[8];
        for (int i = 0; i < 8; i++)
            if (i < height) pack[i] = Pack<T>::load(x + start + i * C);
        if (block == 0) {
            const DropoutMask mask = dropout_mask(seed, site, (sequence ? *sequence : 0) + b, 0);
            own = dropout_draw(mask, (uint32_t)r / 8 + unit % U::BLOCKS, (uint32_t)c / 8, dropout_digits(threshold));
        }
        Random64 kept;
        for (int i = 0; i < 2; i++)
            kept.word[i] = U::BLOCKS == 1 ? own.word[i] : __shfl_sync(~0u, own.word[i], block, U::BLOCKS) >> c % 8;
        #pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < height) {
                float f[U::SIZE];
                pack[i].to_float(f);
                for (int j = 0; j < U::SIZE; j++) f[j] = dropout_bit(kept, i, j) ? f[j] * scale : 0.0f;
                Pack<T>::from_float(f).store(out + start + i * C);
            }
    }
}

template <class T> static void launch(Tensor out, Tensor x, const Dropout *d) {
    const int64_t rows = x.dim[1], C = x.dim[2], per_sequence = ceil_div(Unit<T>::count(rows, C), THREADS);
    REQUIRE(x.dim[0] * per_sequence < 1ll << 31, "dropout: a batch of %lld x %lld x %lld", (long long)x.dim[0],
            (long long)rows, (long long)C);
    LAUNCH(dropout_kernel<T>, (unsigned)(x.dim[0] * per_sequence), THREADS, 0, out, x, rows, C, per_sequence,
           d->site, d->seed, d->sequence, dropout_threshold(d->rate), dropout_scale(d->rate));
}

void dropout(Tensor out, Tensor x, const Dropout *d) {
    check_dropout(out, x, d->rate);
    require_aligned_rows("dropout", { out, x });
    op_begin("dropout", op_bytes(2, out, x), 0);
    (x.dtype == BF16 ? launch<bf16> : launch<float>)(out, x, d);
    op_end();
}
