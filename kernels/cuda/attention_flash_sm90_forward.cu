/* kernels/cuda/attention_flash_sm90_forward.cu - out = softmax(scale q k^T, causal) v on Hopper: tiles and online softmax as
   in FlashAttention-2 (Dao 2023, arXiv 2307.08691), a warpgroup of producers and the overlap of one block's softmax with
   its neighbours' products as in FlashAttention-3 (Shah et al. 2024, arXiv 2407.08608).

   A consumer warpgroup owns 64 queries and walks over blocks of 128 keys, from the diagonal to the first. Each step starts
   the scores of a block and, behind them, the product of the block before with its values; the softmax runs under the
   latter. In time, for one warpgroup, S = q k^T, P = exp(S), O += P V:

       tensor cores   S0 .       S1 O+=P0 V0 .      S2 O+=P1 V1 .      ..  O+=Pn Vn
       other units       mask,P0     max,P1             max,P2         ..             store
       K arrives      0          1           .      2           .
       V arrives         .    0              .          1

   The others are out of step with it and fill the gaps. (So it is written; ptxas 13.0 moves the wait for O += P V up into
   the exponentials, and kernels/README.md has what that costs.) */
#include "attention_flash_sm90.h"

static constexpr float SLACK = 8.0f;    /* the row maximum in use may be short of the true one by 2^8: P <= 256 */

struct Maps { CUtensorMap q, k, v; };

/* SHARED: the consumers take neighbouring rows of one head and read one ring of K and V. Else each is a worker of its own,
   with its own ring: no waiting for one another, tiles as fine as the causal triangle wants them, but three times the
   traffic with the L2 (7 TB/s at 450 TFLOP/s by count, not far from what it gives). */
template<int PANELS_, int GROUPS_, bool SHARED_> struct Forward {
    static constexpr int PANELS = PANELS_, GROUPS = GROUPS_;
    static constexpr int STAGES = SHARED_ && PANELS == 1 ? 4 : 2;      /* of K and of V; three groups may be out of step */
    static constexpr bool SHARED = SHARED_;
    static constexpr int RINGS = SHARED ? 1 : GROUPS, RING_GROUPS = GROUPS / RINGS, ROWS = GROUP_ROWS * RING_GROUPS;
    static constexpr int THREADS = WARPGROUP * (GROUPS + 1);
    static constexpr int REGISTERS = GROUPS == 3 ? 160 : 232, PRODUCER_REGISTERS = GROUPS == 3 ? 32 : 40;
    static constexpr int Q_PANEL = GROUP_ROWS * ROW, Q_BYTES = PANELS * Q_PANEL;
    static constexpr int KV_PANEL = KEYS * ROW, KV_BYTES = PANELS * KV_PANEL;
    /* Shared memory: a Q tile a group; K and V stages a ring; barriers; tasks; where there is room, a place for out */
    static constexpr int Q = 0, RING = Q + GROUPS * Q_BYTES;
    static constexpr int K = 0, V = K + STAGES * KV_BYTES, RING_BYTES = V + STAGES * KV_BYTES;
    static constexpr int Q_FULL = RING + RINGS * RING_BYTES, Q_EMPTY = Q_FULL + 8 * GROUPS, BARRIERS = Q_EMPTY + 8 * GROUPS;
    static constexpr int K_FULL = 0, V_FULL = K_FULL + 8 * STAGES, K_EMPTY = V_FULL + 8 * STAGES;
    static constexpr int V_EMPTY = K_EMPTY + 8 * STAGES, TASK_FULL = V_EMPTY + 8 * STAGES;
    static constexpr int TASK_EMPTY = TASK_FULL + 8 * 2, BARRIER_BYTES = TASK_EMPTY + 8 * 2;
    static constexpr int TASKS = BARRIERS + RINGS * BARRIER_BYTES;
    static constexpr int OUT = (TASKS + RINGS * Slots<2>::BYTES + 127) / 128 * 128;
    static constexpr int SHARED_BYTES = SHARED ? OUT + GROUPS * Q_BYTES : OUT;
    static_assert(SHARED_BYTES <= 232448, "a block of Hopper has 227 KiB");
};

