/* attention_mma.cuh - Tiles in shared memory and GEMMs of a warp by ldmatrix, mma.sync and cp.async, bf16 in, f32 sums.

   Fragments of mma.m16n8k16, g = lane / 4, c = lane % 4 (PTX ISA, "Matrix Fragments for mma.m16n8k16"):
     A (16,16)  a0 (g, 2c..2c+1)  a1 (g+8, 2c..)  a2 (g, 2c+8..)  a3 (g+8, 2c+8..)
     B (16,8)   b0 (2c..2c+1, g)  b1 (2c+8.., g)
     C (16,8)   c0 (g, 2c) c1 (g, 2c+1) c2 (g+8, 2c) c3 (g+8, 2c+1)
   So two neighbouring C are one A of the next GEMM: P and dS never leave the registers. ldmatrix gives lane l of an
   8x8 matrix the elements (g, 2c..2c+1), with .trans (2c..2c+1, g); lane 8m + r says where row r of matrix m lies. */
#pragma once
#include "attention_dropout.cuh"
#include "ptx.cuh"

enum { THREADS = 128, WARPS = 4 };      /* threads and warps of a block */

/* One register pair that the compiler cannot take apart again into the many terms of its sum. */
template<class T> __device__ static inline const T *pinned(const T *p) {
    asm("" : "+l"(p));
    return p;
}

/* f(element, m, n, e) for the elements that a thread has of 16 MT x 8 N accumulators */
template<int MT, int N, class F> DEVICE void each_element(float (&x)[MT][N][4], F f) {
    #pragma unroll
    for (int m = 0; m < MT; m++)
        #pragma unroll
        for (int n = 0; n < N; n++)
            for (int e = 0; e < 4; e++) f(x[m][n][e], m, n, e);
}

/* f(m, h) for its rows 16 m + 8 h + g */
template<int MT, class F> DEVICE void each_row(F f) {
    #pragma unroll
    for (int m = 0; m < MT; m++)
        for (int h = 0; h < 2; h++) f(m, h);
}

/* ---- tiles ---- */

/* Rows of 16 KS columns in shared memory, in chunks of 16 bytes. The low bits of the chunk number are turned by the
   row, so that the same chunk of 8 rows (one phase of ldmatrix) lies in all 32 banks: by row % 8 where a row is a
   multiple of 128 bytes; where it is 64 or 192, odd rows begin 64 bytes off, and row / 2 % 4 does the rest. */
template<int KS> struct Tile {
    static constexpr int PITCH = KS <= 2 ? 64 : KS <= 4 ? 128 : KS <= 6 ? 192 : 256;      /* bytes */
    static constexpr int TURNS = PITCH % 128 ? 4 : 8;

    __device__ static inline uint32_t turn(int row) { return (TURNS == 8 ? row : row >> 1) & (TURNS - 1); }
    __device__ static inline uint32_t at(int row, int chunk) { return row * PITCH + (chunk ^ turn(row)) * 16; }
};

/* Where this lane's row of the square (16 i.., 16 k..) of a tile lies; matrix m = lane / 8 of the square is
     along rows     rows 8 (m % 2).., columns 8 (m / 2)..: a0..a3 of A; with .trans b0, b1 of columns 0-7, of 8-15
     along columns  rows 8 (m / 2).., columns 8 (m % 2)..: b0, b1 of the B whose column n is row n, n 0-7, 8-15 */
template<int KS> struct Lane {
    uint32_t origin;        /* bytes, of the square (0, 0) */

    __device__ inline Lane(int row, int chunk) : origin(Tile<KS>::at(row, chunk)) {}
    /* The turned bits stand alone in their place: a tile is a multiple of 128 bytes, a row one of 64 or 128. */
    __device__ inline uint32_t at(uint32_t tile, int i, int k) const {
        const uint32_t turned = (Tile<KS>::TURNS - 1) * 16;
        return ((tile + origin) ^ (k * 32 & turned)) + (k * 32 & ~turned) + i * 16 * Tile<KS>::PITCH;
    }
};

