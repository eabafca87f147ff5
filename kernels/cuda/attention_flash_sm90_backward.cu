/* kernels/cuda/attention_flash_sm90_backward.cu - The gradients of attention on Hopper, five products in one kernel, as
   in FlashAttention-2 and -3 (arXiv 2307.08691, 2407.08608):

       S = q k^T     P = exp(scale S - lse)     dP = dout v^T     dS = P (dP - delta)     delta = rowsum(dout out)
       dv = P^T dout     dk = scale dS^T q     dq = scale dS k

   A block owns 128 keys, 64 a consumer warpgroup, and walks over tiles of the queries that see them. All is transposed,
   a row per key, so that P^T and dS^T are the A of dv and dk in the registers they are made in; dS goes through shared
   memory for dq, of which each group makes a half. A product waits in its warp until the tensor cores have taken the
   ones before it, so only the other group's arithmetic can run beside it: the groups take turns, half a step apart. In
   time, X = P, dS and the writing of dS:

       group 0   S dP |   X    | dV dK S dQ | out dP |   X    | dV dK S dQ | out dP |
       group 1   S dP .  .  X        .  .   | dV dK S dQ | out dP |   X    | dV dK S dQ |
                            the turn passes ^

   dq of a tile is a sum over blocks. Who comes first stores his part in f32, the next ones add theirs in the L2; the
   one on the diagonal, whose turn is last, adds what is there to its own part in registers and stores bf16: nothing has
   to be zeroed before or converted after. With `deterministic` each waits for the one before it and the bits are the
   same every time; else they come as they come. Blocks begin with the tile after the diagonal and take the diagonal
   last, when the others have long been there. Tasks are drawn in the order of the keys, so whoever waits waits for
   somebody who runs. */
#include "attention_flash_sm90.cuh"

struct Maps { CUtensorMap q, k, v, dout, dq, dk, dv; };

static __device__ unsigned ticket;      /* as in the forward pass: every launch leaves it at zero */

/* tiles: of a head's queries. Tpad: T rounded up to 128. added: of both halves of each tile, how many blocks of keys
   are in dq. */
struct Workspace { float *lse2, *delta, *dq; int *added; int tiles, Tpad; };

template<int PANELS_> struct Backward {
    static constexpr int PANELS = PANELS_, COLUMNS = 64 * PANELS;
    static constexpr int STAGES = 2;                        /* of Q and dout; all that is in a ring has two places */
    static constexpr int QT = PANELS == 1 ? 128 : 64;       /* queries of a tile: what the registers hold of S and dP */
    static constexpr int GROUPS = 2, THREADS = WARPGROUP * (GROUPS + 1), REGISTERS = 232, PRODUCER_REGISTERS = 40;
    static constexpr int KV_PANEL = KEYS * ROW, KV_BYTES = PANELS * KV_PANEL;
    static constexpr int Q_PANEL = QT * ROW, Q_BYTES = PANELS * Q_PANEL;
    static constexpr int DS_PANEL = KEYS * ROW, DS_BYTES = QT / 64 * DS_PANEL;  /* a row per key */
    static constexpr int DQ_BYTES = QT * COLUMNS * 4 / GROUPS;                  /* what a group makes of dq, f32 */
    static constexpr int ROWS_BYTES = QT * 4;                                   /* lse or delta */
    /* Shared memory. K has two places, so that one group can begin a task while the other ends the last one. */
    static constexpr int K = 0, V = K + 2 * KV_BYTES, Q = V + KV_BYTES, DOUT = Q + STAGES * Q_BYTES;
    static constexpr int DS = DOUT + STAGES * Q_BYTES, DQ = DS + 2 * DS_BYTES;
    static constexpr int LSE = DQ + GROUPS * DQ_BYTES, DELTA = LSE + STAGES * ROWS_BYTES;
    static constexpr int K_FULL = DELTA + STAGES * ROWS_BYTES, K_EMPTY = K_FULL + 16, V_FULL = K_EMPTY + 16;
    static constexpr int V_EMPTY = V_FULL + 8, Q_FULL = V_EMPTY + 8, DOUT_FULL = Q_FULL + 8 * STAGES;
    static constexpr int Q_EMPTY = DOUT_FULL + 8 * STAGES;      /* of Q and of dout */
    static constexpr int DS_FULL = Q_EMPTY + 8 * STAGES, DQ_FULL = DS_FULL + 16, DQ_EMPTY = DQ_FULL + 8 * GROUPS;
    static constexpr int ADDED = DQ_EMPTY + 8 * GROUPS, TASK_FULL = ADDED + 16 * GROUPS, TASK_EMPTY = TASK_FULL + 8;
    static constexpr int TASKS = (TASK_EMPTY + 8 + 15) / 16 * 16, SHARED_BYTES = TASKS + Slots<1>::BYTES;
    static_assert(SHARED_BYTES <= 232448, "a block of Hopper has 227 KiB");
    enum { TURN = 1 };          /* named barriers of the consumers, one a group: it may start its products */
};

