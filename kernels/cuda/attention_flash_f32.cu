/* attention_flash_f32.cu - Attention in tiles with online softmax (Dao et al. 2022, arXiv 2205.14135) in f32 on the
   CUDA cores. Backward goes by query tiles for dq, then by key tiles for dk and dv: no two blocks add to one element.

   A block of 16 x 8 threads owns a tile of rows of one head. Thread (x,y) computes the scores of rows y, y + 8, ... and
   columns x, x + 16, ...: 8 x 4 of 64 x 64, or 4 x 2 of 32 x 32 where HS > 64. Of sums (rows,D) it has the same rows
   and columns 4x .. 4x+3 of every 64, or 2x, 2x+1 of 32; D is HS or the next of 32, 64, 128. */
#include "attention_cuda.h"
#include "common.cuh"
#include "ptx.cuh"

enum { LANES = 16, GROUPS = 8, THREADS = LANES * GROUPS };

template <int N> struct __align__(4 * N) Floats { float e[N]; };
using Vector = Floats<4>;

/* The rows of a tile in shared memory are 4 floats longer than its data: then 8 threads that read 16 bytes of 8 rows
   access 8 different groups of banks. Rows of scores are 16 longer: the two that a warp stores share no bank. */
template <int D> struct Shape {
    static constexpr int TILE = D <= 64 ? 64 : 32, ROWS = TILE / GROUPS, SCORES = TILE / LANES;
    static constexpr int WIDTH = D == 32 ? 2 : 4, VECTORS = D / (LANES * WIDTH);
    static constexpr int PITCH = D + 4, TILE_FLOATS = TILE * PITCH;
    static constexpr int SCORE_PITCH = TILE + 16, SCORE_FLOATS = TILE * SCORE_PITCH;
    using Scores = float[ROWS][SCORES];
    using Columns = Floats<WIDTH>;
    using Sums = Columns[ROWS][VECTORS];
};

/* One head of one sequence: a matrix (count,HS). */
struct Head { float *data; int64_t pitch; int count; };

__device__ inline Head head_of(const Tensor &t, const AttentionSpec &s, int head) {
    return { (float *)t.data + head / s.NH * t.dim[1] * t.pitch + head % s.NH * s.HS, t.pitch, (int)t.dim[1] };
}

/* Copies the rows of head from first on, zeros behind its last row and its last column; cp_async_wait_all ends it. */
template <int D>
__device__ inline void load_tile(float *tile, const Head &head, int first, int HS) {
    constexpr int STEP = THREADS / D;
    const int column = threadIdx.x % D, row = threadIdx.x / D, rows = column < HS ? head.count - first - row : 0;
    const float *from = head.data + (first + row) * head.pitch + column;
    const uint32_t to = shared_address(tile + row * Shape<D>::PITCH + column);
    #pragma unroll 8
    for (int r = 0; r < Shape<D>::TILE; r += STEP, from += STEP * head.pitch)
        cp_async_4(to + r * Shape<D>::PITCH * sizeof(float), from, r < rows);
}

/* Waits for the copies of all threads; after it no thread reads the tiles used before. */
__device__ inline void next_tile() {
    cp_async_wait_all();
    __syncthreads();
}

/* head = or += sums */
template <int D>
__device__ inline void store_sums(const Head &head, int first, int HS, const typename Shape<D>::Sums &sums, int x,
                                  int y, Into into) {
    constexpr int WIDTH = Shape<D>::WIDTH;
    #pragma unroll
    for (int i = 0; i < Shape<D>::ROWS; i++) {
        const int row = first + y + GROUPS * i;
        #pragma unroll
        for (int e = 0; e < D / LANES; e++) {
            const int n = e / WIDTH, column = LANES * WIDTH * n + WIDTH * x + e % WIDTH;
            float *const to = head.data + row * head.pitch + column;
            const float sum = sums[i][n].e[e % WIDTH];
            if (row < head.count && column < HS) *to = into == ACCUMULATE ? *to + sum : sum;
        }
    }
}

/* f(s, i, j) for the scores of a thread */
template <int ROWS, int SCORES, class F> __device__ inline void each_score(float (&s)[ROWS][SCORES], F f) {
    #pragma unroll
    for (int i = 0; i < ROWS; i++)
        #pragma unroll
        for (int j = 0; j < SCORES; j++) f(s[i][j], i, j);
}

