/* kernels/cuda/attention_flash_sm90_forward.cu - out = softmax(scale q k^T, causal) v on Hopper: tiles and online
   softmax as in FlashAttention-2 (Dao 2023, arXiv 2307.08691), a warpgroup of producers and the overlap of one block's
   softmax with its neighbours' products as in FlashAttention-3 (Shah et al. 2024, arXiv 2407.08608).

   A consumer warpgroup owns 64 queries and walks over blocks of 128 keys, from the diagonal to the first. Each step
   starts the scores of a block and, behind them, the product of the block before with its values; the softmax runs
   under the latter. The first scores of a task queue behind the last product of the task before it, and are made while
   its out is stored. In time, for one warpgroup, S = q k^T, P = exp(S), O += P V:

       tensor cores   O+=Pn Vn S0  .           S1 O+=P0 V0 .      S2 O+=P1 V1 .      ..
       other units             store  mask,P0     max,P1             max,P2          ..
       waits for      V n      K 0             K 1 V 0            K 2 V 1

   The others are out of step with it and fill the gaps. (So it is written; ptxas 13.0 moves the wait for O += P V up
   into the exponentials. Kept from that it is no faster: the others fill this gap, too.) */
#include "attention_flash_sm90.cuh"

static constexpr float SLACK = 8.0f;    /* the row maximum in use may be short of the true one by 2^8: P <= 256 */

struct Maps { CUtensorMap q, k, v, out; };

/* Every launch leaves it at zero. (Launches come one after another, on the one stream that this library works on; in
   replayed graphs, too.) */
static __device__ unsigned ticket;

/* GROUPS consumers take neighbouring rows of one head, the other ones in the next task, since those further down have
   more to do, and read one ring of K and V, deep enough for them to be out of step. */
template<int PANELS_, int GROUPS_, int STAGES_> struct Forward {
    static constexpr int PANELS = PANELS_, GROUPS = GROUPS_, ROWS = GROUP_ROWS * GROUPS;
    static constexpr int STAGES = STAGES_;      /* of K and of V */
    static constexpr bool Q_IN_REGISTERS = PANELS == 2;     /* room for it is only where the groups are two */
    static constexpr int Q_STAGES = Q_IN_REGISTERS ? 1 : 2; /* who is done need not wait for the others' Q to be read */
    static constexpr int THREADS = WARPGROUP * (GROUPS + 1);
    static constexpr int REGISTERS = GROUPS == 3 ? 160 : 232, PRODUCER_REGISTERS = GROUPS == 3 ? 32 : 40;
    static constexpr int Q_PANEL = GROUP_ROWS * ROW, Q_BYTES = PANELS * Q_PANEL;
    static constexpr int KV_PANEL = KEYS * ROW, KV_BYTES = PANELS * KV_PANEL;
    /* Shared memory: Q tiles of each group, the ring, a place for out, barriers, tasks */
    static constexpr int Q = 0, K = Q + Q_STAGES * GROUPS * Q_BYTES, V = K + STAGES * KV_BYTES;
    static constexpr int OUT = V + STAGES * KV_BYTES;
    static constexpr int Q_FULL = OUT + GROUPS * Q_BYTES, Q_EMPTY = Q_FULL + 8 * Q_STAGES * GROUPS;
    static constexpr int K_FULL = Q_EMPTY + 8 * Q_STAGES * GROUPS, K_EMPTY = K_FULL + 8 * STAGES;
    static constexpr int V_FULL = K_EMPTY + 8 * STAGES;
    static constexpr int V_EMPTY = V_FULL + 8 * STAGES, TASK_FULL = V_EMPTY + 8 * STAGES;
    static constexpr int TASK_EMPTY = TASK_FULL + 8 * 2, TASKS = (TASK_EMPTY + 8 * 2 + 15) / 16 * 16;
    static constexpr int SHARED_BYTES = TASKS + Slots<2>::BYTES;
    static_assert(SHARED_BYTES <= 232448, "a block of Hopper has 227 KiB");
    static_assert(STAGES > (ROWS - GROUP_ROWS + KEYS - 1) / KEYS,
                  "a group keeps a task's last V while it passes over blocks of the next that only others need");
    /* Tiles end with the last row, and the first one is short, where it costs least: tiles of 192 rows that began with
       the first row would walk, at T = 1024, over 32 blocks of keys and not 27. */
    __host__ __device__ static int first_row(int T) {
        const int rows = (T + GROUP_ROWS - 1) / GROUP_ROWS * GROUP_ROWS;
        return rows - (rows + ROWS - 1) / ROWS * ROWS;
    }
};

typedef Forward<1, 3, 4> Narrow;        /* head sizes to 64: 200 KiB */
typedef Forward<2, 2, 2> Wide;          /* head sizes to 128: 192 KiB */

