/* kernels/cuda/attention_flash_f32.cu - Attention in tiles with online softmax (Dao et al. 2022, arXiv 2205.14135), all
   of it in f32 on the CUDA cores: the baseline for the flash attentions on tensor cores. Memory O(T): the backward pass
   recomputes P from lse, first by query tiles for dq, then by key tiles for dk and dv, so that no two blocks add to one
   element.

   A block of 16 x 8 threads owns 32 rows of one head; thread (x,y) works on rows 4y .. 4y+3, and on every 16th column
   from x on: 4 x 2 of a 32 x 32 tile of scores, 4 x D/16 of 32 x D sums, where D is HS or the next of 32, 64, 128. */
#include "attention_cuda.h"
#include "common.cuh"

enum { TILE = 32, THREADS = 128, LANES = 16, ROWS = 4, SCORES = TILE / LANES, SCORE_PITCH = TILE + 4 };

/* Shared memory holds tiles of TILE rows, each 4 floats longer than its data: then 8 threads that read 16 bytes of 8
   rows access 8 different groups of banks. */
template <int D> struct Shape {
    static constexpr int PITCH = D + 4, TILE_FLOATS = TILE * PITCH, SUMS = D / LANES;
};
enum { SCORE_FLOATS = TILE * SCORE_PITCH };

/* One head of one sequence: a matrix (count,HS). */
struct Head { float *data; int64_t pitch; int count; };

__device__ inline Head head_of(const Tensor &t, const AttentionSpec &s, int head) {
    return { (float *)t.data + head / s.NH * t.dim[1] * t.pitch + head % s.NH * s.HS, t.pitch, (int)t.dim[1] };
}

/* Rows first .. first + 31 of head, zeros behind its last row and its last column. */
template <int D>
__device__ inline void load_tile(float *tile, const Head &head, int first, int HS) {
    #pragma unroll 4
    for (int e = threadIdx.x; e < TILE * D; e += THREADS) {
        const int row = e / D, column = e % D;
        const bool there = first + row < head.count && column < HS;
        tile[row * Shape<D>::PITCH + column] = there ? head.data[(first + row) * head.pitch + column] : 0.0f;
    }
}

/* head = or += sums */
template <int D>
__device__ inline void store_sums(const Head &head, int first, int HS, const float (&sums)[ROWS][D / LANES],
                                  int x, int y, Into into) {
    #pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int row = first + ROWS * y + i;
        #pragma unroll
        for (int n = 0; n < Shape<D>::SUMS; n++) {
            float *const to = head.data + row * head.pitch + x + LANES * n;
            if (row < head.count && x + LANES * n < HS) *to = into == ACCUMULATE ? *to + sums[i][n] : sums[i][n];
        }
    }
}

/* s = a b^T of two tiles */
template <int D>
__device__ inline void multiply(float (&s)[ROWS][SCORES], const float *a, const float *b, int x, int y) {
    #pragma unroll
    for (int i = 0; i < ROWS; i++)
        #pragma unroll
        for (int j = 0; j < SCORES; j++) s[i][j] = 0;
    #pragma unroll 4
    for (int d = 0; d < D; d += 4) {
        float4 ai[ROWS], bj[SCORES];
        #pragma unroll
        for (int i = 0; i < ROWS; i++) ai[i] = *(const float4 *)(a + (ROWS * y + i) * Shape<D>::PITCH + d);
        #pragma unroll
        for (int j = 0; j < SCORES; j++) bj[j] = *(const float4 *)(b + (x + LANES * j) * Shape<D>::PITCH + d);
        #pragma unroll
        for (int i = 0; i < ROWS; i++)
            #pragma unroll
            for (int j = 0; j < SCORES; j++) {
                s[i][j] += ai[i].x * bj[j].x;
                s[i][j] += ai[i].y * bj[j].y;
                s[i][j] += ai[i].z * bj[j].z;
                s[i][j] += ai[i].w * bj[j].w;
            }
    }
}

/* A tile of scores goes to shared memory for the GEMM that follows. The rows of a y are written and read by the same
   half warp, which need not wait for the others. */
