/* token_sm90.cu - All blocks of the network for one token, in one kernel.

   Each weight is used once a token: the bound is the time to read them, 3.6 us for a block of 124M on an H200. As
   separate kernels the 8 steps of a block take 3 us each. Here a cluster of 8 thread blocks computes one head, with the
   head's columns of the projection and 1 / NH of the MLP's hidden layer (kernels/README.md).

   The sums of both projections over all clusters are made in the L2 by adding integers, which gives the same bits in
   any order. `sums` has 64 bits for each column, never cleared. Their change since they were last read is

       bits 0-3    the number of parts; the sum is complete when it is NH
       bits 4-7    the number of parts that are not finite, or 2^23 and more: if not 0, the column becomes NaN
       bits 8-63   the sum of the others, in units of 2^-28

   One thread block of a cluster polls a column and sends its sum to the others: polls slow down the additions. */
#include <cassert>
#include "gelu.cuh"
#include "tensor_map.cuh"
extern "C" {
#include "../token.h"
}

enum {
    RANKS = 8, WARPS = 8, THREADS = 32 * WARPS, ALL_THREADS = THREADS + 128,        /* with the warpgroup that copies */
    HS = 64, HIDDEN = 4 * HS, C_MAX = 768,
    KEYS = 8 * WARPS, ROUNDS = 2, T_MAX = RANKS * KEYS * ROUNDS     /* a thread block has KEYS keys in a round */
};
/* What is copied for a block of the network, in the order of its use. A piece has 8 C weights, or the keys and values
   of a round (CACHE). */
enum { QKV, CACHE, PROJ, FC, FCPROJ, MATRICES };
enum { PIECES = 12 + ROUNDS, IN_FLIGHT = 3 };
DEVICE constexpr int first_piece(int m) {
    constexpr int first[] = { 0, 3, 3 + ROUNDS, 4 + ROUNDS, 8 + ROUNDS, PIECES };
    return first[m];
}
enum { AFTER_PROJ, AFTER_FCPROJ };

/* Pairs of columns; and what the sums were before the kernel. */
static __device__ ulonglong2 sums[2][C_MAX / 2], sums_before[2][C_MAX / 2];

static constexpr float UNIT = 1 << 28, PART_LIMIT = 1 << 23, MIN_SCORE = -1e30f;   /* finite: it is subtracted */
static constexpr uint32_t ONES = 0x3f803f80;        /* in bf16 */

DEVICE void add_to_sum(uint64_t *sum, float x) {
    const bool is_valid = fabsf(x) < PART_LIMIT;
    red_add(sum, is_valid ? ((uint64_t)__float2ll_rn(x * UNIT) << 8) + 1 : 17);
}
/* Of the change of a sum: the number of parts still missing of n, and the value. */
DEVICE uint32_t missing(uint64_t change, int n) { return (n - (uint32_t)change) % 16; }
DEVICE float value_of(uint64_t change) { return change / 16 % 16 ? NAN : (float)((int64_t)change >> 8) * (1 / UNIT); }

/* sum[0] + sum[3] of lane 4 g + v += row g of w (8,32) times vector v of four, bf16. mma multiplies (16,16) by (16,8).
   Here rows g and g + 8 of its first operand are the even and the odd pairs of columns of row g, so that a lane's part
   is 16 contiguous bytes, columns 8 q .. 8 q + 7 in lane 4 g + q. Columns 2 v and 2 v + 1 of the second are the even
   and the odd pairs of vector v: lane 4 g + q passes those of vector g / 2 (half_of). */
DEVICE void multiply(float (&sum)[4], uint4 w, uint2 x) { mma(sum, { w.x, w.y, w.z, w.w }, x.x, x.y); }
/* What the lane passes of a vector's i-th 32 elements: words half_at and half_at + 2. */
DEVICE int half_at(int i) { return i * 16 + lane_id() % 4 * 4 + lane_id() / 4 % 2; }
DEVICE uint2 half_of(const void *vector, int i) {
    const uint32_t *x = (const uint32_t *)vector + half_at(i);
    return { x[0], x[2] };
}