/* s = a b^T of two tiles */
template <int D>
__device__ inline void multiply(typename Shape<D>::Scores &s, const float *a, const float *b, int x, int y) {
    constexpr int ROWS = Shape<D>::ROWS, SCORES = Shape<D>::SCORES, PITCH = Shape<D>::PITCH;
    each_score(s, [](float &score, int, int) { score = 0; });
    #pragma unroll 2
    for (int d = 0; d < D; d += 4) {
        Vector ai[ROWS], bj[SCORES];
        #pragma unroll
        for (int i = 0; i < ROWS; i++) ai[i] = *(const Vector *)(a + (y + GROUPS * i) * PITCH + d);
        #pragma unroll
        for (int j = 0; j < SCORES; j++) bj[j] = *(const Vector *)(b + (x + LANES * j) * PITCH + d);
        #pragma unroll
        for (int e = 0; e < 4; e++)
            each_score(s, [&](float &score, int i, int j) { score += ai[i].e[e] * bj[j].e[e]; });
    }
}

/* sums += s b. The scores go through shared memory; their rows of a y are written and read by the same half warp, which
   need not wait for the others. */
template <int D>
__device__ inline void add_matmul(typename Shape<D>::Sums &sums, float *shared, typename Shape<D>::Scores &s,
                                  const float *b, int x, int y) {
    constexpr int ROWS = Shape<D>::ROWS, PITCH = Shape<D>::SCORE_PITCH;
    constexpr int WIDTH = Shape<D>::WIDTH;
    using Columns = typename Shape<D>::Columns;
    __syncwarp();
    each_score(s, [&](float score, int i, int j) { shared[(y + GROUPS * i) * PITCH + x + LANES * j] = score; });
    __syncwarp();
    #pragma unroll 2
    for (int k = 0; k < Shape<D>::TILE; k += 4) {
        Vector w[ROWS];
        #pragma unroll
        for (int i = 0; i < ROWS; i++) w[i] = *(const Vector *)(shared + (y + GROUPS * i) * PITCH + k);
        #pragma unroll
        for (int e = 0; e < 4; e++)
            #pragma unroll
            for (int n = 0; n < Shape<D>::VECTORS; n++) {
                const Columns row = *(const Columns *)(b + (k + e) * Shape<D>::PITCH + LANES * WIDTH * n + WIDTH * x);
                #pragma unroll
                for (int i = 0; i < ROWS; i++)
                    for (int c = 0; c < WIDTH; c++) sums[i][n].e[c] += w[i].e[e] * row.e[c];
            }
    }
}

/* row *= factor */
template <int D>
__device__ inline void scale_row(typename Shape<D>::Columns (&row)[Shape<D>::VECTORS], float factor) {
    constexpr int WIDTH = Shape<D>::WIDTH;
    #pragma unroll
    for (int e = 0; e < D / LANES; e++) row[e / WIDTH].e[e % WIDTH] *= factor;
}

/* The tile of this block, the thread's row and column in it. All heads run side by side. */
struct Place { int head, first, x, y; };

template <int D> __device__ inline Place place_of_block(const AttentionSpec &s, int T, bool last_is_longest) {
    const int heads = s.B * s.NH;
    const TileIndex t = swizzled_tile(blockIdx.x, heads, heads, (T - 1) / Shape<D>::TILE + 1, last_is_longest);
    return { t.head, t.tile * Shape<D>::TILE, (int)threadIdx.x % LANES, (int)threadIdx.x / LANES };
}

/* Query row i sees so many keys. */
__device__ inline int keys_seen(const AttentionSpec &s, int i) { return max(0, min(s.q0 + i + 1, s.Tk)); }

/* What P and dP are multiplied by: 1 without dropout. The first threads draw a block of the mask each; a barrier
   follows, then all read them. */