__device__ inline void share_scores(float *shared, const float (&s)[ROWS][SCORES], int x, int y) {
    #pragma unroll
    for (int i = 0; i < ROWS; i++)
        #pragma unroll
        for (int j = 0; j < SCORES; j++) shared[(ROWS * y + i) * SCORE_PITCH + x + LANES * j] = s[i][j];
}

/* sums += scores b */
template <int D>
__device__ inline void add_matmul(float (&sums)[ROWS][D / LANES], const float *scores, const float *b, int x, int y) {
    #pragma unroll 2
    for (int k = 0; k < TILE; k += 4) {
        float4 w[ROWS];
        #pragma unroll
        for (int i = 0; i < ROWS; i++) w[i] = *(const float4 *)(scores + (ROWS * y + i) * SCORE_PITCH + k);
        #pragma unroll
        for (int n = 0; n < Shape<D>::SUMS; n++) {
            const float *column = b + k * Shape<D>::PITCH + x + LANES * n;
            const float b0 = column[0], b1 = column[Shape<D>::PITCH];
            const float b2 = column[2 * Shape<D>::PITCH], b3 = column[3 * Shape<D>::PITCH];
            #pragma unroll
            for (int i = 0; i < ROWS; i++) {
                sums[i][n] += w[i].x * b0;
                sums[i][n] += w[i].y * b1;
                sums[i][n] += w[i].z * b2;
                sums[i][n] += w[i].w * b3;
            }
        }
    }
}

/* The tile of this block, the thread's row and column in it. All heads run side by side. */
struct Place { int head, first, x, y; };

__device__ inline Place place_of_block(const AttentionSpec &s, int T, bool last_is_longest) {
    const int heads = s.B * s.NH;
    const TileIndex t = swizzled_tile(blockIdx.x, heads, heads, (T - 1) / TILE + 1, last_is_longest);
    return { t.head, t.tile * TILE, (int)threadIdx.x % LANES, (int)threadIdx.x / LANES };
}

/* Query row i sees so many keys. In the kernels s.q0 is attention_diagonal. */
__device__ inline int keys_seen(const AttentionSpec &s, int i) { return max(0, min(s.q0 + i + 1, s.Tk)); }

/* What P and dP are multiplied by: 1 without dropout. 16 threads draw the blocks of the mask of a tile of scores; a
   barrier follows, then all read them. */
template <bool DROPOUT> struct Mask {
    DropoutMask mask;
    uint32_t threshold;
    float scale;
    Random64 *kept;             /* of blocks (query / 8, key / 8) of the tile */

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
    /* of the tile that begins at query i0 and key j0 */
    __device__ inline void draw(int i0, int j0) const {
        constexpr int WIDTH = TILE / 8;
        if (!DROPOUT || threadIdx.x >= WIDTH * WIDTH) return;
        const int row = threadIdx.x / WIDTH, column = threadIdx.x % WIDTH;
        kept[threadIdx.x] = dropout_block(mask, i0 / 8 + row, j0 / 8 + column, threshold);
    }
    /* of a query and a key of the tile */
    __device__ inline float at(int query, int key) const {
        if constexpr (!DROPOUT) return 1.0f;
        return dropout_bit(kept[query / 8 * (TILE / 8) + key / 8], query % 8, key % 8) ? scale : 0.0f;
    }
};

extern __shared__ float4 shared_memory[];