/* As integers, in the order of the floats: one instruction for the warp. */
DEVICE float warp_max_redux(float x) {
    const int bits = __float_as_int(x), max = __reduce_max_sync(0xffffffffu, bits ^ (bits >> 31 & 0x7fffffff));
    return __int_as_float(max ^ (max >> 31 & 0x7fffffff));
}

struct Maps { CUtensorMap of[MATRICES]; };

template <int NH> struct Shared {
    static constexpr int C = NH * HS, COLUMNS = C / RANKS;
    /* pieces, in TMA's swizzled layout; vectors by l % 2 */
    bf16 weight[PIECES - ROUNDS][C * 8], key[ROUNDS][KEYS][64], value[ROUNDS][KEYS][64];
    struct {
        bf16 ln1w[C], ln1b[C], qkvb[3][HS / RANKS];
        bf16 ln2w[C], ln2b[C], fcb[HIDDEN / RANKS], projb[COLUMNS], fcprojb[COLUMNS];
    } vector[2];
    uint64_t full[PIECES], empty[MATRICES];
    /* within the thread block: partial products, [3][40] of each warp; 124: the reads of a warp are in 32 banks */
    float row_part[WARPS][124], score[ROUNDS][KEYS];
    /* within a warp */
    uint4 P[WARPS][ROUNDS][8];
    /* received from the cluster; x: what qkv's and fc's weights are multiplied with, in bf16 */
    struct __align__(16) { uint32_t value[C / 2]; uint64_t full; } x[2];
    struct __align__(16) { float2 value[RANKS * WARPS]; uint64_t full; } x_sums[2];
    struct __align__(16) { uint32_t value[3][HS / 2]; uint64_t full; } qkv;
    struct __align__(16) { struct { float2 out[RANKS][HS / 2], scale[RANKS]; } value; uint64_t full; } attention;
    struct __align__(16) { uint32_t value[HIDDEN / 2]; uint64_t full; } hidden;
};