template <int TILE, bool DROPOUT> struct Mask {
    DropoutMask mask;
    uint32_t threshold;
    float scale;
    Random64 *kept;             /* masks of the tile's blocks (query / 8, key / 8) */

    __device__ inline Mask(const AttentionSpec &s, int head) {
        if constexpr (DROPOUT) {
            static __shared__ Random64 shared[TILE / 8 * (TILE / 8)];
            const uint64_t sequence = (s.dropout.sequence ? *s.dropout.sequence : 0) + (uint64_t)(head / s.NH);
            mask = dropout_mask(s.dropout.seed, s.dropout.site, sequence, head % s.NH);
            threshold = dropout_threshold(s.dropout.rate);
            scale = dropout_scale(s.dropout.rate);
            kept = shared;
        }
    }
    /* draws the mask of the tile that begins at query i0 and key j0 */
    __device__ inline void draw(int i0, int j0) const {
        constexpr int WIDTH = TILE / 8;
        if (!DROPOUT || threadIdx.x >= WIDTH * WIDTH) return;
        const int row = threadIdx.x / WIDTH, column = threadIdx.x % WIDTH;
        kept[threadIdx.x] = dropout_draw(mask, i0 / 8 + row, j0 / 8 + column, dropout_digits(threshold));
    }
    /* the factor of P for a query and a key of the tile */
    __device__ inline float at(int query, int key) const {
        if constexpr (!DROPOUT) return 1.0f;
        return dropout_bit(kept[query / 8 * (TILE / 8) + key / 8], query % 8, key % 8) ? scale : 0.0f;
    }
};

extern __shared__ float4 shared_memory[];

/* out, lse */
template <int D, bool DROPOUT>
static __global__ void __launch_bounds__(THREADS, DROPOUT ? 2 : 3)
forward_kernel(AttentionSpec s, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v) {
    constexpr int TILE = Shape<D>::TILE, ROWS = Shape<D>::ROWS, SCORES = Shape<D>::SCORES;
    if (s.position) s.q0 += *s.position;
    const Place at = place_of_block<D>(s, s.Tq, true);
    const Mask<TILE, DROPOUT> mask(s, at.head);
    const int x = at.x, y = at.y, i0 = at.first, seen = keys_seen(s, min(i0 + TILE, s.Tq) - 1);
    float *Q = (float *)shared_memory, *K = Q + Shape<D>::TILE_FLOATS, *V = K + Shape<D>::TILE_FLOATS;
    float *P = V + Shape<D>::TILE_FLOATS;
    const Head hk = head_of(k, s, at.head), hv = head_of(v, s, at.head), ho = head_of(out, s, at.head);
    typename Shape<D>::Sums sums = {};
    float row_max[ROWS], total[ROWS] = {};
    #pragma unroll
    for (int i = 0; i < ROWS; i++) row_max[i] = -INFINITY;
    load_tile<D>(Q, head_of(q, s, at.head), i0, s.HS);
    load_tile<D>(K, hk, 0, s.HS);
    for (int j0 = 0; j0 < seen; j0 += TILE) {
        mask.draw(i0, j0);
        next_tile();
        load_tile<D>(V, hv, j0, s.HS);
        typename Shape<D>::Scores p;
        multiply<D>(p, Q, K, x, y);
        #pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int end = keys_seen(s, i0 + y + GROUPS * i) - j0 - x;
            #pragma unroll
            for (int j = 0; j < SCORES; j++) p[i][j] = LANES * j < end ? s.scale * p[i][j] : -INFINITY;
            const float before = row_max[i];
            float highest = p[i][0];
            #pragma unroll
            for (int j = 1; j < SCORES; j++) highest = fmaxf(highest, p[i][j]);
            row_max[i] = fmaxf(before, warp_max<LANES>(highest));
            const float shift = row_max[i] == -INFINITY ? 0.0f : row_max[i];    /* the row has seen no key yet */
            const float rescale = expf(before - shift);
            scale_row<D>(sums[i], rescale);
            total[i] *= rescale;                        /* a sum over this thread's columns only */
            #pragma unroll
            for (int j = 0; j < SCORES; j++) {
                p[i][j] = expf(p[i][j] - shift);
                total[i] += p[i][j];
                p[i][j] *= mask.at(y + GROUPS * i, x + LANES * j);
            }
        }
        next_tile();
        load_tile<D>(K, hk, j0 + TILE, s.HS);
        add_matmul<D>(sums, P, p, V, x, y);
    }
    #pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int row = i0 + y + GROUPS * i;
        total[i] = warp_sum<LANES>(total[i]);
        scale_row<D>(sums[i], keys_seen(s, row) ? 1 / total[i] : 0.0f);
        if (x == 0 && row < s.Tq) ((float *)lse.data)[at.head * lse.pitch + row] = row_max[i] + logf(total[i]);
    }
    cp_async_wait_all();
    store_sums<D>(ho, i0, s.HS, sums, x, y, OVERWRITE);
}