template<class F> __global__ __launch_bounds__(F::THREADS, 1)
void flash_forward_sm90(const Problem p, const __grid_constant__ Maps maps, float *lse) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t base = shared_address(shared);
    const int group = uniform(threadIdx.x / WARPGROUP) - 1, warp = uniform(threadIdx.x / 32) % 4;
    const int lane = threadIdx.x % 32;

    const Slots<2> tasks(shared + F::TASKS, base + F::TASK_FULL, base + F::TASK_EMPTY);
    auto barrier = [&](int which, int n) { return base + which + 8 * stage_of<F::STAGES>(n); };
    auto row_of = [&](const Task &t, int group, int n) { return t.row + (group + n) % F::GROUPS * GROUP_ROWS; };

    if (threadIdx.x == 0) {
        for (int i = 0; i < F::Q_STAGES * F::GROUPS; i++) {
            mbarrier_init(base + F::Q_FULL + 8 * i, 1);
            mbarrier_init(base + F::Q_EMPTY + 8 * i, 4);
        }
        for (int i = 0; i < F::STAGES; i++) {
            mbarrier_init(barrier(F::K_FULL, i), 1);
            mbarrier_init(barrier(F::V_FULL, i), 1);
            mbarrier_init(barrier(F::K_EMPTY, i), 4 * F::GROUPS);
            mbarrier_init(barrier(F::V_EMPTY, i), 4 * F::GROUPS);
        }
        tasks.init(4 * F::GROUPS);
        fence_mbarrier_init();
    }
    __syncthreads();

    if (group < 0) {
        setmaxnreg_dec<F::PRODUCER_REGISTERS>();
        if (warp != 0 || lane != 0) return;
        prefetch_tensormap(&maps.q);
        prefetch_tensormap(&maps.k);
        prefetch_tensormap(&maps.v);
        /* In the order of use, across tasks too: K of a block, V of the one before it, then, for a new task, Q. */
        Task v_task = {};
        int v_block = 0, loaded = 0;
        auto load_v = [&](int n) {
            mbarrier_wait(barrier(F::V_EMPTY, n), parity_of<F::STAGES>(n) ^ 1);
            mbarrier_arrive_expect_tx(barrier(F::V_FULL, n), F::KV_BYTES);
            load_tile<F::PANELS>(base + F::V + stage_of<F::STAGES>(n) * F::KV_BYTES, F::KV_PANEL, &maps.v,
                                 barrier(F::V_FULL, n), v_task.b, v_task.h, v_block * KEYS);
        };
        for (int n = 0; ; n++) {
            Task t = draw_task(p, F::ROWS, F::first_row(p.T), true);
            t.before = loaded;
            tasks.publish(n, t);
            if (t.b < 0) break;
            const int last = (min(t.row + F::ROWS, p.T) - 1) / KEYS;
            for (int block = last; block >= 0; block--, loaded++) {
                mbarrier_wait(barrier(F::K_EMPTY, loaded), parity_of<F::STAGES>(loaded) ^ 1);
                mbarrier_arrive_expect_tx(barrier(F::K_FULL, loaded), F::KV_BYTES);
                load_tile<F::PANELS>(base + F::K + stage_of<F::STAGES>(loaded) * F::KV_BYTES, F::KV_PANEL, &maps.k,
                                     barrier(F::K_FULL, loaded), t.b, t.h, block * KEYS);
                if (loaded) load_v(loaded - 1);
                v_task = t;
                v_block = block;
                if (block == last)
                    for (int i = 0; i < F::GROUPS; i++) {
                        const int place = stage_of<F::Q_STAGES>(n) * F::GROUPS + i;
                        const uint32_t full = base + F::Q_FULL + 8 * place;
                        mbarrier_wait(base + F::Q_EMPTY + 8 * place, parity_of<F::Q_STAGES>(n) ^ 1);
                        mbarrier_arrive_expect_tx(full, F::Q_BYTES);
                        load_tile<F::PANELS>(base + F::Q + place * F::Q_BYTES, F::Q_PANEL, &maps.q, full,
                                             t.b, t.h, row_of(t, i, n));
                    }
            }
        }
        if (loaded) load_v(loaded - 1);
        return;
    }

    setmaxnreg_inc<F::REGISTERS>();
    const int g = lane / 4, c = lane % 4, own = 16 * warp + g;      /* this thread's rows: own, own + 8 */
    const float scale2 = p.scale * LOG2E;
    uint32_t q = 0;             /* this group's tile of Q */
    uint32_t q_rows[F::Q_IN_REGISTERS ? 16 * F::PANELS : 1];
    float s[KEYS / 2], o[F::PANELS * 32];
    Pair reference(0, 0);                       /* of the thread's two rows, for the maximum, in units of log2 */
    float sum[2] = {}, shrink[2];               /* of P; by what o shrinks where the reference moves */
    uint32_t p_rows[KEYS / 4];                  /* P in bf16: the A of its product with V */

    auto wait_for = [&](int which, int n) { mbarrier_wait(barrier(which, n), parity_of<F::STAGES>(n)); };
    auto release  = [&](int which, int n) { if (lane == 0) mbarrier_arrive(barrier(which, n)); };
    auto v_tile = [&](int n) { return operand(base + F::V + stage_of<F::STAGES>(n) * F::KV_BYTES, F::KV_PANEL); };
    auto start_s = [&](auto &s, int n) {
        const Operand k = operand(base + F::K + stage_of<F::STAGES>(n) * F::KV_BYTES);
        if constexpr (F::Q_IN_REGISTERS) start_scores<F::PANELS>(s, q_rows, k, F::KV_PANEL);
        else                             start_scores<F::PANELS>(s, operand(q), F::Q_PANEL, k, F::KV_PANEL);
    };
    /* Whether the reference had to move: seldom after the first block, and then o must shrink too. */
    auto follow_maximum = [&](auto &s) {
        float top[2] = { s[0], s[2] };
        #pragma unroll
        for (int j = 0; j < (int)sizeof s / 16; j++)
            #pragma unroll
            for (int i = 0; i < 2; i++) top[i] = fmaxf(top[i], fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
        bool grown = false;
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            top[i] = quad_max(top[i]);
            grown |= top[i] * scale2 > reference[i] + SLACK;
        }
        grown = __any_sync(0xffffffffu, grown);
        if (grown) {
            #pragma unroll
            for (int i = 0; i < 2; i++) {
                top[i] = fmaxf(top[i] * scale2 + tie_breaker(top[i]), reference[i]);
                shrink[i] = ex2(reference[i] - top[i]);
                sum[i] *= shrink[i];
            }
            reference = Pair(top[0], top[1]);
        }
        return grown;
    };
    /* sum adds P before it is rounded: the backward pass makes P anew from the log-sum-exp, its rows adding up to 1. */
    auto exponentials = [&](auto &s) {
        #pragma unroll
        for (int j = 0; j < (int)sizeof s / 16; j++)
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                s[4 * j + e] = ex2(s[4 * j + e] * scale2 - reference[e / 2]);
                sum[e / 2] += s[4 * j + e];
            }
    };
    /* Of half a block the rest is 0: where it is the only one, its product takes all 128 keys all the same. */
    auto round_p = [&](auto &s) {
        #pragma unroll
        for (int x = 0; x < KEYS / 4; x++) p_rows[x] = x < (int)sizeof s / 8 ? cvt_bf16x2(s[2 * x], s[2 * x + 1]) : 0;
    };
    int done_b = 0, done_h = 0, done_row = -1, done_at = 0;     /* the task before and its last block; row -1: none */
    /* The results of the task before, behind whose last product only S has been started. (It waits also where there was
       none: a wait under a condition serialises the products, C7514.) */
    auto finish = [&]() {
        wgmma_wait_group<1>();
        ready(o);
        if (done_row < 0) return;
        release(F::V_EMPTY, done_at);
        float normalise[2];
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            const float total = quad_sum(sum[i]);
            const int query = done_row + own + 8 * i;
            normalise[i] = 1.0f / total;
            if (c == 0 && query < p.T)
                lse[((int64_t)done_b * p.NH + done_h) * p.T + query] = LN2 * (reference[i] + log2f(total));
        }
        store_rows<F::PANELS>(base + F::OUT + (4 * group + warp) * F::PANELS * RESULT_PANEL, &maps.out, done_b, done_h,
                              done_row + RESULT_ROWS * warp, 0, o, normalise[0], normalise[1]);
        done_row = -1;
    };
    /* The first block of a task: the last 64 of its columns are the square on the diagonal. Where there is none its
       scores are made all the same, of whatever lies there, and dropped (C7514 again). */
    auto begin = [&](auto &s, int at, bool any) {
        constexpr int columns = sizeof s / 2;
        if (any) wait_for(F::K_FULL, at);
        start_s(s, at);         /* of the first columns: as many as s holds */
        finish();
        wgmma_wait_group<0>();
        ready(s);
        if (!any) return;
        release(F::K_EMPTY, at);
        #pragma unroll
        for (int j = columns / 8 - 8; j < columns / 8; j++)
            #pragma unroll
            for (int e = 0; e < 4; e++)
                if (8 * j + 2 * c + e % 2 - (columns - 64) > own + e / 2 * 8) s[4 * j + e] = -INFINITY;
        reference = Pair(-INFINITY, -INFINITY);
        sum[0] = sum[1] = 0;
        #pragma unroll
        for (int x = 0; x < F::PANELS * 32; x++) o[x] = 0;
        follow_maximum(s);
        exponentials(s);
        round_p(s);
    };
    /* Any later block, and the product of the one before, of whose keys the first `seen` are seen, with its values. */
    auto step = [&](int at, int seen) {
        wait_for(F::K_FULL, at);
        start_s(s, at);
        wait_for(F::V_FULL, at - 1);
        start_sum(o, p_rows, v_tile(at - 1), seen);
        wgmma_wait_group<1>();
        ready(s);
        release(F::K_EMPTY, at);
        const bool grown = follow_maximum(s);
        exponentials(s);
        wgmma_wait_group<0>();
        ready(o);
        release(F::V_EMPTY, at - 1);
        if (grown)
            #pragma unroll
            for (int x = 0; x < F::PANELS * 32; x++) o[x] *= shrink[x / 2 % 2];
        round_p(s);
    };

    for (int n = 0; ; n++) {
        const Task t = tasks.take_by_warp(n);
        const int row = uniform(row_of(t, group, n)), blocks = t.b >= 0 && row >= 0 && row < p.T ? row / KEYS + 1 : 0;
        const int brought = (min(t.row + F::ROWS, p.T) - 1) / KEYS + 1, first = t.before + brought - blocks;
        const int place = uniform_stage(n) % F::Q_STAGES * F::GROUPS + group;
        const uint32_t q_empty = base + F::Q_EMPTY + 8 * place;
        q = base + F::Q + place * F::Q_BYTES;
        if (t.b >= 0) {
            for (int at = t.before; at < first; at++) {     /* those that only groups further down need */
                wait_for(F::K_FULL, at);
                __syncwarp();       /* all have seen it, before it may be filled again */
                release(F::K_EMPTY, at);
                wait_for(F::V_FULL, at);
                __syncwarp();
                release(F::V_EMPTY, at);
            }
            mbarrier_wait(base + F::Q_FULL + 8 * place, parity_of<F::Q_STAGES>(n));
            if constexpr (F::Q_IN_REGISTERS) {
                const int q_row = 16 * warp + lane % 16;
                #pragma unroll
                for (int x = 0; x < 4 * F::PANELS; x++)
                    ldmatrix(q_rows + 4 * x,
                             q + x / 4 * F::Q_PANEL + q_row * ROW + (((x % 4 * 2 + lane / 16) ^ q_row % 8) << 4));
            }
            if (F::Q_IN_REGISTERS || blocks == 0) {
                __syncwarp();
                if (lane == 0) mbarrier_arrive(q_empty);
            }
        }
        int at = first + 1;
        if (row % KEYS == 0) {      /* of this block only the first half is seen */
            float half[KEYS / 4];
            begin(half, first, blocks > 0);
            if (blocks > 1) step(at++, KEYS / 2);
        } else
            begin(s, first, blocks > 0);
        if (t.b < 0) break;
        if (blocks == 0) continue;
        #pragma unroll 1
        for (; at < first + blocks; at++) step(at, KEYS);
        if (!F::Q_IN_REGISTERS && lane == 0) mbarrier_arrive(q_empty);
        done_at = at - 1;
        wait_for(F::V_FULL, done_at);
        start_sum(o, p_rows, v_tile(done_at), KEYS);
        done_b = t.b;
        done_h = t.h;
        done_row = row;
    }
    wait_for_stores();
}

