/* attention_flash_sm80.cu - Attention in tiles with online softmax (Dao 2023, arXiv 2307.08691) by mma.sync: bf16, f32
   sums, every GPU from compute capability 8.0 on. Backward has two kernels, for dq and for dk and dv: 7 GEMMs instead
   of 5, but no atomics and no scratch but delta = rowsum(dout out).

   A warp owns 32 rows of its block's tile (16 keys of dk and dv from head size 72 on: no registers for more), so that
   each B fragment serves two mma. With 16 rows the fragments of four warps take 8 cycles of shared memory for 6.5
   cycles of mma. */
#include "attention_cuda.h"
#include "attention_mma.cuh"
#include <cfloat>

static constexpr float SLACK = 8.0f;       /* the row maximum in use may be short of the true one by 2^8: P <= 256 */
static constexpr float NO_MAX = -FLT_MAX;  /* maximum of a row that has seen no key: finite, as it is subtracted */

/* ---- the tile of a block ---- */

struct View { bf16 *data; int64_t pitch; };     /* a result may be f32: Problem.f32 */

struct Problem {
    int   heads, NH, HS, Tq, Tk, diagonal, heads_in_flight;
    float scale;
    Into  dq_into, dkv_into;
    int64_t lse_pitch;
    bool  f32;              /* results in f32: out, or the gradients */
};

__device__ static inline TileIndex tile_of_block(const Problem &p, int T, int own, bool last_is_longest) {
    return swizzled_tile(blockIdx.x, p.heads, p.heads_in_flight, (T + own - 1) / own, last_is_longest);
}

/* The last key that query row i sees; -1 or less: it sees none. */
__device__ static inline int last_key(const Problem &p, int i) { return min(p.diagonal + i, p.Tk - 1); }

template<class T = bf16> __device__ static inline T *rows_of(const View &t, const Problem &p, int head, int rows,
                                                             int row) {
    return (T *)t.data + ((int64_t)(head / p.NH) * rows + row) * t.pitch + head % p.NH * p.HS;
}

/* A warp stores its rows of a result, from `row` on, = or += factor x; `tile` is its own shared memory. */
template<int KS, int MT> __device__ static inline void store_result(const View &t, const Problem &p, int head, int T,
        int row, uint8_t *tile, const float (&x)[MT][2 * KS][4], const float (&factor)[MT][2], Into into) {
    if (p.f32)
        store_f32_rows<KS>(rows_of<float>(t, p, head, T, row), t.pitch, T - row, p.HS, x, factor, into);
    else store_rows<KS>(rows_of(t, p, head, T, row), t.pitch, T - row, p.HS, tile, x, factor, into);
}

/* Starts the copy of the rows of a head that a block owns, row .. row + ROWS - 1. */
template<int KS, int ROWS> __device__ static inline void load_own(uint32_t tile, const View &t, const Problem &p,
                                                                  int head, int T, int row) {
    const bf16 *share = share_of_rows<KS>(rows_of(t, p, head, T, row), t.pitch);
    load_rows<KS, ROWS>(tile, share, t.pitch, T - row, p.HS);
}

/* The causal mask of scores whose rows begin at query i and whose columns begin at key j; g, c: attention_mma.cuh */
template<int MT, int N> __device__ static inline void mask(float (&s)[MT][N][4], const Problem &p, int i, int j,
                                                           int g, int c, float masked) {
    const int seen = p.diagonal + i + g - j - 2 * c, end = p.Tk - 1 - j - 2 * c;
    each_element(s, [&](float &x, int m, int n, int e) {
        if (8 * n + e % 2 > seen + 16 * m + e / 2 * 8 || 8 * n + e % 2 > end) x = masked;
    });
}

/* The kernels' tiles: rows that a block owns, rows of a pipeline stage of the other operands. Two stages: one is loaded
   while the other is computed with. 128 threads of up to 255 registers: two blocks on an SM. */