/* out, lse */
template <int D, bool DROPOUT>
static __global__ void __launch_bounds__(THREADS, 3)
forward_kernel(AttentionSpec s, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v) {
    if (s.position) s.q0 += *s.position;
    const Place at = place_of_block(s, s.Tq, true);
    const Mask<DROPOUT> mask(s, at.head);
    const int x = at.x, y = at.y, i0 = at.first, seen = keys_seen(s, min(i0 + TILE, s.Tq) - 1);
    float *Q = (float *)shared_memory, *K = Q + Shape<D>::TILE_FLOATS, *V = K + Shape<D>::TILE_FLOATS;
    float *P = V + Shape<D>::TILE_FLOATS;
    const Head hk = head_of(k, s, at.head), hv = head_of(v, s, at.head), ho = head_of(out, s, at.head);
    float sums[ROWS][D / LANES] = {}, row_max[ROWS], total[ROWS] = {};
    #pragma unroll
    for (int i = 0; i < ROWS; i++) row_max[i] = -INFINITY;
    load_tile<D>(Q, head_of(q, s, at.head), i0, s.HS);
    for (int j0 = 0; j0 < seen; j0 += TILE) {
        load_tile<D>(K, hk, j0, s.HS);
        load_tile<D>(V, hv, j0, s.HS);
        mask.draw(i0, j0);
        __syncthreads();
        float p[ROWS][SCORES];
        multiply<D>(p, Q, K, x, y);
        #pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int end = keys_seen(s, i0 + ROWS * y + i) - j0 - x;
            #pragma unroll
            for (int j = 0; j < SCORES; j++) p[i][j] = LANES * j < end ? s.scale * p[i][j] : -INFINITY;
            const float before = row_max[i];
            row_max[i] = fmaxf(before, warp_max<LANES>(fmaxf(p[i][0], p[i][1])));
            const float shift = row_max[i] == -INFINITY ? 0.0f : row_max[i];    /* the row has seen no key yet */
            const float rescale = expf(before - shift);
            #pragma unroll
            for (int j = 0; j < SCORES; j++) p[i][j] = expf(p[i][j] - shift);
            total[i] = total[i] * rescale + (p[i][0] + p[i][1]);        /* of this thread's columns */
            #pragma unroll
            for (int n = 0; n < Shape<D>::SUMS; n++) sums[i][n] *= rescale;
            #pragma unroll
            for (int j = 0; j < SCORES; j++) p[i][j] *= mask.at(ROWS * y + i, x + LANES * j);
        }
        share_scores(P, p, x, y);
        __syncwarp();
        add_matmul<D>(sums, P, V, x, y);
        __syncthreads();
    }
    #pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int row = i0 + ROWS * y + i;
        total[i] = warp_sum<LANES>(total[i]);
        #pragma unroll
        for (int n = 0; n < Shape<D>::SUMS; n++) sums[i][n] = keys_seen(s, row) ? sums[i][n] / total[i] : 0.0f;
        if (x == 0 && row < s.Tq) ((float *)lse.data)[at.head * lse.pitch + row] = row_max[i] + logf(total[i]);
    }
    store_sums<D>(ho, i0, s.HS, sums, x, y, OVERWRITE);
}