/* Which variant serves which head size and length, from the measurements in kernels/README.md. */
typedef Forward<1, 3, false> Narrow;        /* head sizes to 64, T up to NARROW_LENGTH: 216 KiB */
typedef Forward<1, 3, true>  NarrowLong;    /* longer ones: 176 KiB */
typedef Forward<2, 2, true>  Wide;          /* head sizes to 128: 192 KiB */
enum { NARROW_LENGTH = 4096 };

template<class F> __global__ __launch_bounds__(F::THREADS, 1)
void flash_forward_sm90(const Problem p, const __grid_constant__ Maps maps, View out, float *lse) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t base = shared_address(shared);
    const int group = uniform(threadIdx.x / WARPGROUP) - 1, warp = uniform(threadIdx.x / 32) % 4, lane = threadIdx.x % 32;

    /* group -1 produces: its warp r for ring r */
    const int ring = F::RINGS == 1 ? 0 : group < 0 ? min(warp, F::RINGS - 1) : group;
    const uint32_t tiles = base + F::RING + ring * F::RING_BYTES, barriers = base + F::BARRIERS + ring * F::BARRIER_BYTES;
    const Slots<2> tasks(shared + F::TASKS + ring * Slots<2>::BYTES, barriers + F::TASK_FULL, barriers + F::TASK_EMPTY);
    auto barrier = [&](int which, int n) { return barriers + which + 8 * stage_of<F::STAGES>(n); };

    if (threadIdx.x % WARPGROUP == 0) {
        if (group >= 0) {
            mbarrier_init(base + F::Q_FULL + 8 * group, 1);
            mbarrier_init(base + F::Q_EMPTY + 8 * group, 4);
        }
        if (F::SHARED ? group < 0 : group >= 0) {
            for (int i = 0; i < F::STAGES; i++) {
                mbarrier_init(barrier(F::K_FULL, i), 1);
                mbarrier_init(barrier(F::V_FULL, i), 1);
                mbarrier_init(barrier(F::K_EMPTY, i), 4 * F::RING_GROUPS);
                mbarrier_init(barrier(F::V_EMPTY, i), 4 * F::RING_GROUPS);
            }
            tasks.init(4 * F::RING_GROUPS);
        }
        fence_mbarrier_init();
    }
    __syncthreads();

    if (group < 0) {
        setmaxnreg_dec<F::PRODUCER_REGISTERS>();
        if (warp >= F::RINGS || lane != 0) return;
        prefetch_tensormap(&maps.q);
        prefetch_tensormap(&maps.k);
        prefetch_tensormap(&maps.v);
        /* In the order of use, across tasks too: K of a block, V of the one before it, then, for a new task, Q: its place
           is free when the scores of the task before are done, and that is also what the next K waits for. */
        Task v_task = {};
        int v_block = 0, loaded = 0;
        auto load_v = [&](int n) {
            mbarrier_wait(barrier(F::V_EMPTY, n), parity_of<F::STAGES>(n) ^ 1);
            mbarrier_arrive_expect_tx(barrier(F::V_FULL, n), F::KV_BYTES);
            load_tile<F::PANELS>(tiles + F::V + stage_of<F::STAGES>(n) * F::KV_BYTES, F::KV_PANEL, &maps.v,
                                 barrier(F::V_FULL, n), v_task.b, v_task.h, v_block * KEYS);
        };
        /* drawn a task early: it takes as long as a memory access */
        Task t = draw_task(p, F::ROWS, true);
        for (int n = 0; ; n++) {
            tasks.wait_for_room(n);
            tasks.publish(n, t);
            if (t.row < 0) break;
            const Task next = draw_task(p, F::ROWS, true);
            const int last = (min(t.row + F::ROWS, p.T) - 1) / KEYS;
            for (int block = last; block >= 0; block--, loaded++) {
                mbarrier_wait(barrier(F::K_EMPTY, loaded), parity_of<F::STAGES>(loaded) ^ 1);
                mbarrier_arrive_expect_tx(barrier(F::K_FULL, loaded), F::KV_BYTES);
                load_tile<F::PANELS>(tiles + F::K + stage_of<F::STAGES>(loaded) * F::KV_BYTES, F::KV_PANEL, &maps.k,
                                     barrier(F::K_FULL, loaded), t.b, t.h, block * KEYS);
                if (loaded) load_v(loaded - 1);
                v_task = t;
                v_block = block;
                if (block == last)
                    for (int i = 0; i < F::RING_GROUPS; i++) {
                        const uint32_t full = base + F::Q_FULL + 8 * (ring + i);
                        mbarrier_wait(base + F::Q_EMPTY + 8 * (ring + i), n & 1 ^ 1);
                        mbarrier_arrive_expect_tx(full, F::Q_BYTES);
                        load_tile<F::PANELS>(base + F::Q + (ring + i) * F::Q_BYTES, F::Q_PANEL, &maps.q, full,
                                             t.b, t.h, t.row + i * GROUP_ROWS);
                    }
            }
            t = next;
        }
        if (loaded) load_v(loaded - 1);
        return;
    }

    setmaxnreg_inc<F::REGISTERS>();
    const int g = lane / 4, c = lane % 4, own = 16 * warp + g;      /* this thread's rows: own, own + 8 */
    const float scale2 = p.scale * LOG2E;
    const Operand q = operand(base + F::Q + group * F::Q_BYTES);
    float s[KEYS / 2], o[F::PANELS * 32];
    float reference[2], sum[2], shrink[2];      /* of the two rows: stands for the maximum, in units of log2; sum of P */
    uint32_t p_rows[KEYS / 4];                  /* P in bf16: the A of its product with V */

    auto wait_for = [&](int which, int n) { mbarrier_wait(barrier(which, n), parity_of<F::STAGES>(n)); };
    auto release  = [&](int which, int n) { if (lane == 0) mbarrier_arrive(barrier(which, n)); };
    auto k_tile = [&](int n) { return operand(tiles + F::K + stage_of<F::STAGES>(n) * F::KV_BYTES); };
    auto v_tile = [&](int n) { return operand(tiles + F::V + stage_of<F::STAGES>(n) * F::KV_BYTES, F::KV_PANEL); };
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
        if (grown)
            #pragma unroll
            for (int i = 0; i < 2; i++) {
                const float next = fmaxf(top[i] * scale2 + tie_breaker(top[i]), reference[i]);
                shrink[i] = ex2(reference[i] - next);
                sum[i] *= shrink[i];
                reference[i] = next;
            }
        return grown;
    };
    /* sum adds P before it is rounded: the backward pass makes P anew from the log-sum-exp, and its rows must add up to 1. */
    auto exponentials = [&](auto &s) {
        #pragma unroll
        for (int j = 0; j < (int)sizeof s / 16; j++)
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                s[4 * j + e] = ex2(s[4 * j + e] * scale2 - reference[e / 2]);
                sum[e / 2] += s[4 * j + e];
            }
    };
    auto round_p = [&](auto &s) {
        #pragma unroll
        for (int x = 0; x < KEYS / 4; x++) p_rows[x] = x < (int)sizeof s / 8 ? pack(s[2 * x], s[2 * x + 1]) : 0;
    };
    /* The first block of a task, with nothing to overlap: the last 64 of its columns are the square on the diagonal. */
    auto begin = [&](auto &s, int n) {
        constexpr int columns = sizeof s / 2;
        wait_for(F::K_FULL, n);
        start_scores<F::PANELS>(s, q, F::Q_PANEL, k_tile(n), F::KV_PANEL);     /* of the first columns: as many as s holds */
        wgmma_wait_group<0>();
        ready(s);
        release(F::K_EMPTY, n);
        #pragma unroll
        for (int j = columns / 8 - 8; j < columns / 8; j++)
            #pragma unroll
            for (int e = 0; e < 4; e++)
                if (8 * j + 2 * c + e % 2 - (columns - 64) > own + e / 2 * 8) s[4 * j + e] = -INFINITY;
        #pragma unroll
        for (int i = 0; i < 2; i++) { reference[i] = -INFINITY; sum[i] = 0; }
        follow_maximum(s);
        exponentials(s);
        round_p(s);
    };

    int at = 0;     /* blocks that this ring has brought before the present one */
    for (int n = 0; ; n++) {
        const Task t = tasks.take_by_warp(n);
        if (t.row < 0) break;
        const int row = t.row + (group - ring) * GROUP_ROWS, blocks = row < p.T ? row / KEYS + 1 : 0;
        const int brought = (min(t.row + F::ROWS, p.T) - 1) / KEYS + 1;
        for (int i = blocks; i < brought; i++, at++) {      /* those that only groups further down need */
            wait_for(F::K_FULL, at);
            release(F::K_EMPTY, at);
            wait_for(F::V_FULL, at);
            release(F::V_EMPTY, at);
        }
        mbarrier_wait(base + F::Q_FULL + 8 * group, n & 1);
        if (blocks == 0) {
            if (lane == 0) mbarrier_arrive(base + F::Q_EMPTY + 8 * group);
            continue;
        }
        if (row % KEYS == 0) {      /* of this block only the first half is seen */
            float half[KEYS / 4];
            begin(half, at);
        } else
            begin(s, at);

        #pragma unroll 1
        for (int i = 1; i < blocks; i++) {
            at++;
            wait_for(F::K_FULL, at);
            start_scores<F::PANELS>(s, q, F::Q_PANEL, k_tile(at), F::KV_PANEL);
            wait_for(F::V_FULL, at - 1);
            start_sum<KEYS>(o, p_rows, v_tile(at - 1), i > 1);
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
        }
        if (lane == 0) mbarrier_arrive(base + F::Q_EMPTY + 8 * group);
        wait_for(F::V_FULL, at);
        start_sum<KEYS>(o, p_rows, v_tile(at), blocks > 1);

        float normalise[2];
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            const float total = quad_sum(sum[i]);
            const int query = row + own + 8 * i;
            normalise[i] = 1.0f / total;
            if (c == 0 && query < p.T) lse[((int64_t)t.b * p.NH + t.h) * p.T + query] = LN2 * (reference[i] + log2f(total));
        }
        wgmma_wait_group<0>();
        ready(o);
        release(F::V_EMPTY, at++);
        bf16 *const to = rows_of(out, p, t.b, t.h, row + 16 * warp);
        const int rows = p.T - row - 16 * warp;
        if constexpr (F::SHARED)
            store_rows_staged<8 * F::PANELS>(shared + F::OUT + (4 * group + warp) * (F::Q_BYTES / 4), to, out.pitch,
                                             rows, p.HS, o, normalise[0], normalise[1]);
        else
            store_rows<8 * F::PANELS>(to, out.pitch, rows, p.HS, o, normalise[0], normalise[1]);
    }
}