/* The tiles of queries that see the block of keys from `row` on, in the order in which they are taken: the blocks of a
   head are each at another tile, so that they do not add to the same part of dq at once; the diagonal's come last and
   backwards, so that the last of all is `first`. */
template<class F> struct Queries {
    int first, count, diagonal;     /* the last so many are on the diagonal */
    __device__ __forceinline__ Queries(int T, int row)
        : first(row / F::QT), count((T + F::QT - 1) / F::QT - first), diagonal(F::QT == KEYS ? 1 : min(2, count)) {}
    __device__ __forceinline__ bool on_diagonal(int i) const { return i >= count - diagonal; }
    __device__ __forceinline__ int tile(int i) const {
        return first + (on_diagonal(i) ? count - 1 - i : i + diagonal);
    }
};

/* Whether a part of dq is the first, to be stored and not added to others. While one stores, the next one waits. */
enum { STORING = -1 };
DEVICE bool comes_first(int *added) {
    int was;
    while ((was = cas_acquire(added, 0, STORING)) == STORING) {}
    return was == 0;
}

DEVICE void wait_until(const int *flag, int at_least) { while (load_acquire(flag) < at_least) {} }

/* delta, and lse in units of log2; rows from T on get P = 0; `added` begins at zero. A block per 128 rows of a head. */
template<int PANELS> __global__ __launch_bounds__(256)
void flash_backward_rows(const Problem p, const Workspace w, const float *lse, Tensor out, Tensor dout) {
    constexpr int LANES = 8 * PANELS, STEP = 256 / LANES;       /* 16 bytes a lane */
    const int tiles = w.Tpad / 128, head = blockIdx.x / tiles, lane = threadIdx.x % LANES;
    const int first = blockIdx.x % tiles * 128 + threadIdx.x / LANES, counts = 2 * w.tiles / tiles;
    if ((int)threadIdx.x < counts) w.added[blockIdx.x * counts + threadIdx.x] = 0;
    auto row_of = [&](const Tensor &t) {
        return (const bf16 *)t.data + ((int64_t)(head / p.NH) * p.T + first) * t.pitch + head % p.NH * p.HS + 8 * lane;
    };
    const bf16 *x = row_of(out), *y = row_of(dout);
    #pragma unroll
    for (int i = 0; i < 128; i += STEP) {
        const int row = first + i;
        float sum = 0;
        if (row < p.T && 8 * lane < p.HS) {
            float a[8], b[8];
            Pack<bf16>::load_once(x + i * out.pitch).to_float(a);
            Pack<bf16>::load(y + i * dout.pitch).to_float(b);
            #pragma unroll
            for (int n = 0; n < 8; n++) sum += a[n] * b[n];
        }
        #pragma unroll
        for (int distance = LANES / 2; distance; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        if (lane == 0) {
            const int64_t at = (int64_t)head * w.Tpad + row;
            w.delta[at] = sum;
            w.lse2[at] = row < p.T ? lse[(int64_t)head * p.T + row] * LOG2E : INFINITY;
        }
    }
}

template<class F> __global__ __launch_bounds__(F::THREADS, 1)
void flash_backward_sm90(const Problem p, const Workspace w, const __grid_constant__ Maps maps) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t base = shared_address(shared);
    const Slots<1> tasks(shared + F::TASKS, base + F::TASK_FULL, base + F::TASK_EMPTY);
    const int group = uniform(threadIdx.x / WARPGROUP) - 1, warp = uniform(threadIdx.x / 32) % 4;
    const int lane = threadIdx.x % 32;
    auto barrier = [&](int which, int n) { return base + which + 8 * stage_of<2>(n); };
    auto dq_sums_of = [&](int head, int tile) { return w.dq + ((int64_t)head * w.Tpad + tile * F::QT) * F::COLUMNS; };

    if (threadIdx.x == 0) {
        mbarrier_init(base + F::V_FULL, 1);
        mbarrier_init(base + F::V_EMPTY, 8);
        for (int i = 0; i < 2; i++) {
            mbarrier_init(barrier(F::K_FULL, i), 1);
            mbarrier_init(barrier(F::K_EMPTY, i), 8);
            mbarrier_init(barrier(F::Q_FULL, i), 1);
            mbarrier_init(barrier(F::DOUT_FULL, i), 1);
            mbarrier_init(barrier(F::Q_EMPTY, i), 8);
            mbarrier_init(barrier(F::DS_FULL, i), 8);
            for (int half = 0; half < F::GROUPS; half++) mbarrier_init(barrier(F::ADDED + 16 * half, i), 1);
        }
        for (int half = 0; half < F::GROUPS; half++) {
            mbarrier_init(base + F::DQ_FULL + 8 * half, 4);
            mbarrier_init(base + F::DQ_EMPTY + 8 * half, 1);
        }
        tasks.init(10);     /* 8 warps of consumers, 2 threads that take dq out */
        fence_mbarrier_init();
    }
    __syncthreads();

    if (group < 0) {
        setmaxnreg_dec<F::PRODUCER_REGISTERS>();
        if (lane != 0) return;
        if (warp == 0) {        /* draws the tasks and brings everything */
            prefetch_tensormap(&maps.q);
            prefetch_tensormap(&maps.k);
            prefetch_tensormap(&maps.v);
            prefetch_tensormap(&maps.dout);
            for (int n = 0, loaded = 0; ; n++) {
                const Task t = draw_task(p, KEYS, 0, false);
                tasks.publish(n, t);
                if (t.b < 0) break;
                const Queries<F> queries(p.T, t.row);
                for (int i = 0; i < queries.count; i++, loaded++) {
                    const int row = queries.tile(i) * F::QT, stage = stage_of<2>(loaded);
                    const int64_t rows = ((int64_t)t.b * p.NH + t.h) * w.Tpad + row;
                    const uint32_t q_full = barrier(F::Q_FULL, loaded), dout_full = barrier(F::DOUT_FULL, loaded);
                    if (i == 0) {
                        mbarrier_wait(barrier(F::K_EMPTY, n), parity_of<2>(n) ^ 1);
                        mbarrier_arrive_expect_tx(barrier(F::K_FULL, n), F::KV_BYTES);
                        load_tile<F::PANELS>(base + F::K + stage_of<2>(n) * F::KV_BYTES, F::KV_PANEL, &maps.k,
                                             barrier(F::K_FULL, n), t.b, t.h, t.row);
                    }
                    mbarrier_wait(barrier(F::Q_EMPTY, loaded), parity_of<2>(loaded) ^ 1);
                    mbarrier_arrive_expect_tx(q_full, F::Q_BYTES + F::ROWS_BYTES);
                    load_tile<F::PANELS>(base + F::Q + stage * F::Q_BYTES, F::Q_PANEL, &maps.q, q_full, t.b, t.h, row);
                    bulk_load(base + F::LSE + stage * F::ROWS_BYTES, w.lse2 + rows, F::ROWS_BYTES, q_full);
                    mbarrier_arrive_expect_tx(dout_full, F::Q_BYTES + F::ROWS_BYTES);
                    load_tile<F::PANELS>(base + F::DOUT + stage * F::Q_BYTES, F::Q_PANEL, &maps.dout, dout_full,
                                         t.b, t.h, row);
                    bulk_load(base + F::DELTA + stage * F::ROWS_BYTES, w.delta + rows, F::ROWS_BYTES, dout_full);
                    if (i == 0) {
                        mbarrier_wait(base + F::V_EMPTY, n & 1 ^ 1);
                        mbarrier_arrive_expect_tx(base + F::V_FULL, F::KV_BYTES);
                        load_tile<F::PANELS>(base + F::V, F::KV_PANEL, &maps.v, base + F::V_FULL, t.b, t.h, t.row);
                    }
                }
            }
        }
        /* Two take a half of dq out each, but for the diagonal, and tell when the others' parts of that are there. */
        if (warp % 2) {
            const int half = warp / 2;
            const uint32_t part = base + F::DQ + half * F::DQ_BYTES;
            for (int n = 0, sent = 0; ; n++) {
                const Task t = tasks.take(n);
                if (t.b < 0) break;
                const Queries<F> queries(p.T, t.row);
                const int head = t.b * p.NH + t.h, blocks_before = t.row / KEYS;
                auto added = [&](int i) { return w.added + 2 * ((int64_t)head * w.tiles + queries.tile(i)) + half; };
                int i = 0;
                for (; !queries.on_diagonal(i); i++, sent++) {
                    float *const sums = dq_sums_of(head, queries.tile(i)) + half * (F::DQ_BYTES / 4);
                    mbarrier_wait(base + F::DQ_FULL + 8 * half, sent & 1);
                    bool first = blocks_before == 0;
                    if (p.deterministic) wait_until(added(i), blocks_before);
                    else                 first = comes_first(added(i));
                    fence_proxy_async_global();
                    if (first) bulk_store(sums, part, F::DQ_BYTES);
                    else       bulk_reduce_add(sums, part, F::DQ_BYTES);
                    bulk_commit_group();
                    bulk_wait_group_read<0>();
                    mbarrier_arrive(base + F::DQ_EMPTY + 8 * half);
                    bulk_wait_group<0>();
                    fence_proxy_async_global();
                    add_release(added(i), first && !p.deterministic ? 1 - STORING : 1);
                }
                for (; i < queries.count; i++) wait_until(added(i), blocks_before);
                mbarrier_arrive(barrier(F::ADDED + 16 * half, n));
            }
        }
        return;
    }

    setmaxnreg_inc<F::REGISTERS>();
    const int g = lane / 4, c = lane % 4, own = 64 * group + 16 * warp;     /* its keys; the thread's: g, g + 8 */
    const float scale2 = p.scale * LOG2E;
    /* The groups make the two halves of dq: of 128 queries, or of 128 columns */
    const int half_row = F::PANELS == 1 ? 64 * group : 0, half_column = F::PANELS == 2 ? 64 * group : 0;
    const Operand v = operand(base + F::V + 64 * group * ROW);
    const uint32_t dq_full = base + F::DQ_FULL + 8 * group, dq_empty = base + F::DQ_EMPTY + 8 * group;
    /* The f32 sums of a warp lie as its threads hold them: 16 bytes of each thread, eight times. (Made of `group` and
       `warp` this spills.) */
    const int at = (int)(threadIdx.x / 32 - 4) * 256 + lane;
    auto wait_for = [&](int full, int n) { mbarrier_wait(barrier(full, n), parity_of<2>(n)); };
    auto q_tile    = [&](int stage) { return operand(base + F::Q    + stage * F::Q_BYTES, F::Q_PANEL); };
    auto dout_tile = [&](int stage) { return operand(base + F::DOUT + stage * F::Q_BYTES, F::Q_PANEL); };

    if (group == 1) bar_arrive(F::TURN, 2 * WARPGROUP);     /* the first turn is group 0's */
    int used = 0, sent = 0;     /* tiles of queries before the present one; those of them that are off the diagonal */

    for (int n = 0; ; n++) {
        const Task t = tasks.take_by_warp(n);
        if (t.b < 0) break;
        const Queries<F> queries(p.T, t.row);
        const uint32_t k_tile = base + F::K + uniform_stage(n) * F::KV_BYTES;
        const Operand k = operand(k_tile + 64 * group * ROW), k_half = operand(k_tile + half_column / 64 * F::KV_PANEL);
        float s[F::QT / 2], d[F::QT / 2], dq_sums[32], dk_sums[F::COLUMNS / 2], dv_sums[F::COLUMNS / 2];
        uint32_t p_rows[F::QT / 4], ds_rows[F::QT / 4];     /* P^T, dS^T in bf16 */
        auto start_dq = [&](int stage, int keys) {
            const Operand ds_half = operand(base + F::DS + stage * F::DS_BYTES + half_row / 64 * F::DS_PANEL);
            wgmma_fence();
            #pragma unroll
            for (int x = 0; x < keys / 16; x++)
                wgmma<ACROSS, ACROSS>(dq_sums, advanced(ds_half, x * 16 * ROW), advanced(k_half, x * 16 * ROW), x > 0);
            wgmma_commit_group();
        };

        wait_for(F::K_FULL, n);
        wait_for(F::Q_FULL, used);
        start_scores<F::PANELS>(s, k, F::KV_PANEL, q_tile(uniform_stage(used)), F::Q_PANEL);
        mbarrier_wait(base + F::V_FULL, n & 1);
        wait_for(F::DOUT_FULL, used);
        start_scores<F::PANELS>(d, v, F::KV_PANEL, dout_tile(uniform_stage(used)), F::Q_PANEL);
        wait_for_stores();      /* of the task before: then the place of dq is free */
        /* A first product with d = a b instead would have them count as in use at a task's end, and that spill. */
        #pragma unroll
        for (int x = 0; x < F::COLUMNS / 2; x++) dk_sums[x] = dv_sums[x] = 0;
        #pragma unroll 1
        for (int i = 0; ; i++) {
            const int stage = uniform_stage(used);
            const bool diagonal = queries.on_diagonal(i), last = i == queries.count - 1;
            const float *lse2  = (const float *)(shared + F::LSE   + stage * F::ROWS_BYTES) + 2 * c;
            const float *delta = (const float *)(shared + F::DELTA + stage * F::ROWS_BYTES) + 2 * c;
            float2 early[F::QT / 32];       /* read while S is made */
            #pragma unroll
            for (int j = 0; j < F::QT / 32; j++) early[j] = *(const float2 *)(lse2 + 8 * j);
            wgmma_wait_group<1>();
            ready(s);
            #pragma unroll
            for (int j = 0; j < F::QT / 8; j++) {
                const float2 l = j < F::QT / 32 ? early[j] : *(const float2 *)(lse2 + 8 * j);
                #pragma unroll
                for (int e = 0; e < 4; e++) s[4 * j + e] = ex2(s[4 * j + e] * scale2 - (e % 2 ? l.y : l.x));
            }
            if (diagonal) {
                const int seen = t.row + own + g - queries.tile(i) * F::QT;     /* the first query that sees key g */
                #pragma unroll
                for (int j = 0; j < F::QT / 8; j++)
                    #pragma unroll
                    for (int e = 0; e < 4; e++)
                        if (8 * j + 2 * c + e % 2 < seen + e / 2 * 8) s[4 * j + e] = 0;
            }
            wgmma_wait_group<0>();
            ready(d);
            if (last && lane == 0) mbarrier_arrive(base + F::V_EMPTY);
            #pragma unroll
            for (int j = 0; j < F::QT / 8; j++) {
                const float2 m = *(const float2 *)(delta + 8 * j);
                #pragma unroll
                for (int r = 0; r < 2; r++) {
                    const float p0 = s[4 * j + 2 * r], p1 = s[4 * j + 2 * r + 1];
                    p_rows[2 * j + r] = bf16_pair(p0, p1);
                    ds_rows[2 * j + r] = bf16_pair(p0 * (d[4 * j + 2 * r] - m.x), p1 * (d[4 * j + 2 * r + 1] - m.y));
                }
            }
            const uint32_t ds = base + F::DS + stage * F::DS_BYTES;
            const int row = own + lane % 16;
            #pragma unroll
            for (int x = 0; x < F::QT / 16; x++)
                stmatrix(ds + x / 4 * F::DS_PANEL + row * ROW + (((x % 4 * 2 + lane / 16) ^ row % 8) << 4),
                         ds_rows[4 * x], ds_rows[4 * x + 1], ds_rows[4 * x + 2], ds_rows[4 * x + 3]);
            fence_proxy_async();
            __syncwarp();
            if (lane == 0) mbarrier_arrive(barrier(F::DS_FULL, used));

            bar_sync(F::TURN + group, 2 * WARPGROUP);
            start_sum(dv_sums, p_rows, dout_tile(stage), F::QT);
            start_sum(dk_sums, ds_rows, q_tile(stage), F::QT);
            if (last) break;

            wait_for(F::Q_FULL, used + 1);
            start_scores<F::PANELS>(s, k, F::KV_PANEL, q_tile(stage ^ 1), F::Q_PANEL);
            wait_for(F::DS_FULL, used);
            wgmma_wait_group<1>();
            ready(dv_sums);
            ready(dk_sums);
            if (lane == 0) mbarrier_arrive(barrier(F::Q_EMPTY, used));
            start_dq(stage, KEYS);
            bar_arrive(F::TURN + (group ^ 1), 2 * WARPGROUP);
            wgmma_wait_group<0>();
            ready(s);
            ready(dq_sums);
            mbarrier_wait(dq_empty, sent & 1 ^ 1);
            #pragma unroll
            for (int j = 0; j < 8; j++)
                ((float4 *)(shared + F::DQ))[at + 32 * j] =
                    make_float4(dq_sums[4 * j], dq_sums[4 * j + 1], dq_sums[4 * j + 2], dq_sums[4 * j + 3]);
            used++;
            wait_for(F::DOUT_FULL, used);
            start_scores<F::PANELS>(d, v, F::KV_PANEL, dout_tile(stage ^ 1), F::Q_PANEL);
            if (F::QT == KEYS || !diagonal) {       /* else it stays there for the end */
                fence_proxy_async();
                __syncwarp();
                if (lane == 0) mbarrier_arrive(dq_full);
                sent++;
            }
        }
        bar_arrive(F::TURN + (group ^ 1), 2 * WARPGROUP);

        /* On their way out results pass through the warp's part of the place of dq. */
        const uint32_t staging = base + F::DQ + (at - lane) * 16;
        const int tile = queries.first;
        const bool two = queries.diagonal > 1;      /* tile + 1, taken before it, is on the diagonal, too */
        float dq_before[32];
        mbarrier_wait(dq_empty, sent & 1 ^ 1);
        if constexpr (F::QT < KEYS)
            #pragma unroll
            for (int j = 0; j < 8; j++) *(float4 *)(dq_before + 4 * j) = ((float4 *)(shared + F::DQ))[at + 32 * j];
        wgmma_wait_group<1>();
        ready(dv_sums);
        store_rows<F::PANELS>(staging, &maps.dv, t.b, t.h, t.row + own, 0, dv_sums, 1, 1);  /* while dk is made */

        wait_for(F::DS_FULL, used);
        wgmma_wait_group<0>();
        ready(dk_sums);
        if (lane == 0) mbarrier_arrive(barrier(F::Q_EMPTY, used));
        start_dq(uniform_stage(used), F::QT);       /* the diagonal's first tile: its QT queries see QT keys */
        used++;
        auto others = [&](int tile, int j) {        /* their part of dq */
            return t.row == 0 ? make_float4(0, 0, 0, 0)
                              : __ldcg((const float4 *)dq_sums_of(t.b * p.NH + t.h, tile) + at + 32 * j);
        };
        auto add = [](float (&sums)[32], int j, float4 x) {
            sums[4 * j]     += x.x;
            sums[4 * j + 1] += x.y;
            sums[4 * j + 2] += x.z;
            sums[4 * j + 3] += x.w;
        };
        auto store_dq = [&](const float (&sums)[32], int tile) {
            store_rows<1>(staging, &maps.dq, t.b, t.h, tile * F::QT + half_row + RESULT_ROWS * warp, half_column,
                          sums, p.scale, p.scale);
        };
        float4 theirs[8];
        mbarrier_wait(barrier(F::ADDED + 16 * group, n), parity_of<2>(n));
        #pragma unroll
        for (int j = 0; j < 8; j++) theirs[j] = others(tile, j);
        store_rows<F::PANELS>(staging, &maps.dk, t.b, t.h, t.row + own, 0, dk_sums, p.scale, p.scale);
        if (two)
            #pragma unroll
            for (int j = 0; j < 8; j++) add(dq_before, j, others(tile + 1, j));
        wgmma_wait_group<0>();
        ready(dq_sums);
        if (lane == 0) mbarrier_arrive(barrier(F::K_EMPTY, n));
        #pragma unroll
        for (int j = 0; j < 8; j++) add(dq_sums, j, theirs[j]);
        store_dq(dq_sums, tile);
        if (two) store_dq(dq_before, tile + 1);
    }
    wait_for_stores();
}