/* delta = rowsum(dout out) = rowsum(P dP), and dq = dS k */
template <int D, bool DROPOUT>
static __global__ void __launch_bounds__(THREADS, 2)
dq_kernel(AttentionSpec s, Tensor dq, float *delta, Tensor dout, Tensor out, Tensor lse,
          Tensor q, Tensor k, Tensor v) {
    constexpr int TILE = Shape<D>::TILE, ROWS = Shape<D>::ROWS;
    const Place at = place_of_block<D>(s, s.Tq, true);
    const Mask<TILE, DROPOUT> mask(s, at.head);
    const int x = at.x, y = at.y, i0 = at.first, seen = keys_seen(s, min(i0 + TILE, s.Tq) - 1);
    float *Q = (float *)shared_memory, *dO = Q + Shape<D>::TILE_FLOATS, *K = dO + Shape<D>::TILE_FLOATS;
    float *V = K + Shape<D>::TILE_FLOATS, *dS = V + Shape<D>::TILE_FLOATS;
    const Head hk = head_of(k, s, at.head), hv = head_of(v, s, at.head), ho = head_of(out, s, at.head);
    load_tile<D>(Q, head_of(q, s, at.head), i0, s.HS);
    load_tile<D>(dO, head_of(dout, s, at.head), i0, s.HS);
    load_tile<D>(V, hv, 0, s.HS);
    next_tile();
    typename Shape<D>::Sums sums = {};
    float lse_row[ROWS], delta_row[ROWS];
    #pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int row = i0 + y + GROUPS * i;
        const int64_t index = (int64_t)at.head * s.Tq + row;
        float sum = 0;
        for (int c = x; row < s.Tq && c < s.HS; c += LANES)
            sum += dO[(y + GROUPS * i) * Shape<D>::PITCH + c] * ho.data[row * ho.pitch + c];
        delta_row[i] = warp_sum<LANES>(sum);
        lse_row[i] = row < s.Tq ? ((const float *)lse.data)[at.head * lse.pitch + row] : 0.0f;
        if (x == 0 && row < s.Tq) delta[index] = delta_row[i];
    }
    for (int j0 = 0; j0 < seen; j0 += TILE) {
        next_tile();
        load_tile<D>(K, hk, j0, s.HS);
        mask.draw(i0, j0);
        typename Shape<D>::Scores p, dp;
        multiply<D>(dp, dO, V, x, y);
        next_tile();
        load_tile<D>(V, hv, j0 + TILE, s.HS);
        multiply<D>(p, Q, K, x, y);
        each_score(dp, [&](float &score, int i, int j) {
            const int end = keys_seen(s, i0 + y + GROUPS * i) - j0 - x;
            p[i][j] = expf(LANES * j < end ? s.scale * p[i][j] - lse_row[i] : -INFINITY);
            score *= mask.at(y + GROUPS * i, x + LANES * j);
            score = s.scale * p[i][j] * (score - delta_row[i]);
        });
        add_matmul<D>(sums, dS, dp, K, x, y);
    }
    cp_async_wait_all();
    store_sums<D>(head_of(dq, s, at.head), i0, s.HS, sums, x, y, s.dq_into);
}