template<class F> static void launch(const Problem &p, const Maps &maps, View out, float *lse) {
    CUDA(cudaFuncSetAttribute(flash_forward_sm90<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, F::SHARED_BYTES));
    const int64_t tasks = (int64_t)p.heads * ((p.T + F::ROWS - 1) / F::ROWS);
    LAUNCH(flash_forward_sm90<F>, blocks_for(tasks), F::THREADS, F::SHARED_BYTES, p, maps, out, lse);
}

void attention_flash_sm90_forward(const AttentionSpec *s, Tensor out, float *lse, Tensor q, Tensor k, Tensor v, void *work) {
    const int64_t head_bytes = (int64_t)s->Tq * s->HS * 2 * (int64_t)sizeof(bf16), section = (16 << 20) / head_bytes;
    Problem p = {};
    p.NH = s->NH;
    p.HS = s->HS;
    p.T = s->Tq;
    p.heads = s->B * s->NH;
    p.section = section < 1 ? 1 : section < p.heads ? (int)section : p.heads;       /* K and V in a third of the L2 */
    p.scale = s->scale;
    p.ticket = (int *)work;
    const Maps maps = { tensor_map("q", s, q, GROUP_ROWS), tensor_map("k", s, k, KEYS), tensor_map("v", s, v, KEYS) };
    CUDA(cudaMemsetAsync(p.ticket, 0, sizeof *p.ticket, cuda_stream));
    (s->HS > 64 ? launch<Wide> : s->Tq > NARROW_LENGTH ? launch<NarrowLong> : launch<Narrow>)(p, maps, view_of(out), lse);
}