template<int KS> struct Forward {
    static constexpr int OWN = 128, STREAM = 64, MT = 2;
    static constexpr int HELD = KS <= 4 ? KS : 1;                                   /* q in registers */
    static constexpr int STAGE_BYTES = 2 * STREAM * Tile<KS>::PITCH;                /* k, v */
    static constexpr int SHARED_BYTES = OWN * Tile<KS>::PITCH + 2 * STAGE_BYTES;    /* 48 KiB at 64, 96 at 128 */
};

template<int KS> struct BackwardQ {
    static constexpr int OWN = 128, STREAM = KS <= 4 ? 64 : 32, MT = 2, N = 2;      /* 32 keys at a time */
    static constexpr int HELD = KS <= 4 ? KS : 1;                                   /* q and dout in registers */
    static constexpr int STAGE_BYTES = 2 * STREAM * Tile<KS>::PITCH;                /* k, v */
    static constexpr int SHARED_BYTES = 2 * OWN * Tile<KS>::PITCH + 2 * STAGE_BYTES;    /* 64 KiB, 96 */
};

/* The stages of a kernel that walks over keys and values: F::STREAM rows of either */
template<int KS, class F> struct KeyStages {
    const Problem &p;
    const View &k, &v;
    const uint32_t stages;
    const bf16 *k_share, *v_share;

    DEVICE KeyStages(const Problem &p, const View &k, const View &v, int head, uint32_t stages)
        : p(p), k(k), v(v), stages(stages), k_share(share_of_rows<KS>(rows_of(k, p, head, p.Tk, 0), k.pitch)),
          v_share(share_of_rows<KS>(rows_of(v, p, head, p.Tk, 0), v.pitch)) {}
    /* The next ones, from key j0 on */
    DEVICE void load(int stage, int j0) {
        const uint32_t k_tile = stages + stage * F::STAGE_BYTES;
        load_rows<KS, F::STREAM>(k_tile, k_share, k.pitch, p.Tk - j0, p.HS);
        load_rows<KS, F::STREAM>(k_tile + F::STREAM * Tile<KS>::PITCH, v_share, v.pitch, p.Tk - j0, p.HS);
    }
};

template<int KS> struct BackwardKV {
    static constexpr int MT = KS <= 4 ? 2 : 1, N = 4 / MT;      /* dk and dv of 32 rows at 128 were 256 registers */
    static constexpr int OWN = 16 * MT * WARPS, STREAM = 64, MASK_QUERIES = 128 / MT;
    static constexpr int STAGE_BYTES = 2 * STREAM * Tile<KS>::PITCH + 2 * STREAM * 4;      /* q, dout; lse, delta */
    static constexpr int SHARED_BYTES = 2 * OWN * Tile<KS>::PITCH + 2 * STAGE_BYTES;    /* 65 KiB, 97 */
};