/* A thread's view. Block l of the network is named l. */
template <int NH> struct Token {
    static constexpr int C = Shared<NH>::C, COLUMNS = Shared<NH>::COLUMNS;
    static constexpr int STEPS = ceil_div(C / 32, WARPS);       /* a warp multiplies 32 columns of qkv and fc in each */
    static constexpr int TILES = ceil_div(NH, 8);               /* of 8 rows: a warp has NH rows of a projection */
    const TokenNetwork &n;
    const Maps &maps;
    Shared<NH> &s;
    const int t, lane, warp, head, rank;
    const int row;                  /* of 8 rows of weights, g of `multiply`: those of lanes 0-3 and 4-7 of any 8 are 4
                                       apart, in different banks by TMA's swizzle */
    int pair;                       /* of columns of the residual stream, which the lane reads of `sums` */
    int position;
    float2 x;                       /* the residual stream: of `pair` */
    float mean = 0;                 /* of it when it was last normalised */
    ulonglong2 seen[2];             /* of sums */

    DEVICE Token(const TokenNetwork &network, const Maps &tensor_maps, Shared<NH> &shared) : n(network),
        maps(tensor_maps), s(shared), t(threadIdx.x), lane(t % 32), warp(t / 32), head(blockIdx.x / RANKS),
        rank(blockIdx.x % RANKS), row(lane / 8 + lane / 4 % 2 * 4) {}

    /* ---- copies of weights, keys and values, by one thread */

    DEVICE bf16 *weights_of(int m, int i = 0) { return s.weight[first_piece(m) + i - (m > CACHE ? ROUNDS : 0)]; }

    /* Called before the i-th piece of m in block l is copied: waits until m of block l - 1 is in registers and at most
       IN_FLIGHT - 1 other pieces are in flight, and returns the piece's barrier. With 6 in flight polls are slower, the
       12 blocks of 124M by 3 to 5 us. */
    DEVICE uint32_t begin_piece(int m, int i, int l, int bytes) {
        const int p = first_piece(m) + i, before = (p + PIECES - IN_FLIGHT) % PIECES;
        const uint32_t full = shared_address(&s.full[p]);
        if (l && i == 0) mbarrier_wait(shared_address(&s.empty[m]), (l - 1) % 2);
        if (l || p >= IN_FLIGHT) mbarrier_wait(shared_address(&s.full[before]), (l - (p < IN_FLIGHT)) % 2);
        mbarrier_arrive_expect_tx(full, bytes);
        return full;
    }
    DEVICE void copy_weights(uint32_t full, int m, int i, int row, int panel, int l) {
        cp_async_bulk_tensor_load_once(shared_address(weights_of(m, i)), &maps.of[m], full, 0, row, panel, l);
    }
    template <int COUNT> DEVICE void copy_vector(uint32_t full, bf16 (&to)[COUNT], const Tensor &from, int at, int l) {
        const char *address = (const char *)from.data + l * n.block_bytes + at * sizeof(bf16);
        cp_async_bulk_load(shared_address(to), address, sizeof to, full);
    }
    /* The loops are not unrolled: with a longer program a token takes 1 us longer. */
    DEVICE void copy_block(int l) {
        constexpr int WEIGHTS = sizeof s.weight[0];
        const int own_qkv = head * HS + rank * (HS / RANKS), own_fc = head * HIDDEN + rank * (HIDDEN / RANKS);
        auto &v = s.vector[l % 2];
        #pragma unroll 1
        for (int i = 0; i < 3; i++) {
            const uint32_t full = begin_piece(QKV, i, l, WEIGHTS + sizeof v.qkvb[i] +
                                              (i ? 0 : sizeof v.ln1w + sizeof v.ln1b));
            if (i == 0) {
                copy_vector(full, v.ln1w, n.ln1w, 0, l);
                copy_vector(full, v.ln1b, n.ln1b, 0, l);
            }
            copy_vector(full, v.qkvb[i], n.qkvb, i * C + own_qkv, l);
            copy_weights(full, QKV, i, i * C + own_qkv, 0, l);
        }
        #pragma unroll 1
        for (int i = 0; i < ROUNDS; i++) {
            const int first = (i * RANKS + rank) * KEYS;
            const int bytes = first < position ? sizeof s.key[i] + sizeof s.value[i] : 0;
            const uint32_t full = begin_piece(CACHE, i, l, bytes);
            if (!bytes) continue;
            cp_async_bulk_tensor_load(shared_address(s.key[i]), &maps.of[CACHE], full, 0, first, head, l);
            cp_async_bulk_tensor_load(shared_address(s.value[i]), &maps.of[CACHE], full, 0, first, NH + head, l);
        }
        const uint32_t full = begin_piece(PROJ, 0, l, WEIGHTS + sizeof v.projb);
        copy_vector(full, v.projb, n.projb, rank * COLUMNS, l);
        copy_weights(full, PROJ, 0, rank * COLUMNS, head, l);
        #pragma unroll 1
        for (int i = 0; i < HIDDEN / RANKS / 8; i++) {
            const uint32_t full = begin_piece(FC, i, l, WEIGHTS +
                                              (i ? 0 : sizeof v.ln2w + sizeof v.ln2b + sizeof v.fcb));
            if (i == 0) {
                copy_vector(full, v.ln2w, n.ln2w, 0, l);
                copy_vector(full, v.ln2b, n.ln2b, 0, l);
                copy_vector(full, v.fcb, n.fcb, own_fc, l);
            }
            copy_weights(full, FC, i, own_fc + i * 8, 0, l);
        }
        #pragma unroll 1
        for (int i = 0; i < HIDDEN / 64; i++) {
            const uint32_t full = begin_piece(FCPROJ, i, l, WEIGHTS + (i ? 0 : sizeof v.fcprojb));
            if (i == 0) copy_vector(full, v.fcprojb, n.fcprojb, rank * COLUMNS, l);
            copy_weights(full, FCPROJ, i, rank * COLUMNS, head * (HIDDEN / 64) + i, l);
        }
    }

    DEVICE void await(int m, int l) {
        for (int p = first_piece(m); p < first_piece(m + 1); p++) mbarrier_wait(shared_address(&s.full[p]), l % 2);
    }
    /* m may be overwritten: this warp has read it. */
    DEVICE void release(int m) {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared_address(&s.empty[m]));
    }
    /* What the lane passes to `multiply`: of `row` the i-th 32 columns of a panel. */
    DEVICE uint4 part_of(const bf16 *panel, int row, int i) {
        return ((const uint4 *)panel)[row * 8 + ((i * 4 + lane % 4) ^ row % 8)];
    }

    /* ---- exchanges */

    template <class T> DEVICE void send(T &to, T x, uint64_t &full, int target) {
        const uint32_t address = map_to_block(shared_address(&to), target);
        if constexpr (sizeof x == 8) st_async(address, *(uint64_t *)&x, map_to_block(shared_address(&full), target));
        else                         st_async(address, x, map_to_block(shared_address(&full), target));
    }
    template <class T> DEVICE void expect(T &from) {
        mbarrier_arrive_expect_tx(shared_address(&from.full), sizeof from.value);
    }
    template <class T> DEVICE void receive(T &from, int l) {
        mbarrier_wait(shared_address(&from.full), l % 2);
        if (t == 0) expect(from);
    }
    /* x - mean times the weights of a LayerNorm, and the warp's sums of x - mean and of its squares. Eight lanes each
       have the warp's NH / 2 pairs, for two targets. */
    DEVICE void send_x(int which, uint32_t weight) {
        auto &to = s.x[which];
        auto &sums_to = s.x_sums[which];
        const bool is_own = lane % 8 < NH / 2;
        const float2 d = { x.x - mean, x.y - mean };
        const uint32_t y = bf16_pair(d.x * low_of(weight), d.y * high_of(weight));
        if (is_own) for (int i = 0; i < RANKS; i += 4) send(to.value[pair], y, to.full, i + lane / 8);
        const float2 sum = { warp_sum<8>(is_own ? d.x + d.y : 0.0f),
                             warp_sum<8>(is_own ? d.x * d.x + d.y * d.y : 0.0f) };
        if (lane % 8 < 2) send(sums_to.value[rank * WARPS + warp], sum, sums_to.full, lane % 8 * 4 + lane / 8);
    }
    /* The residual stream += the sum after a projection + bias, for the cluster. */
    DEVICE void share_sum(int which, const bf16 *bias, uint32_t weight) {
        const uint32_t b = ((const uint32_t *)bias)[pair - rank * COLUMNS / 2];
        ulonglong2 now, change;
        do {
            now = ld_relaxed(&sums[which][pair]);
            change = { now.x - seen[which].x, now.y - seen[which].y };
        } while (__any_sync(0xffffffffu, missing(change.x, NH) | missing(change.y, NH)));
        x.x += value_of(change.x) + low_of(b);
        x.y += value_of(change.y) + high_of(b);
        seen[which] = now;
        send_x(which, weight);
    }

    /* ---- steps */

    /* 8 ROWS rows of W, qkvw or fcw, times the LayerNorm of the residual stream, which `share` sends: thread t returns
       that of row t / 8. With d = x - the mean of the last LayerNorm, change = the mean of d, and weight w and bias b,
       it is rstd (W (d w) - change W w) + W b: three GEMVs, which need not wait for change and rstd. */
    template <int ROWS, class Share>
    DEVICE float product(int m, int which, int l, const bf16 *ln_weight, const bf16 *ln_bias, Share share) {
        const int q = lane % 4, g = lane / 4;
        uint4 w[ROWS][STEPS];
        await(m, l);
        const uint32_t own_weight = ((const uint32_t *)ln_weight)[pair];
        #pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const int step = i * WARPS + warp;
            if (step < C / 32)
                for (int r = 0; r < ROWS; r++)
                    w[r][i] = part_of(weights_of(m, r) + step / 2 * (8 * 64), row, step % 2);
        }
        release(m);
        share(own_weight);
        receive(s.x[which], l);
        const void *vector = g < 2 ? (const void *)s.x[which].value : g < 4 ? ln_weight : ln_bias;
        float sum[ROWS][4] = {}, part[5];
        #pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const int step = i * WARPS + warp;
            if (step < C / 32) {
                const uint2 y = half_of(vector, step);
                for (int r = 0; r < ROWS; r++) multiply(sum[r], w[r][i], y);
            }
        }
        receive(s.x_sums[which], l);
        const float4 two = ((const float4 *)s.x_sums[which].value)[lane];
        part[3] = two.x + two.z;
        part[4] = two.y + two.w;
        #pragma unroll
        for (int distance = 16; distance > 4; distance /= 2)
            for (int i = 3; i < 5; i++) part[i] += __shfl_xor_sync(0xffffffffu, part[i], distance);
        if (q < 3)
            for (int r = 0; r < ROWS; r++) s.row_part[warp][q * 40 + r * 8 + row] = sum[r][0] + sum[r][3];
        bar_sync(1, THREADS);
        for (int i = 0; i < 3; i++) part[i] = s.row_part[t % 8][i * 40 + t / 8];
        #pragma unroll
        for (int distance = 4; distance; distance /= 2)
            for (int i = 0; i < 5; i++) part[i] += __shfl_xor_sync(0xffffffffu, part[i], distance);
        const float change = part[3] * (1.0f / C), rstd = rstd_of(part[4], change);
        mean += change;
        return rstd * (part[0] - change * part[1]) + part[2];
    }
    DEVICE float rstd_of(float squares, float change) {
        return rsqrtf(fmaxf(squares * (1.0f / C) - change * change, 0.0f) + 1e-5f);
    }

    /* Rows of a projection that the warp has, columns that the cluster has. Rows from NH on are those of other warps or
       what follows in Shared: they are not added. */
    template <int K> DEVICE void load_weights(uint4 (&w)[TILES][K], int m, int l) {
        await(m, l);
        #pragma unroll
        for (int r = 0; r < TILES; r++)
            for (int i = 0; i < K; i++)
                w[r][i] = part_of(weights_of(m) + i / 2 * (COLUMNS * 64), warp * NH + r * 8 + row, i % 2);
        release(m);
    }
    /* Sums += weights times a vector of 32 K bf16. */
    template <int K> DEVICE void add_product(int which, const uint4 (&w)[TILES][K], const uint2 (&vector)[K]) {
        float sum[2][2][4] = {};        /* of even and odd i: shorter chains */
        #pragma unroll
        for (int i = 0; i < K; i++)
            for (int r = 0; r < TILES; r++) multiply(sum[r][i % 2], w[r][i], vector[i]);
        const float first  = sum[0][0][0] + sum[0][0][3] + sum[0][1][0] + sum[0][1][3];
        const float second = sum[1][0][0] + sum[1][0][3] + sum[1][1][0] + sum[1][1][3];
        const int r = lane % 4;
        if (r < TILES && r * 8 + row < NH)
            add_to_sum((uint64_t *)sums[which] + rank * COLUMNS + warp * NH + r * 8 + row, r ? second : first);
    }

    DEVICE void qkv(int l) {
        const auto &v = s.vector[l % 2];
        const int r = t / 64, dim = t / 8 % 8;
        float y = product<3>(QKV, AFTER_FCPROJ, l, v.ln1w, v.ln1b, [&](uint32_t weight) {
            if (l) share_sum(AFTER_FCPROJ, s.vector[(l - 1) % 2].fcprojb, weight);
        });
        if (r < 3) y += to_float(v.qkvb[r][dim]);
        const float next = __shfl_xor_sync(0xffffffffu, y, 8);
        if (r < 3 && dim % 2 == 0) send(s.qkv.value[r][rank * 4 + dim / 2], bf16_pair(y, next), s.qkv.full, t % 8);
    }

    /* A warp has 8 keys in each round, lane 4 g + q parts q and q + 4 of key `row`. */
    DEVICE int rounds() { return position < RANKS * KEYS ? 1 : ROUNDS; }
    DEVICE void attention(int l) {
        const int q = lane % 4, g = lane / 4, own = warp * 8 + row;
        uint4 key[ROUNDS][2];
        await(CACHE, l);
        #pragma unroll
        for (int round = 0; round < ROUNDS; round++)
            if (round < rounds())
                for (int i = 0; i < 2; i++) key[round][i] = part_of(s.key[round][0], own, i);
        receive(s.qkv, l);
        const uint2 query[2] = { half_of(s.qkv.value[0], 0), half_of(s.qkv.value[0], 1) };
        #pragma unroll
        for (int round = 0; round < ROUNDS; round++)
            if (round < rounds()) {
                const int j = (round * RANKS + rank) * KEYS + own;
                float sum[4] = {};
                if (j >= position) {
                    bf16 *to = (bf16 *)((char *)n.cache.data + l * n.cache_bytes) + j * n.cache.pitch + head * HS;
                    for (int i = 0; i < 2; i++) {
                        uint4 value = {};
                        if (j == position) {
                            value = ((const uint4 *)s.qkv.value[2])[i * 4 + q];
                            key[round][i] = ((const uint4 *)s.qkv.value[1])[i * 4 + q];
                            ((uint4 *)to)[i * 4 + q] = key[round][i];
                            ((uint4 *)(to + C))[i * 4 + q] = value;
                        }
                        ((uint4 *)s.value[round][own])[(i * 4 + q) ^ row] = value;
                    }
                    fence_proxy_async();            /* before the next copy to s.value */
                }
                __syncwarp();
                for (int i = 0; i < 2; i++) multiply(sum, key[round][i], query[i]);
                if (q == 0)
                    s.score[round][own] = j <= position ? (sum[0] + sum[3]) * (n.scale * LOG2E) : MIN_SCORE;
            }
        bar_sync(1, THREADS);
        float2 score[ROUNDS];                       /* of keys 2 lane and 2 lane + 1 */
        float score_max = MIN_SCORE, out[2][4] = {}, total[4] = {};
        for (int round = 0; round < ROUNDS; round++)
            if (round < rounds()) {
                score[round] = ((const float2 *)s.score[round])[lane];
                score_max = fmaxf(score_max, fmaxf(score[round].x, score[round].y));
            }
        score_max = warp_max_redux(score_max);
        for (int round = 0; round < ROUNDS; round++)
            if (round < rounds())
                ((uint32_t *)s.P[warp][round])[q * 8 + g] =        /* lane q passes words 8 q .. 8 q + 7 */
                    bf16_pair(ex2(score[round].x - score_max), ex2(score[round].y - score_max));
        __syncwarp();
        #pragma unroll
        for (int round = 0; round < ROUNDS; round++)
            if (round < rounds()) {
                uint32_t value[8];
                const uint32_t from = shared_address(&s.value[round][lane][(warp ^ lane % 8) * 8]);
                ldmatrix_trans(value, from);
                ldmatrix_trans(value + 4, from + 32 * sizeof s.value[round][0]);
                for (int i = 0; i < 2; i++) {
                    const uint4 P = s.P[warp][round][q * 2 + i];
                    mma(out[0], { P.x, 0, P.y, 0 }, value[4 * i], value[4 * i + 1]);
                    mma(out[1], { P.z, 0, P.w, 0 }, value[4 * i + 2], value[4 * i + 3]);
                    if (warp == 0) mma(total, { P.x, P.z, P.y, P.w }, ONES, ONES);
                }
            }
        release(CACHE);
        auto &to = s.attention;
        send(to.value.out[rank][warp * 4 + q], { out[0][0] + out[1][0], out[0][1] + out[1][1] }, to.full, g);
        if (warp == 0 && q == 0) send(to.value.scale[rank], { score_max, total[0] + total[2] }, to.full, g);
    }

    DEVICE void proj(int l) {
        uint4 w[TILES][HS / 32];
        uint2 vector[HS / 32];
        const auto &from = s.attention.value;
        load_weights(w, PROJ, l);
        receive(s.attention, l);
        float score_max = MIN_SCORE, total = 0;
        float2 sum = {};                            /* of dimensions 2 lane and 2 lane + 1 */
        for (int i = 0; i < RANKS; i++) score_max = fmaxf(score_max, from.scale[i].x);
        for (int i = 0; i < RANKS; i++) {
            const float factor = ex2(from.scale[i].x - score_max);
            const float2 out = from.out[i][lane];
            total += factor * from.scale[i].y;
            sum.x += factor * out.x;
            sum.y += factor * out.y;
        }
        const float inverse = __fdividef(1.0f, total);          /* 1 or more: the P of the largest score is 1 */
        const uint32_t out = bf16_pair(sum.x * inverse, sum.y * inverse);
        for (int i = 0; i < HS / 32; i++)           /* half_of */
            vector[i] = { __shfl_sync(0xffffffffu, out, half_at(i)), __shfl_sync(0xffffffffu, out, half_at(i) + 2) };
        add_product(AFTER_PROJ, w, vector);
    }

    DEVICE void mlp(int l) {
        const auto &v = s.vector[l % 2];
        uint4 w[TILES][HIDDEN / 32];
        uint2 vector[HIDDEN / 32];
        const float y = product<4>(FC, AFTER_PROJ, l, v.ln2w, v.ln2b, [&](uint32_t weight) {
            share_sum(AFTER_PROJ, v.projb, weight);
            load_weights(w, FCPROJ, l);
        });
        const float h = gelu<bf16>(y + to_float(v.fcb[t / 8])), next = __shfl_xor_sync(0xffffffffu, h, 8);
        if (t / 8 % 2 == 0) send(s.hidden.value[rank * 16 + t / 16], bf16_pair(h, next), s.hidden.full, t % 8);
        receive(s.hidden, l);
        for (int i = 0; i < HIDDEN / 32; i++) vector[i] = half_of(s.hidden.value, i);
        add_product(AFTER_FCPROJ, w, vector);
    }

    /* The last sum; its LayerNorm in the first thread block. */
    DEVICE void finish(bf16 *lnf) {
        const uint32_t own_weight = ((const uint32_t *)n.lnfw.data)[pair];
        float2 v[STEPS];
        for (int i = 0; i < STEPS; i++)
            if (i * THREADS + t < C)
                v[i] = { to_float(((const bf16 *)n.lnfw.data)[i * THREADS + t]),
                         to_float(((const bf16 *)n.lnfb.data)[i * THREADS + t]) };
        share_sum(AFTER_FCPROJ, s.vector[(n.L - 1) % 2].fcprojb, own_weight);
        if (lane < NH / 2)
            for (int i = 0; i < 2; i++) sums_before[i][pair] = seen[i];
        mbarrier_wait(shared_address(&s.x[AFTER_FCPROJ].full), n.L % 2);    /* nothing is sent to an ended block */
        mbarrier_wait(shared_address(&s.x_sums[AFTER_FCPROJ].full), n.L % 2);
        if (rank) return;
        const float4 two = ((const float4 *)s.x_sums[AFTER_FCPROJ].value)[lane];
        const float change = warp_sum(two.x + two.z) * (1.0f / C), rstd = rstd_of(warp_sum(two.y + two.w), change);
        for (int i = 0; i < STEPS; i++) {
            const int c = i * THREADS + t;
            const float y = to_float(((const bf16 *)s.x[AFTER_FCPROJ].value)[min(c, C - 1)]);
            if (c < C) lnf[c] = from_float<bf16>((y - change * v[i].x) * rstd + v[i].y);
        }
    }

    template <class T> DEVICE void make_barrier(T &from) {
        mbarrier_init(shared_address(&from.full), 1);
        expect(from);
    }
    DEVICE void make_barriers() {
        for (int i = 0; i < PIECES; i++) mbarrier_init(shared_address(&s.full[i]), 1);
        for (int i = 0; i < MATRICES; i++) mbarrier_init(shared_address(&s.empty[i]), WARPS);
        for (int i = 0; i < 2; i++) {
            make_barrier(s.x[i]);
            make_barrier(s.x_sums[i]);
        }
        make_barrier(s.qkv);
        make_barrier(s.attention);
        make_barrier(s.hidden);
        fence_mbarrier_init();
    }
    DEVICE void compute(bf16 *lnf) {
        pair = (rank * COLUMNS + warp * NH) / 2 + min(lane % 8, NH / 2 - 1);
        const uint32_t own_weight = ((const uint32_t *)n.ln1w.data)[pair];
        for (int i = 0; i < 2; i++) seen[i] = __ldcg(&sums_before[i][pair]);
        griddepcontrol_wait();              /* for the kernel that chooses the token */
        const int64_t token = max(*(const int *)n.token.data, 0);
        assert(token < n.wte.dim[0] && "token: outside of the vocabulary");
        assert(position >= 0 && position < n.cache.dim[1] && "token: a position outside of the cache");
        const uint32_t e = ((const uint32_t *)n.wte.data)[token * (C / 2) + pair];
        const uint32_t p = ((const uint32_t *)n.wpe.data)[position * (C / 2) + pair];
        x = { low_of(e) + low_of(p), high_of(e) + high_of(p) };
        cluster_wait();                     /* the barriers of all blocks are there */
        send_x(AFTER_FCPROJ, own_weight);
        for (int l = 0; l < n.L; l++) {
            if (l == max(n.L - 3, 0)) launch_next();    /* the head: it reads its first weights */
            qkv(l);
            attention(l);
            proj(l);
            mlp(l);
        }
        if (head == 0) finish(lnf);
    }
    DEVICE void forward(bf16 *lnf) {
        position = *(const int *)n.position.data + n.ahead;
        if (t == 0) make_barriers();
        __syncthreads();
        cluster_arrive_relaxed();
        if (warp < WARPS) {
            setmaxnreg_inc<232>();
            compute(lnf);
        } else {
            setmaxnreg_dec<40>();
            if (t == THREADS)
                for (int l = 0; l < n.L; l++) copy_block(l);
            __syncwarp();
            cluster_wait();
        }
    }
};