/* dv = P^T dout, dk = dS^T q. The tiles of scores are transposed: their rows are keys. */
template <int D, bool DROPOUT>
static __global__ void __launch_bounds__(THREADS, 2)
dkv_kernel(AttentionSpec s, Tensor dk, Tensor dv, Tensor dout, Tensor lse, const float *delta,
           Tensor q, Tensor k, Tensor v) {
    constexpr int TILE = Shape<D>::TILE, ROWS = Shape<D>::ROWS, SCORES = Shape<D>::SCORES;
    const Place at = place_of_block<D>(s, s.Tk, false);
    const Mask<TILE, DROPOUT> mask(s, at.head);
    const int x = at.x, y = at.y, j0 = at.first;
    float *K = (float *)shared_memory, *V = K + Shape<D>::TILE_FLOATS, *Q = V + Shape<D>::TILE_FLOATS;
    float *dO = Q + Shape<D>::TILE_FLOATS, *scores = dO + Shape<D>::TILE_FLOATS;
    const Head hq = head_of(q, s, at.head), hdo = head_of(dout, s, at.head);
    typename Shape<D>::Sums dk_sums = {}, dv_sums = {};
    load_tile<D>(K, head_of(k, s, at.head), j0, s.HS);
    load_tile<D>(V, head_of(v, s, at.head), j0, s.HS);
    const int first_to_see = max(j0 - s.q0, 0);
    int i0 = first_to_see / TILE * TILE;
    load_tile<D>(dO, hdo, i0, s.HS);
    for (; i0 < s.Tq; i0 += TILE) {
        next_tile();
        load_tile<D>(Q, hq, i0, s.HS);
        mask.draw(i0, j0);
        typename Shape<D>::Scores p, dp;
        multiply<D>(dp, V, dO, x, y);
        next_tile();
        multiply<D>(p, K, Q, x, y);
        #pragma unroll
        for (int j = 0; j < SCORES; j++) {
            const int row = i0 + x + LANES * j;
            const int64_t index = (int64_t)at.head * s.Tq + row;
            const float lse_row = row < s.Tq ? ((const float *)lse.data)[at.head * lse.pitch + row] : 0.0f;
            const float delta_row = row < s.Tq ? delta[index] : 0.0f;
            #pragma unroll
            for (int i = 0; i < ROWS; i++) {
                const bool sees = row < s.Tq && j0 + y + GROUPS * i <= s.q0 + row;
                p[i][j] = expf(sees ? s.scale * p[i][j] - lse_row : -INFINITY);
                const float kept = mask.at(x + LANES * j, y + GROUPS * i);
                dp[i][j] = s.scale * p[i][j] * (dp[i][j] * kept - delta_row);
                p[i][j] *= kept;
            }
        }
        add_matmul<D>(dv_sums, scores, p, dO, x, y);
        __syncthreads();
        load_tile<D>(dO, hdo, i0 + TILE, s.HS);
        add_matmul<D>(dk_sums, scores, dp, Q, x, y);
    }
    cp_async_wait_all();
    store_sums<D>(head_of(dv, s, at.head), j0, s.HS, dv_sums, x, y, s.dkv_into);
    store_sums<D>(head_of(dk, s, at.head), j0, s.HS, dk_sums, x, y, s.dkv_into);
}

/* ---- host */

static const char *refuse(const AttentionSpec *s) {
    const char *refusal = attention_refuse_on_cuda(s);
    if (refusal) return refusal;
    return s->dtype == F32 ? NULL : "this kernel computes in f32 only";
}

/* The kernel without dropout or the one with it, over tiles of T rows of all heads. Shared memory: so many tiles, and
   one of scores. */
#define LAUNCH_TILES(kernel, T, tiles, ...) \
    LAUNCH((s->dropout.rate > 0 ? kernel<D, true> : kernel<D, false>), \
           (unsigned)ceil_div(T, Shape<D>::TILE) * s->B * s->NH, THREADS, \
           sizeof(float) * (tiles * Shape<D>::TILE_FLOATS + Shape<D>::SCORE_FLOATS), *s, __VA_ARGS__)

template <int D> static void forward_sized(const AttentionSpec *s, const AttentionOperands *o) {
    LAUNCH_TILES(forward_kernel, s->Tq, 3, o->out, o->lse, o->q, o->k, o->v);
}

template <int D> static void backward_sized(const AttentionSpec *s, const AttentionOperands *o) {
    float *const delta = (float *)o->work;
    LAUNCH_TILES(dq_kernel, s->Tq, 4, o->dq, delta, o->dout, o->out, o->lse, o->q, o->k, o->v);
    LAUNCH_TILES(dkv_kernel, s->Tk, 4, o->dk, o->dv, o->dout, o->lse, delta, o->q, o->k, o->v);
}

static void forward(const AttentionSpec *s, const AttentionOperands *o) {
    (s->HS <= 32 ? forward_sized<32> : s->HS <= 64 ? forward_sized<64> : forward_sized<128>)(s, o);
}

static void backward(const AttentionSpec *s, const AttentionOperands *o) {
    (s->HS <= 32 ? backward_sized<32> : s->HS <= 64 ? backward_sized<64> : backward_sized<128>)(s, o);
}

const Attention attention_flash_f32 = {
    "flash", refuse, attention_no_bytes, attention_row_bytes, forward, backward, NULL
};