template<int KS, bool DROPOUT> __global__ __launch_bounds__(THREADS, 2)
void flash_forward(Problem p, View out, float *lse, View q, View k, View v, AttentionDropout dropout) {
    using F = Forward<KS>;
    constexpr int PITCH = Tile<KS>::PITCH;
    extern __shared__ __align__(1024) uint8_t shared[];
    const int lane = threadIdx.x % 32, warp = uniform(threadIdx.x / 32), g = lane / 4, c = lane % 4;
    const Lane<KS> across = along_rows<KS>(lane), down = along_columns<KS>(lane);
    const TileIndex tile = tile_of_block(p, p.Tq, F::OWN, true);
    const int i0 = tile.tile * F::OWN, own = warp * 16 * F::MT, first = i0 + own;
    const int keys = last_key(p, min(i0 + F::OWN, p.Tq) - 1) + 1;   /* seen by the tile */
    const uint32_t q_tile = shared_address(shared), stages = q_tile + F::OWN * PITCH;
    const float scale2 = p.scale * LOG2E;

    KeyStages<KS, F> keys_and_values(p, k, v, tile.head, stages);
    float sums[F::MT][2 * KS][4] = {}, total[F::MT][2] = {};
    float row_max[F::MT][2];        /* that P is relative to, in units of log2; see SLACK, tie_breaker */
    each_row<F::MT>([&](int m, int h) { row_max[m][h] = NO_MAX; });

    DropoutMask mask_of_head = {};
    if constexpr (DROPOUT) mask_of_head = dropout.mask(tile.head / p.NH, tile.head % p.NH);
    uint8_t *const warp_mask = shared + F::SHARED_BYTES + warp * WARP_MASK_BYTES;
    uint32_t held[F::MT][F::HELD][4];
    load_own<KS, F::OWN>(q_tile, q, p, tile.head, p.Tq, i0);
    keys_and_values.load(0, 0);
    for (int j0 = 0, stage = 0; j0 < keys; j0 += F::STREAM, stage ^= 1) {
        cp_async_wait_all();
        __syncthreads();        /* this stage has arrived, and all reads of the other are done */
        if (j0 + F::STREAM < keys) keys_and_values.load(stage ^ 1, j0 + F::STREAM);
        if (j0 == 0) hold<KS>(held, q_tile + own * PITCH, across);
        if (j0 > p.diagonal + first + 16 * F::MT - 1) continue;     /* no row of this warp sees these keys */

        const uint32_t k_tile = stages + stage * F::STAGE_BYTES, v_tile = k_tile + F::STREAM * PITCH;
        float s[F::MT][F::STREAM / 8][4];
        if constexpr (DROPOUT) draw_mask<F::STREAM>(warp_mask, dropout, mask_of_head, first, j0);
        gemm_nt<KS>(s, held, q_tile + own * PITCH, across, k_tile, down);
        if (j0 + F::STREAM - 1 > last_key(p, first)) mask(s, p, first, j0, g, c, -INFINITY);

        float top[F::MT][2];
        bool grown = false;
        each_row<F::MT>([&](int m, int h) {
            float x = -INFINITY;
            #pragma unroll
            for (int n = 0; n < F::STREAM / 8; n++) x = fmaxf(x, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
            top[m][h] = quad_max(x);
            grown |= top[m][h] * scale2 > row_max[m][h] + SLACK;
        });
        if (__any_sync(0xffffffffu, grown))         /* always for the first key that a row sees: from NO_MAX */
            each_row<F::MT>([&](int m, int h) {
                const float next = fmaxf(top[m][h] * scale2 + tie_breaker(top[m][h]), row_max[m][h]);
                const float rescale = ex2(row_max[m][h] - next);
                row_max[m][h] = next;
                total[m][h] *= rescale;
                #pragma unroll
                for (int n = 0; n < 2 * KS; n++)
                    for (int e = 2 * h; e < 2 * h + 2; e++) sums[m][n][e] *= rescale;
            });

        /* total adds P before it is rounded to bf16: backward recomputes P from lse */
        each_row<F::MT>([&](int m, int h) {
            #pragma unroll
            for (int n = 0; n < F::STREAM / 8; n++)
                for (int e = 2 * h; e < 2 * h + 2; e++) {
                    s[m][n][e] = ex2(s[m][n][e] * scale2 - row_max[m][h]);
                    total[m][h] += s[m][n][e];
                }
        });
        const FragmentMask<DROPOUT, false, F::MT, F::STREAM / 8> kept(warp_mask, 0, g, c);
        gemm_nn<KS>(sums, s, v_tile, across, kept);
    }
    if (keys <= 0) { cp_async_wait_all(); __syncthreads(); }        /* the copies of q, k and v still arrive */

    float normalise[F::MT][2];
    each_row<F::MT>([&](int m, int h) {
        const int i = first + 16 * m + 8 * h + g;
        const float sum = quad_sum(total[m][h]);
        normalise[m][h] = sum == 0 ? 0.0f : (DROPOUT ? dropout.scale : 1.0f) / sum;    /* 0: the row sees no key */
        if (c == 0 && i < p.Tq) lse[tile.head * p.lse_pitch + i] = LN2 * row_max[m][h] + logf(sum);
    });
    store_result<KS>(out, p, tile.head, p.Tq, first, shared + own * PITCH, sums, normalise, OVERWRITE);
}

/* dq = scale dS k, dS = P (dP - delta), dP = dout v^T; and delta = rowsum(dout out) for the other kernel. */
template<int KS, bool DROPOUT> __global__ __launch_bounds__(THREADS, 2)
void flash_backward_q(Problem p, View dq, float *delta, View dout, View out, const float *lse, View q, View k, View v,
                      AttentionDropout dropout) {
    using F = BackwardQ<KS>;
    constexpr int PITCH = Tile<KS>::PITCH;
    extern __shared__ __align__(1024) uint8_t shared[];
    const int lane = threadIdx.x % 32, warp = uniform(threadIdx.x / 32), g = lane / 4, c = lane % 4;
    const Lane<KS> across = along_rows<KS>(lane), down = along_columns<KS>(lane);
    const TileIndex tile = tile_of_block(p, p.Tq, F::OWN, true);
    const int i0 = tile.tile * F::OWN, own = warp * 16 * F::MT, first = i0 + own;
    const int keys = last_key(p, min(i0 + F::OWN, p.Tq) - 1) + 1;
    const uint32_t q_tile = shared_address(shared), dout_tile = q_tile + F::OWN * PITCH;
    const uint32_t stages = dout_tile + F::OWN * PITCH;
    const float scale2 = p.scale * LOG2E;

    KeyStages<KS, F> keys_and_values(p, k, v, tile.head, stages);
    load_own<KS, F::OWN>(q_tile, q, p, tile.head, p.Tq, i0);
    load_own<KS, F::OWN>(dout_tile, dout, p, tile.head, p.Tq, i0);
    keys_and_values.load(0, 0);
    cp_async_wait_all();
    __syncthreads();

    /* Row 8 h + g of a 16 x 16 square: out from global memory, dout as the fragments a[h] and a[2 + h] of mma. */
    float lse2[F::MT][2] = {}, mean[F::MT][2] = {};           /* lse in units of log2, delta */
    #pragma unroll
    for (int m = 0; m < F::MT; m++) {
        #pragma unroll
        for (int k16 = 0; k16 < KS; k16++) {
            uint32_t a[4];
            ldmatrix(a, across.at(dout_tile + own * PITCH, m, k16));
            for (int t = 0; t < 4; t++) {
                const int i = first + 16 * m + t % 2 * 8 + g, column = 16 * k16 + t / 2 * 8 + 2 * c;
                if (i >= p.Tq || column >= p.HS) continue;
                const bf16 *o = rows_of(out, p, tile.head, p.Tq, i) + column;
                const float2 x = __bfloat1622float2(*(const __nv_bfloat162 *)o);
                mean[m][t % 2] += x.x * __uint_as_float(a[t] << 16) + x.y * __uint_as_float(a[t] & 0xffff0000u);
            }
        }
        for (int h = 0; h < 2; h++) {
            const int i = first + 16 * m + 8 * h + g;
            const int64_t at = (int64_t)tile.head * p.Tq + i;
            mean[m][h] = quad_sum(mean[m][h]) * (DROPOUT ? dropout.inverse_scale : 1);
            if (i < p.Tq) lse2[m][h] = lse[tile.head * p.lse_pitch + i] * LOG2E;
            if (i < p.Tq && c == 0) delta[at] = mean[m][h];
        }
    }

    DropoutMask mask_of_head = {};
    if constexpr (DROPOUT) mask_of_head = dropout.mask(tile.head / p.NH, tile.head % p.NH);
    uint8_t *const warp_mask = shared + F::SHARED_BYTES + warp * WARP_MASK_BYTES;
    uint32_t held_q[F::MT][F::HELD][4], held_dout[F::MT][F::HELD][4];
    hold<KS>(held_q, q_tile + own * PITCH, across);
    hold<KS>(held_dout, dout_tile + own * PITCH, across);
    float sums[F::MT][2 * KS][4] = {};
    for (int j0 = 0, stage = 0; j0 < keys; j0 += F::STREAM, stage ^= 1) {
        cp_async_wait_all();
        __syncthreads();
        if (j0 + F::STREAM < keys) keys_and_values.load(stage ^ 1, j0 + F::STREAM);
        #pragma unroll 1
        for (int part = 0; part < F::STREAM; part += 16 * F::N) {
            const int j = j0 + part;
            if (j > p.diagonal + first + 16 * F::MT - 1) break;
            const uint32_t k_tile = stages + stage * F::STAGE_BYTES + part * PITCH, v_tile = k_tile + F::STREAM * PITCH;
            float s[F::MT][2 * F::N][4], d[F::MT][2 * F::N][4];
            if (DROPOUT && j % 64 == 0) draw_mask<64>(warp_mask, dropout, mask_of_head, first, j);
            gemm_nt<KS>(s, held_q, q_tile + own * PITCH, across, k_tile, down);
            each_element(s, [&](float &x, int m, int, int e) { x = ex2(x * scale2 - lse2[m][e / 2]); });
            if (j + 16 * F::N - 1 > last_key(p, first)) mask(s, p, first, j, g, c, 0.0f);
            gemm_nt<KS>(d, held_dout, dout_tile + own * PITCH, across, v_tile, down);
            const FragmentMask<DROPOUT, false, F::MT, 2 * F::N> kept(warp_mask, j % 64, g, c);
            each_element(s, [&](float &x, int m, int n, int e) {
                x *= kept.keep(d[m][n][e], m, n, e) - mean[m][e / 2];
            });
            gemm_nn<KS>(sums, s, k_tile, across);
        }
    }

    float factor[F::MT][2];
    each_row<F::MT>([&](int m, int h) { factor[m][h] = p.scale * (DROPOUT ? dropout.scale : 1); });
    store_result<KS>(dq, p, tile.head, p.Tq, first, shared + own * PITCH, sums, factor, p.dq_into);
}

/* dv = P^T dout, dk = scale dS^T q: all of it transposed, a row per key. Query rows from Tq on are zero rows with
   lse = delta = 0, so P = 1 and dS = 0 there: they add nothing. */
template<int KS, bool DROPOUT> __global__ __launch_bounds__(THREADS, 2)
void flash_backward_kv(Problem p, View dk, View dv, View dout, const float *lse, const float *delta, View q, View k,
                       View v, AttentionDropout dropout) {
    using F = BackwardKV<KS>;
    constexpr int PITCH = Tile<KS>::PITCH;
    extern __shared__ __align__(1024) uint8_t shared[];
    const int lane = threadIdx.x % 32, warp = uniform(threadIdx.x / 32), g = lane / 4, c = lane % 4;
    const Lane<KS> across = along_rows<KS>(lane), down = along_columns<KS>(lane);
    const TileIndex tile = tile_of_block(p, p.Tk, F::OWN, false);
    const int j0 = tile.tile * F::OWN, own = warp * 16 * F::MT, first = j0 + own;
    const int begin = max(0, j0 - p.diagonal) / F::STREAM * F::STREAM;      /* first query that sees j0, rounded down */
    const uint32_t k_tile = shared_address(shared), v_tile = k_tile + F::OWN * PITCH;
    const uint32_t stages = v_tile + F::OWN * PITCH;
    const float scale2 = p.scale * LOG2E;

    const bf16 *q_share = share_of_rows<KS>(rows_of(q, p, tile.head, p.Tq, begin), q.pitch);
    const bf16 *dout_share = share_of_rows<KS>(rows_of(dout, p, tile.head, p.Tq, begin), dout.pitch);
    const float *row_share = pinned((threadIdx.x < F::STREAM ? lse + tile.head * p.lse_pitch
                                                             : delta + (int64_t)tile.head * p.Tq)
                                    + begin + threadIdx.x % F::STREAM);
    auto load_stage = [&](int stage, int i0) {
        const uint32_t q_tile = stages + stage * F::STAGE_BYTES, dout_tile = q_tile + F::STREAM * PITCH;
        load_rows<KS, F::STREAM>(q_tile, q_share, q.pitch, p.Tq - i0, p.HS);
        load_rows<KS, F::STREAM>(dout_tile, dout_share, dout.pitch, p.Tq - i0, p.HS);
        static_assert(THREADS == 2 * F::STREAM, "a thread for each lse and each delta");
        cp_async_4(dout_tile + F::STREAM * PITCH + threadIdx.x * 4, row_share,
                   (int)threadIdx.x % F::STREAM < p.Tq - i0);
        row_share += F::STREAM;
    };

    load_own<KS, F::OWN>(k_tile, k, p, tile.head, p.Tk, j0);
    load_own<KS, F::OWN>(v_tile, v, p, tile.head, p.Tk, j0);
    if (begin < p.Tq) load_stage(0, begin);
    DropoutMask mask_of_head = {};
    if constexpr (DROPOUT) mask_of_head = dropout.mask(tile.head / p.NH, tile.head % p.NH);
    uint8_t *const warp_mask = shared + F::SHARED_BYTES + warp * WARP_MASK_BYTES;
    int drawn = -1;         /* the mask is that of the queries from MASK_QUERIES drawn on */
    const uint32_t none[F::MT][1][4] = {};
    float k_sums[F::MT][2 * KS][4] = {}, v_sums[F::MT][2 * KS][4] = {};
    for (int i0 = begin, stage = 0; i0 < p.Tq; i0 += F::STREAM, stage ^= 1) {
        cp_async_wait_all();
        __syncthreads();
        if (i0 + F::STREAM < p.Tq) load_stage(stage ^ 1, i0 + F::STREAM);
        #pragma unroll 1
        for (int part = 0; part < F::STREAM; part += 16 * F::N) {
            const int i = i0 + part;
            if (p.diagonal + i + 16 * F::N - 1 < first) continue;   /* these rows see no key of this warp */
            const uint32_t stage_at = stages + stage * F::STAGE_BYTES;
            const uint32_t q_tile = stage_at + part * PITCH, dout_tile = q_tile + F::STREAM * PITCH;
            const float *lse_tile = (const float *)(shared + (stage_at - k_tile) + 2 * F::STREAM * PITCH) + part
                                    + 2 * c;
            float s[F::MT][2 * F::N][4], d[F::MT][2 * F::N][4];
            if (DROPOUT && i / F::MASK_QUERIES != drawn) {
                drawn = i / F::MASK_QUERIES;
                draw_mask<16 * F::MT>(warp_mask, dropout, mask_of_head, drawn * F::MASK_QUERIES, first);
            }
            gemm_nt<KS>(s, none, k_tile + own * PITCH, across, q_tile, down);
            #pragma unroll
            for (int n = 0; n < 2 * F::N; n++) {
                const float2 row_lse = *(const float2 *)(lse_tile + 8 * n);
                #pragma unroll
                for (int m = 0; m < F::MT; m++)
                    for (int e = 0; e < 4; e++)
                        s[m][n][e] = ex2(s[m][n][e] * scale2 - (e % 2 ? row_lse.y : row_lse.x) * LOG2E);
            }
            if (p.diagonal + i < first + 16 * F::MT - 1) {
                const int seen = first + g - p.diagonal - i - 2 * c;        /* from this row of the part on */
                each_element(s, [&](float &x, int m, int n, int e) {
                    if (8 * n + e % 2 < seen + 16 * m + e / 2 * 8) x = 0;
                });
            }
            const FragmentMask<DROPOUT, true, F::MT, 2 * F::N> kept(warp_mask, i % F::MASK_QUERIES, g, c);
            gemm_nn<KS>(v_sums, s, dout_tile, across, kept);
            gemm_nt<KS>(d, none, v_tile + own * PITCH, across, dout_tile, down);
            #pragma unroll
            for (int n = 0; n < 2 * F::N; n++) {
                const float2 mean = *(const float2 *)(lse_tile + F::STREAM + 8 * n);
                #pragma unroll
                for (int m = 0; m < F::MT; m++)
                    for (int e = 0; e < 4; e++)
                        s[m][n][e] *= kept.keep(d[m][n][e], m, n, e) - (e % 2 ? mean.y : mean.x);
            }
            gemm_nn<KS>(k_sums, s, q_tile, across);
        }
    }
    if (begin >= p.Tq) { cp_async_wait_all(); __syncthreads(); }    /* no row sees these keys: k and v still arrive */

    float factor[F::MT][2], factor_v[F::MT][2];
    each_row<F::MT>([&](int m, int h) {
        factor[m][h] = p.scale * (DROPOUT ? dropout.scale : 1);
        factor_v[m][h] = DROPOUT ? dropout.scale : 1;
    });
    store_result<KS>(dk, p, tile.head, p.Tk, first, shared + own * PITCH, k_sums, factor, p.dkv_into);
    store_result<KS>(dv, p, tile.head, p.Tk, first, shared + (F::OWN + own) * PITCH, v_sums, factor_v, p.dkv_into);
}

/* ---- host ---- */

static const char *refuse(const AttentionSpec *s) {
    const char *shared_reason = attention_refuse_in_bf16(s);
    if (shared_reason) return shared_reason;
    return cuda_arch() < 80 ? "the GPU is older than compute capability 8.0" : NULL;
}

static View view(Tensor t) {
    require_aligned_rows("attention", { t });
    return { (bf16 *)t.data, t.pitch };
}

/* The kernel without dropout or the one with it, over tiles of T rows of all heads. */
#define LAUNCH_TILES(kernel, F, T, ...) do { \
    const int64_t tiles = (int64_t)p.heads * ((T + F::OWN - 1) / F::OWN); \
    const bool drops = s->dropout.rate > 0; \
    REQUIRE(tiles <= INT32_MAX, "attention: %lld tiles, want at most %d: a smaller batch", (long long)tiles, \
            INT32_MAX); \
    LAUNCH((drops ? kernel<KS, true> : kernel<KS, false>), (unsigned)tiles, THREADS, \
           F::SHARED_BYTES + (drops ? WARPS * WARP_MASK_BYTES : 0), p, __VA_ARGS__, s->dropout); \
} while (0)