/* ---- host ---- */

static int     padded(const AttentionSpec *s)       { return (s->Tq + 127) / 128 * 128; }
static int64_t padded_rows(const AttentionSpec *s)  { return (int64_t)s->B * s->NH * padded(s); }

/* Two a tile of 64 or 128 queries; room for one per 32, a multiple of 16 bytes. */
static size_t added_bytes(const AttentionSpec *s) { return (size_t)padded_rows(s) / 32 * sizeof(int); }

size_t attention_flash_sm90_workspace(const AttentionSpec *s) {
    return added_bytes(s) + (size_t)padded_rows(s) * sizeof(float) * (2 + (s->HS > 64 ? 128 : 64));
}

template<int PANELS> static void launch(Problem p, const Workspace &w, const AttentionSpec *s, const float *lse,
                                        Tensor out, Tensor dout, Tensor q, Tensor k, Tensor v,
                                        Tensor dq, Tensor dk, Tensor dv) {
    using F = Backward<PANELS>;
    CUDA(cudaFuncSetAttribute(flash_backward_sm90<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, F::SHARED_BYTES));
    const Maps maps = { tensor_map("q", s, q, F::QT), tensor_map("k", s, k, KEYS), tensor_map("v", s, v, KEYS),
                        tensor_map("dout", s, dout, F::QT), tensor_map("dq", s, dq, RESULT_ROWS),
                        tensor_map("dk", s, dk, RESULT_ROWS), tensor_map("dv", s, dv, RESULT_ROWS) };
    const int64_t tiles = padded_rows(s) / 128;
    const int blocks = blocks_for(tiles);
    p.draws = (unsigned)(tiles + blocks);
    LAUNCH(flash_backward_rows<PANELS>, (unsigned)tiles, 256, 0, p, w, lse, out, dout);
    LAUNCH(flash_backward_sm90<F>, blocks, F::THREADS, F::SHARED_BYTES, p, w, maps);
}