/* delta = rowsum(dout out) = rowsum(P dP), and dq = dS k */
template <int D, bool DROPOUT>
static __global__ void __launch_bounds__(THREADS, 3)
dq_kernel(AttentionSpec s, Tensor dq, float *delta, Tensor dout, Tensor out, Tensor lse,
          Tensor q, Tensor k, Tensor v) {
    const Place at = place_of_block(s, s.Tq, true);
    const Mask<DROPOUT> mask(s, at.head);
    const int x = at.x, y = at.y, i0 = at.first, seen = keys_seen(s, min(i0 + TILE, s.Tq) - 1);
    float *Q = (float *)shared_memory, *dO = Q + Shape<D>::TILE_FLOATS, *K = dO + Shape<D>::TILE_FLOATS;
    float *V = K + Shape<D>::TILE_FLOATS, *dS = V + Shape<D>::TILE_FLOATS;
    const Head hk = head_of(k, s, at.head), hv = head_of(v, s, at.head), ho = head_of(out, s, at.head);
    load_tile<D>(Q, head_of(q, s, at.head), i0, s.HS);
    load_tile<D>(dO, head_of(dout, s, at.head), i0, s.HS);
    __syncthreads();
    float sums[ROWS][D / LANES] = {}, lse_row[ROWS], delta_row[ROWS];
    #pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int row = i0 + ROWS * y + i;
        const int64_t index = (int64_t)at.head * s.Tq + row;
        float sum = 0;
        for (int c = x; row < s.Tq && c < s.HS; c += LANES)
            sum += dO[(ROWS * y + i) * Shape<D>::PITCH + c] * ho.data[row * ho.pitch + c];
        delta_row[i] = warp_sum<LANES>(sum);
        lse_row[i] = row < s.Tq ? ((const float *)lse.data)[at.head * lse.pitch + row] : 0.0f;
        if (x == 0 && row < s.Tq) delta[index] = delta_row[i];
    }
    for (int j0 = 0; j0 < seen; j0 += TILE) {
        load_tile<D>(K, hk, j0, s.HS);
        load_tile<D>(V, hv, j0, s.HS);
        mask.draw(i0, j0);
        __syncthreads();
        float p[ROWS][SCORES], dp[ROWS][SCORES];
        multiply<D>(p, Q, K, x, y);
        multiply<D>(dp, dO, V, x, y);
        #pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int end = keys_seen(s, i0 + ROWS * y + i) - j0 - x;
            #pragma unroll
            for (int j = 0; j < SCORES; j++) {
                p[i][j] = LANES * j < end ? expf(s.scale * p[i][j] - lse_row[i]) : 0.0f;
                dp[i][j] *= mask.at(ROWS * y + i, x + LANES * j);
                dp[i][j] = s.scale * p[i][j] * (dp[i][j] - delta_row[i]);
            }
        }
        share_scores(dS, dp, x, y);
        __syncwarp();
        add_matmul<D>(sums, dS, K, x, y);
        __syncthreads();
    }
    store_sums<D>(head_of(dq, s, at.head), i0, s.HS, sums, x, y, s.dq_into);
}

/* dv = P^T dout, dk = dS^T q. The tiles of scores are transposed: their rows are keys. */
template <int D, bool DROPOUT>
static __global__ void __launch_bounds__(THREADS, 3)
dkv_kernel(AttentionSpec s, Tensor dk, Tensor dv, Tensor dout, Tensor lse, const float *delta,
           Tensor q, Tensor k, Tensor v) {
    const Place at = place_of_block(s, s.Tk, false);
    const Mask<DROPOUT> mask(s, at.head);
    const int x = at.x, y = at.y, j0 = at.first;
    float *K = (float *)shared_memory, *V = K + Shape<D>::TILE_FLOATS, *Q = V + Shape<D>::TILE_FLOATS;
    float *dO = Q + Shape<D>::TILE_FLOATS, *P = dO + Shape<D>::TILE_FLOATS, *dS = P + SCORE_FLOATS;
    const Head hq = head_of(q, s, at.head), hdo = head_of(dout, s, at.head);
    float dk_sums[ROWS][D / LANES] = {}, dv_sums[ROWS][D / LANES] = {};
    load_tile<D>(K, head_of(k, s, at.head), j0, s.HS);
    load_tile<D>(V, head_of(v, s, at.head), j0, s.HS);
    const int first_to_see = max(j0 - s.q0, 0);
    for (int i0 = first_to_see / TILE * TILE; i0 < s.Tq; i0 += TILE) {
        load_tile<D>(Q, hq, i0, s.HS);
        load_tile<D>(dO, hdo, i0, s.HS);
        mask.draw(i0, j0);
        __syncthreads();
        float p[ROWS][SCORES], dp[ROWS][SCORES];
        multiply<D>(p, K, Q, x, y);
        multiply<D>(dp, V, dO, x, y);
        #pragma unroll
        for (int j = 0; j < SCORES; j++) {
            const int row = i0 + x + LANES * j;
            const int64_t index = (int64_t)at.head * s.Tq + row;
            const float lse_row = row < s.Tq ? ((const float *)lse.data)[at.head * lse.pitch + row] : 0.0f;
            const float delta_row = row < s.Tq ? delta[index] : 0.0f;
            #pragma unroll
            for (int i = 0; i < ROWS; i++) {
                const bool sees = row < s.Tq && j0 + ROWS * y + i <= s.q0 + row;
                p[i][j] = sees ? expf(s.scale * p[i][j] - lse_row) : 0.0f;
                const float kept = mask.at(x + LANES * j, ROWS * y + i);
                dp[i][j] = s.scale * p[i][j] * (dp[i][j] * kept - delta_row);
                p[i][j] *= kept;
            }
        }
        share_scores(P, p, x, y);
        share_scores(dS, dp, x, y);
        __syncwarp();
        add_matmul<D>(dv_sums, P, dO, x, y);
        add_matmul<D>(dk_sums, dS, Q, x, y);
        __syncthreads();
    }
    store_sums<D>(head_of(dv, s, at.head), j0, s.HS, dv_sums, x, y, s.dkv_into);
    store_sums<D>(head_of(dk, s, at.head), j0, s.HS, dk_sums, x, y, s.dkv_into);
}