template <int NH> static __global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(ALL_THREADS, 1)
token_kernel(const __grid_constant__ TokenNetwork n, const __grid_constant__ Maps maps, bf16 *lnf) {
    static_assert(NH < 16 && NH % 2 == 0 && NH * HS <= C_MAX && sizeof(Shared<NH>) <= 227 << 10);
    extern __shared__ __align__(1024) char memory[];
    Token<NH>(n, maps, *(Shared<NH> *)memory).forward(lnf);
}

/* ---- host */

/* The thread blocks wait for each other: all clusters must run at the same time. */
template <int NH> static bool fits() {
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = { RANKS, 1, 1 };
    const cudaLaunchConfig_t config = { NH * RANKS, ALL_THREADS, sizeof(Shared<NH>), cuda_stream, &cluster, 1 };
    int clusters = 0;
    allow_smem(token_kernel<NH>, sizeof(Shared<NH>));
    if (cudaOccupancyMaxActiveClusters(&clusters, token_kernel<NH>, &config) != cudaSuccess) cudaGetLastError();
    return clusters >= NH;
}

/* Tiles of `rows` rows of `panels` times 64 columns of x in all blocks of the network, block_bytes apart. */
static CUtensorMap map_of(const char *name, Tensor x, int L, int64_t block_bytes, int rows, int panels) {
    return tensor_map_of(name, x.data, { 64, tensor_rows(x), tensor_columns(x) / 64, L },
                         { x.pitch * (int64_t)sizeof(bf16), 64 * sizeof(bf16), L > 1 ? block_bytes : 16 },
                         { 64, rows, panels, 1 });
}