void attention_flash_sm90_backward(const AttentionSpec *s, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out,
                                   const float *lse, Tensor q, Tensor k, Tensor v, void *work) {
    /* A section's tasks go from the longest to the shortest: with two for each multiprocessor or hardly fewer (1.92:
       256 tasks where there are 132), a long and a short one, they end together. More heads want more of the L2; with
       fewer the blocks of a head wait for each other's dq; in order they do so all the time, and more are better.
       Within 3 % of the best of 2 .. 132 heads at T = 512 .. 16384. */
    const int tiles = padded(s) / KEYS, columns = s->HS > 64 ? 128 : 64;
    const float section = s->deterministic ? 16000 / sqrtf((float)s->Tq * columns) : 1.92f * multiprocessors() / tiles;
    Problem p = problem_of(s, (int64_t)ceilf(section));
    CUDA(cudaGetSymbolAddress((void **)&p.ticket, ticket));
    Workspace w = {};
    w.Tpad = padded(s);
    w.tiles = w.Tpad / (s->HS > 64 ? Backward<2>::QT : Backward<1>::QT);
    w.added = (int *)work;
    w.lse2 = (float *)((char *)work + added_bytes(s));
    w.delta = w.lse2 + padded_rows(s);
    w.dq = w.delta + padded_rows(s);
    (s->HS > 64 ? launch<2> : launch<1>)(p, w, s, lse, out, dout, q, k, v, dq, dk, dv);
}