static Problem problem(const AttentionSpec *s, const AttentionOperands *o) {
    return { s->B * s->NH, s->NH, s->HS, s->Tq, s->Tk, s->q0, attention_heads_in_flight(s), s->scale, s->dq_into,
             s->dkv_into, o->lse.pitch, s->out_dtype == F32 };
}

template<int KS> static void forward_sized(const AttentionSpec *s, const AttentionOperands *o) {
    const Problem p = problem(s, o);
    LAUNCH_TILES(flash_forward, Forward<KS>, p.Tq, view(o->out), o->lse, view(o->q), view(o->k), view(o->v));
}

template<int KS> static void backward_sized(const AttentionSpec *s, const AttentionOperands *o) {
    const Problem p = problem(s, o);
    const View q = view(o->q), k = view(o->k), v = view(o->v), dout = view(o->dout), dk = view(o->dk), dv = view(o->dv);
    float *const delta = (float *)o->work;
    LAUNCH_TILES(flash_backward_q, BackwardQ<KS>, p.Tq, view(o->dq), delta, dout, view(o->out), o->lse, q, k, v);
    LAUNCH_TILES(flash_backward_kv, BackwardKV<KS>, p.Tk, dk, dv, dout, o->lse, delta, q, k, v);
}

/* By ceil(HS / 16). 7 runs as 8, 1 as 2, with zero columns. */
#define SIZED(pass) { pass<2>, pass<2>, pass<3>, pass<4>, pass<5>, pass<6>, pass<8>, pass<8> }

static void forward(const AttentionSpec *s, const AttentionOperands *o) {
    static void (*const sized[])(const AttentionSpec *, const AttentionOperands *) = SIZED(forward_sized);
    sized[(s->HS - 1) / 16](s, o);
}

static void backward(const AttentionSpec *s, const AttentionOperands *o) {
    static void (*const sized[])(const AttentionSpec *, const AttentionOperands *) = SIZED(backward_sized);
    sized[(s->HS - 1) / 16](s, o);
}

const Attention attention_flash_sm80 = {
    "flash", refuse, attention_no_bytes, attention_row_bytes, forward, backward, NULL
};