template<int KS> __device__ static inline Lane<KS> along_rows(int lane) { return Lane<KS>(lane & 15, lane >> 4); }
template<int KS> __device__ static inline Lane<KS> along_columns(int lane) {
    return Lane<KS>((lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
}

/* What this thread copies of some rows: chunks of every so many. */
template<int KS> __device__ static inline const bf16 *share_of_rows(const bf16 *rows, int64_t pitch) {
    constexpr int LANES = Tile<KS>::TURNS;      /* lanes per row: the 8 lanes of one phase write to 32 banks */
    return pinned(rows + threadIdx.x / LANES * pitch + threadIdx.x % LANES * 8);
}

/* Starts the copy of the next ROWS rows of the share, `rows` of which exist; the others and the columns from HS on
   become zero. */
template<int KS, int ROWS> __device__ static inline void load_rows(uint32_t tile, const bf16 *&share, int64_t pitch,
                                                                   int rows, int HS) {
    constexpr int LANES = Tile<KS>::TURNS, STEP = THREADS / LANES;
    const int first = threadIdx.x / LANES, column = threadIdx.x % LANES;
    #pragma unroll
    for (int r = 0; r < ROWS; r += STEP, share += STEP * pitch)
        #pragma unroll
        for (int chunk = 0; chunk < 2 * KS; chunk += LANES)
            if (2 * KS % LANES == 0 || column + chunk < 2 * KS)
                cp_async_16(tile + Tile<KS>::at(first + r, column + chunk), share + chunk * 8,
                        r < ((column + chunk) * 8 < HS ? rows - first : 0));
}

/* f(m, n, h) for the pairs of neighbours that a thread has of 16 MT rows of 16 KS columns */
template<int KS, int MT, class F> DEVICE void each_pair(F f) {
    #pragma unroll
    for (int m = 0; m < MT; m++)
        #pragma unroll
        for (int n = 0; n < 2 * KS; n++)
            for (int h = 0; h < 2; h++) f(m, n, h);
}

/* One warp stores its 16 MT rows, = or += factor x rounded to bf16, by way of its own rows of shared memory: whole
   sectors. += adds before it rounds. */
template<int KS, int MT> __device__ static inline void store_rows(bf16 *to, int64_t pitch, int rows, int HS,
        uint8_t *tile, const float (&x)[MT][2 * KS][4], const float (&factor)[MT][2], Into into = OVERWRITE) {
    constexpr int LANES = Tile<KS>::TURNS;
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    __syncwarp();
    each_pair<KS, MT>([&](int m, int n, int h) {
        const int row = 16 * m + 8 * h + g, column = 8 * n + 2 * c;
        float low = x[m][n][2 * h] * factor[m][h], high = x[m][n][2 * h + 1] * factor[m][h];
        if (into == ACCUMULATE && row < rows && column < HS) {
            const float2 before = __bfloat1622float2(*(const __nv_bfloat162 *)(to + row * pitch + column));
            low += before.x;
            high += before.y;
        }
        *(uint32_t *)(tile + Tile<KS>::at(row, n) + 4 * c) = bf16_pair(low, high);
    });
    __syncwarp();
    for (int r = lane / LANES; r < 16 * MT && r < rows; r += 32 / LANES)
        for (int chunk = lane % LANES; chunk * 8 < HS; chunk += LANES)
            *(uint4 *)(to + r * pitch + chunk * 8) = *(const uint4 *)(tile + Tile<KS>::at(r, chunk));
}

/* The same in f32, from registers: the four threads of a row write whole sectors. */
template<int KS, int MT> __device__ static inline void store_f32_rows(float *to, int64_t pitch, int rows, int HS,
        const float (&x)[MT][2 * KS][4], const float (&factor)[MT][2], Into into) {
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    each_pair<KS, MT>([&](int m, int n, int h) {
        const int row = 16 * m + 8 * h + g, column = 8 * n + 2 * c;
        if (row >= rows || column >= HS) return;
        float2 *const at = (float2 *)(to + row * pitch + column);
        const float2 before = into == ACCUMULATE ? *at : make_float2(0, 0);
        *at = make_float2(before.x + x[m][n][2 * h] * factor[m][h], before.y + x[m][n][2 * h + 1] * factor[m][h]);
    });
}

/* ---- GEMMs of a warp ---- */

/* All A fragments of 16 MT rows, where there are registers for them. */
template<int KS, int MT, int HELD> __device__ static inline void hold(uint32_t (&a)[MT][HELD][4], uint32_t rows,
                                                                      const Lane<KS> &lane) {
    if constexpr (HELD == KS)
        #pragma unroll
        for (int m = 0; m < MT; m++)
            #pragma unroll
            for (int k = 0; k < KS; k++) ldmatrix(a[m][k], lane.at(rows, m, k));
}

/* c (16 MT, 8 N) = a (16 MT, 16 KS) b (8 N, 16 KS)^T. a is in registers (HELD == KS) or in shared memory. */
template<int KS, int MT, int N, int HELD> __device__ static inline void gemm_nt(float (&c)[MT][N][4],
        const uint32_t (&held)[MT][HELD][4], uint32_t a_rows, const Lane<KS> &a_lane,
        uint32_t b_rows, const Lane<KS> &b_lane) {
    each_element(c, [](float &x, int, int, int) { x = 0; });
    #pragma unroll
    for (int k = 0; k < KS; k++) {
        uint32_t a[MT][4];
        #pragma unroll
        for (int m = 0; m < MT; m++) {
            if constexpr (HELD == KS)
                for (int t = 0; t < 4; t++) a[m][t] = held[m][k][t];
            else
                ldmatrix(a[m], a_lane.at(a_rows, m, k));
        }
        #pragma unroll
        for (int n = 0; n < N / 2; n++) {
            uint32_t b[4];
            ldmatrix(b, b_lane.at(b_rows, n, k));
            for (int m = 0; m < MT; m++) {
                mma(c[m][2 * n],     a[m], b[0], b[1]);
                mma(c[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* c (16 MT, 16 KS) += bf16(p (16 MT, 8 N)) v (8 N, 16 KS), without the elements of p that the mask drops. */
template<int KS, int MT, int N, class Mask = KeepAll> __device__ static inline void gemm_nn(float (&c)[MT][2 * KS][4],
        const float (&p)[MT][N][4], uint32_t v_rows, const Lane<KS> &lane, const Mask &mask = {}) {
    #pragma unroll
    for (int n = 0; n < N / 2; n++) {
        uint32_t a[MT][4];
        #pragma unroll
        for (int m = 0; m < MT; m++)
            for (int t = 0; t < 4; t++) {
                const float (&pair)[4] = p[m][2 * n + t / 2];
                a[m][t] = bf16_pair(pair[t % 2 * 2], pair[t % 2 * 2 + 1]) & mask.pair(m, 2 * n + t / 2, t % 2);
            }
        #pragma unroll
        for (int k = 0; k < KS; k++) {
            uint32_t b[4];
            ldmatrix_trans(b, lane.at(v_rows, n, k));
            for (int m = 0; m < MT; m++) {
                mma(c[m][2 * k],     a[m], b[0], b[1]);
                mma(c[m][2 * k + 1], a[m], b[2], b[3]);
            }
        }
    }
}