template <int NH> static int launch(Tensor lnf, const TokenNetwork &n) {
    static const bool is_possible = fits<NH>();
    typedef Shared<NH> S;
    if (!is_possible || n.wpe.dim[0] > T_MAX) return 0;       /* the context of the model */
    Maps maps;
    maps.of[QKV]    = map_of("qkvw", n.qkvw, n.L, n.block_bytes, 8, S::C / 64);
    maps.of[CACHE]  = map_of("cache", n.cache, n.L, n.cache_bytes, KEYS, 1);
    maps.of[PROJ]   = map_of("projw", n.projw, n.L, n.block_bytes, S::COLUMNS, 1);
    maps.of[FC]     = map_of("fcw", n.fcw, n.L, n.block_bytes, 8, S::C / 64);
    maps.of[FCPROJ] = map_of("fcprojw", n.fcprojw, n.L, n.block_bytes, S::COLUMNS, 1);
    /* Weights are read before griddepcontrol_wait, and what the kernel of the token before has written: it had ended
       when the choice of the token, right in front, let this one begin. */
    if (cuda_early_reads && n.ahead) LAUNCH_EARLY(token_kernel<NH>, NH * RANKS, ALL_THREADS, sizeof(S), n, maps, lnf);
    else                             LAUNCH(token_kernel<NH>, NH * RANKS, ALL_THREADS, sizeof(S), n, maps, lnf);
    return 1;
}

int token_forward(Tensor lnf, const TokenNetwork *n) {
    if (cuda_arch() != 90 || lnf.dtype != BF16 || tensor_columns(lnf) != (int64_t)n->NH * HS) return 0;
    return n->NH == 4 ? launch<4>(lnf, *n) : n->NH == 6 ? launch<6>(lnf, *n) : n->NH == 8 ? launch<8>(lnf, *n) :
           n->NH == 12 ? launch<12>(lnf, *n) : 0;
}