/* ---- host */

/* The kernel without dropout or the one with it. */
#define LAUNCH_EITHER(kernel, grid, smem_bytes, ...) do { \
    if (s->dropout.rate > 0) LAUNCH((kernel<D, true>),  grid, THREADS, smem_bytes, __VA_ARGS__); \
    else                     LAUNCH((kernel<D, false>), grid, THREADS, smem_bytes, __VA_ARGS__); \
} while (0)

static const char *refuse(const AttentionSpec *s) {
    const char *refusal = attention_refuse_on_cuda(s);
    if (refusal) return refusal;
    return s->dtype == F32 ? NULL : "this kernel computes in f32 only";
}

static AttentionSpec kernel_spec(AttentionSpec s) {
    s.q0 = attention_diagonal(&s);
    return s;
}

static int blocks(const AttentionSpec *s, int T) { return (int)ceil_div(T, TILE) * s->B * s->NH; }

template <int D>
static void forward_sized(const AttentionSpec *s, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v) {
    LAUNCH_EITHER(forward_kernel, blocks(s, s->Tq), sizeof(float) * (3 * Shape<D>::TILE_FLOATS + SCORE_FLOATS),
                  kernel_spec(*s), out, lse, q, k, v);
}

template <int D>
static void backward_sized(const AttentionSpec *s, Tensor dq, Tensor dk, Tensor dv, Tensor dout,
                           Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, float *delta) {
    LAUNCH_EITHER(dq_kernel, blocks(s, s->Tq), sizeof(float) * (4 * Shape<D>::TILE_FLOATS + SCORE_FLOATS),
                  kernel_spec(*s), dq, delta, dout, out, lse, q, k, v);
    LAUNCH_EITHER(dkv_kernel, blocks(s, s->Tk), sizeof(float) * (4 * Shape<D>::TILE_FLOATS + 2 * SCORE_FLOATS),
                  kernel_spec(*s), dk, dv, dout, lse, delta, q, k, v);
}

static void forward(const AttentionSpec *s, Tensor out, Tensor lse, void *kept, Tensor q, Tensor k, Tensor v,
                    void *work) {
    attention_check_forward(&attention_flash_f32, s, out, lse, q, k, v);
    if (attention_merge_part(&attention_flash_f32, s, out, lse, kept, q, k, v, work)) return;
    (s->HS <= 32 ? forward_sized<32> : s->HS <= 64 ? forward_sized<64> : forward_sized<128>)
        (s, out, lse, q, k, v);
}

static void backward(const AttentionSpec *s, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse,
                     const void *, Tensor q, Tensor k, Tensor v, void *work) {
    attention_check_backward(&attention_flash_f32, s, dq, dk, dv, dout, out, lse, q, k, v);
    (s->HS <= 32 ? backward_sized<32> : s->HS <= 64 ? backward_sized<64> : backward_sized<128>)
        (s, dq, dk, dv, dout, out, lse, q, k, v, (float *)work);
}

const Attention attention_flash_f32 = {
    .name = "flash", .refuse = refuse,
    .kept_bytes = attention_no_bytes, .workspace_bytes = attention_row_workspace,
    .forward = forward, .backward = backward
};