template<class F> static void launch(Problem p, const Maps &maps, float *lse) {
    CUDA(cudaFuncSetAttribute(flash_forward_sm90<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, F::SHARED_BYTES));
    const int64_t tasks = (int64_t)p.heads * tiles_of(p, F::ROWS, F::first_row(p.T));
    const int blocks = blocks_for(tasks);
    p.draws = (unsigned)(tasks + blocks);
    LAUNCH(flash_forward_sm90<F>, blocks, F::THREADS, F::SHARED_BYTES, p, maps, lse);
}

void attention_flash_sm90_forward(const AttentionSpec *s, Tensor out, float *lse, Tensor q, Tensor k, Tensor v) {
    const int64_t head_bytes = (int64_t)s->Tq * s->HS * 2 * (int64_t)sizeof(bf16);
    Problem p = problem_of(s, (16 << 20) / head_bytes);     /* K and V in a third of the L2 */
    CUDA(cudaGetSymbolAddress((void **)&p.ticket, ticket));
    const Maps maps = { tensor_map("q", s, q, GROUP_ROWS), tensor_map("k", s, k, KEYS), tensor_map("v", s, v, KEYS),
                        tensor_map("out", s, out, RESULT_ROWS) };
    (s->HS > 64 ? launch<Wide> : launch<Narrow>)(p, maps, lse);
}
