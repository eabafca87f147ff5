/* attention_flash_sm90_backward.cu - The gradients of attention on Hopper, five GEMMs in one kernel, as in
   FlashAttention-2 and -3 (arXiv 2307.08691, 2407.08608):

       S = q k^T     P = exp(scale S - lse)     dP = dout v^T     dS = P (dP - delta)     delta = rowsum(dout out)
       dv = P^T dout     dk = scale dS^T q     dq = scale dS k

   A wgmma holds up its warp until the tensor cores have taken those before it, so it overlaps with the arithmetic of
   the other warpgroup only: the two take turns, half a step apart. Over time, X = P, dS and the writing of dS:

       group 0   S dP |   X    | dV dK S dQ | out dP |   X    | dV dK S dQ | out dP |
       group 1   S dP .  .  X        .  .   | dV dK S dQ | out dP |   X    | dV dK S dQ |
                            the turn passes ^

   dQ needs dS of both groups, so a group waits for the other one within its turn. With LATE_DQ dQ is a step late, which
   removes that wait: a group issues all five GEMMs in its turn and does all arithmetic during the other group's.

       group 0   | dQ(i-1) dK(i) dV(i) S(i+1) dP(i+1) |       X(i+1)       | dQ(i) dK(i+1) dV(i+1) S(i+2) dP(i+2) |
       group 1   |     X(i)      | dQ(i-1) dK(i) dV(i) S(i+1) dP(i+1) |       X(i+1)       | dQ(i) dK(i+1) ...

   At hs 128 that is 4.1, 5.2 and 5.9 % faster at T = 4096, 8192 and 16384, and 2.5, 2.1 and 0.6 % slower at 512, 1024
   and 2048. At hs 64 it is 5 to 7 % slower at every T.

   How dq is summed over the blocks of keys: README.md, "dQ" and "Parts".

   With dropout c, the scale of the mask M, is left out: dv = c (M o P)^T dout, dS = P o (M o dP - delta / c), and dk
   and dq are multiplied by c in their epilogues. */
#include "attention_flash_sm90.cuh"

struct Maps { CUtensorMap q, k, v, dout; Result dq, dk, dv; };

/* tiles: of a head's queries. Tpad: Tq rounded up to 128. dq_semaphore: for both halves of each tile, the number of
   blocks of keys in dq. */
struct Workspace { float *lse2, *delta, *dq; int *dq_semaphore; int tiles, Tpad; };

template<int PANELS_, Part PART_, bool LATE_DQ_> struct Backward {
    static constexpr Part PART = PART_;
    static constexpr bool LATE_DQ = LATE_DQ_;
    static_assert(!LATE_DQ || (PANELS_ == 2 && PART == WHOLE), "tested and measured there only");
    static constexpr bool DROPOUT = PART == DROPPED;
    static constexpr int PANELS = PANELS_, COLUMNS = 64 * PANELS;
    static constexpr int STAGES = 2;                        /* stages of Q, dout and dS */
    static constexpr int QT = PANELS == 1 ? 128 : 64;       /* queries of a tile: what fits the registers as S and dP */
    static constexpr int GROUPS = 2, THREADS = WARPGROUP * (GROUPS + 1), REGISTERS = 232, PRODUCER_REGISTERS = 40;
    static constexpr int KV_PANEL = KEYS * ROW_BYTES, KV_BYTES = PANELS * KV_PANEL;
    static constexpr int Q_PANEL = QT * ROW_BYTES, Q_BYTES = PANELS * Q_PANEL;
    static constexpr int DS_PANEL = KEYS * ROW_BYTES, DS_BYTES = QT / 64 * DS_PANEL;    /* a row per key */
    static constexpr int DQ_BYTES = QT * COLUMNS * 4 / GROUPS;                          /* a group's half of dq, f32 */
    static constexpr int VECTOR_BYTES = QT * 4;                                         /* lse or delta */
    /* Shared memory. K has two stages, so that one group can begin a tile while the other ends the last one. */
    static constexpr int K = 0, V = K + 2 * KV_BYTES, Q = V + KV_BYTES, DOUT = Q + STAGES * Q_BYTES;
    static constexpr int DS = DOUT + STAGES * Q_BYTES, DQ = DS + 2 * DS_BYTES;
    static constexpr int LSE = DQ + GROUPS * DQ_BYTES, DELTA = LSE + STAGES * VECTOR_BYTES;
    static constexpr int K_PIPELINE = DELTA + STAGES * VECTOR_BYTES, V_PIPELINE = K_PIPELINE + 16 * 2;
    static constexpr int Q_PIPELINE = V_PIPELINE + 16, DOUT_PIPELINE = Q_PIPELINE + 16 * STAGES;
    static constexpr int DS_PIPELINE = DOUT_PIPELINE + 16 * STAGES, DQ_PIPELINES = DS_PIPELINE + 16 * STAGES;
    static constexpr int SUMMED_PIPELINES = DQ_PIPELINES + 16 * GROUPS, TILE_PIPELINE = SUMMED_PIPELINES + 32 * GROUPS;
    static constexpr int TILES = TILE_PIPELINE + 16, HEAD_MASKS = TILES + (int)sizeof(WorkTile);
    static constexpr int WARP_MASKS = HEAD_MASKS + 2 * (int)sizeof(DropoutMask);
    static constexpr int WARP_MASK = 2 * QT;        /* bytes: a bit of 16 keys for each query */
    static constexpr int SHARED_BYTES = DROPOUT ? WARP_MASKS + 4 * GROUPS * WARP_MASK : HEAD_MASKS;
    static_assert(SHARED_BYTES <= 232448, "a block of Hopper has 227 KiB");
    enum { TURN = 1 };          /* named barriers of the consumers, one a group: it may issue its GEMMs */
};

template<class F> struct Shared {
    uint8_t *memory;
    uint32_t base = shared_address(memory);
    Pipeline<2> k = { base + F::K_PIPELINE }, q = { base + F::Q_PIPELINE };
    /* Released with LATE_DQ only: else dout goes with q, and a group commits a stage of ds after its reads of the other
       one. */
    Pipeline<2> dout = { base + F::DOUT_PIPELINE }, ds = { base + F::DS_PIPELINE };
    Pipeline<1> v = { base + F::V_PIPELINE };
    TileQueue<1> tiles = { (WorkTile *)(memory + F::TILES), { base + F::TILE_PIPELINE } };

    /* The mask of the n-th tile's head; it is loaded and released with K */
    DEVICE DropoutMask &mask(int n) const { return ((DropoutMask *)(memory + F::HEAD_MASKS))[k.stage(n)]; }
    /* A group's half of dq on its way to global memory; full when the other blocks' dq of the diagonal is complete */
    DEVICE Pipeline<1> dq(int half)     const { return { base + F::DQ_PIPELINES + 16 * half }; }
    DEVICE Pipeline<2> summed(int half) const { return { base + F::SUMMED_PIPELINES + 32 * half }; }
    DEVICE Descriptor q_tile(int stage) const { return make_descriptor(base + F::Q + stage * F::Q_BYTES, F::Q_PANEL); }
    DEVICE Descriptor dout_tile(int stage) const {
        return make_descriptor(base + F::DOUT + stage * F::Q_BYTES, F::Q_PANEL);
    }
    DEVICE void init_barriers() const {
        k.init(1, 8);
        v.init(1, 8);
        q.init(1, 8);
        dout.init(1, 8);
        ds.init(8, 8);
        for (int half = 0; half < F::GROUPS; half++) {
            dq(half).init(4, 1);
            summed(half).init(1, 4);
        }
        tiles.pipeline.init(1, 10);     /* 8 warps of consumers, 2 threads that write dq */
        fence_mbarrier_init();
    }
};

/* The tiles of queries that see the block of keys from `row` on, in the order in which they are taken: the blocks of a
   head are each at another tile, so that they do not add to the same part of dq at once. The diagonal's come last, in
   reverse, when the other blocks have long added their parts; without a mask the tiles are taken in a circle. */
template<class F> struct QueryTiles {
    int first, count, diagonal;     /* the last `diagonal` tiles are on the diagonal */
    QueryTiles() = default;
    DEVICE QueryTiles(const Problem &p, int row) {
        const int tiles = (p.Tq + F::QT - 1) / F::QT;
        if (F::PART == RECTANGLE) {
            first = row / KEYS % tiles;
            count = tiles;
            diagonal = 0;
        } else {
            first = row / F::QT;
            count = tiles - first;
            diagonal = F::QT == KEYS ? 1 : min(2, count);
        }
    }
    /* Never without a mask, but that is left to run time: otherwise ptxas takes the operands of wgmma from vector
       registers, and a step of the wide kernel has 604 instructions instead of 493. */
    DEVICE bool on_diagonal(int i) const { return i >= count - diagonal; }
    DEVICE int tile(int i) const {
        if (F::PART == RECTANGLE) return first + i < count ? first + i : first + i - count;
        return first + (on_diagonal(i) ? count - 1 - i : i + diagonal);
    }
};

template<class F> DEVICE float *dq_accumulator(const Workspace &w, int head, int tile) {
    return w.dq + ((int64_t)head * w.Tpad + tile * F::QT) * F::COLUMNS;
}

/* Whether this part of dq is the first, to be stored and not added. While another block stores, this one waits. */
enum { STORING = -1 };
DEVICE bool acquire_first(int *semaphore) {
    int was;
    while ((was = atom_cas_acquire(semaphore, 0, STORING)) == STORING) {}
    return was == 0;
}

DEVICE void wait_until(const int *semaphore, int value) { while (ld_acquire(semaphore) < value) {} }

/* delta, and lse in units of log2; rows without keys and from Tq on get P = 0; zeroes dq_semaphore. A block per 128
   rows of a head. */
template<int PANELS, bool DROPOUT> __global__ __launch_bounds__(256)
void flash_backward_rows(const Problem p, const Workspace w, const float *lse, Tensor out, Tensor dout,
                         const AttentionDropout dropout) {
    constexpr int LANES = 8 * PANELS, STEP = 256 / LANES;       /* 16 bytes a lane */
    const int tiles = w.Tpad / 128, head = blockIdx.x / tiles, lane = threadIdx.x % LANES;
    const int first = blockIdx.x % tiles * 128 + threadIdx.x / LANES, counts = 2 * w.tiles / tiles;
    if ((int)threadIdx.x < counts) w.dq_semaphore[blockIdx.x * counts + threadIdx.x] = 0;
    auto row_of = [&](const Tensor &t) {
        return (const bf16 *)t.data + ((int64_t)(head / p.NH) * p.Tq + first) * t.pitch + head % p.NH * p.HS + 8 * lane;
    };
    const bf16 *x = row_of(out), *y = row_of(dout);
    #pragma unroll
    for (int i = 0; i < 128; i += STEP) {
        const int row = first + i;
        float sum = 0;
        if (row < p.Tq && 8 * lane < p.HS) {
            float a[8], b[8];
            Pack<bf16>::load_once(x + i * out.pitch).to_float(a);
            Pack<bf16>::load(y + i * dout.pitch).to_float(b);
            for (int n = 0; n < 8; n++) sum += a[n] * b[n];
        }
        sum = warp_sum<LANES>(sum);
        if (lane == 0) {
            const int64_t at = (int64_t)head * w.Tpad + row;
            w.delta[at] = DROPOUT ? sum * dropout.inverse_scale : sum;
            const float l = row < p.Tq ? lse[(int64_t)head * p.lse_pitch + row] * LOG2E : INFINITY;
            w.lse2[at] = l == -INFINITY ? INFINITY : l;
        }
    }
}

/* One thread: fetches the tiles and loads everything. */
template<class F> DEVICE void produce(const Problem &p, const Workspace &w, const Maps &maps, const Shared<F> &shared,
                                      const AttentionDropout &dropout) {
    prefetch_tensormap(&maps.q);
    prefetch_tensormap(&maps.k);
    prefetch_tensormap(&maps.v);
    prefetch_tensormap(&maps.dout);
    for (int n = 0, loaded = 0; ; n++) {
        const WorkTile t = fetch_tile(p, KEYS, false);
        shared.tiles.publish(n, t);
        if (t.b < 0) break;
        const QueryTiles<F> queries(p, t.row);
        for (int i = 0; i < queries.count; i++, loaded++) {
            const int row = queries.tile(i) * F::QT, vector = loaded % 2 * F::VECTOR_BYTES;
            const int64_t rows = ((int64_t)t.b * p.NH + t.h) * w.Tpad + row;
            if (i == 0) {
                shared.k.acquire(n);
                if constexpr (F::DROPOUT) shared.mask(n) = dropout.mask(t.b, t.h);
                load_tile<F::PANELS>(shared.k, n, shared.base + F::K, F::KV_PANEL, &maps.k, t.b, t.h, t.row);
            }
            shared.q.acquire(loaded);
            load_tile<F::PANELS>(shared.q, loaded, shared.base + F::Q, F::Q_PANEL, &maps.q, t.b, t.h, row,
                                 F::VECTOR_BYTES);
            cp_async_bulk_load(shared.base + F::LSE + vector, w.lse2 + rows, F::VECTOR_BYTES, shared.q.full(loaded));
            if constexpr (F::LATE_DQ) shared.dout.acquire(loaded);
            load_tile<F::PANELS>(shared.dout, loaded, shared.base + F::DOUT, F::Q_PANEL, &maps.dout, t.b, t.h, row,
                                 F::VECTOR_BYTES);
            cp_async_bulk_load(shared.base + F::DELTA + vector, w.delta + rows, F::VECTOR_BYTES,
                               shared.dout.full(loaded));
            if (i == 0) {
                shared.v.acquire(n);
                load_tile<F::PANELS>(shared.v, n, shared.base + F::V, F::KV_PANEL, &maps.v, t.b, t.h, t.row);
            }
        }
    }
}

/* One thread per half: adds it to dq in global memory, except on the diagonal, and signals when the other blocks' parts
   of the diagonal are complete. */
template<class F> DEVICE void accumulate_dq(const Problem &p, const Workspace &w, const Shared<F> &shared, int half) {
    const uint32_t part = shared.base + F::DQ + half * F::DQ_BYTES;
    const Pipeline<1> dq = shared.dq(half);
    for (int n = 0, sent = 0; ; n++) {
        const WorkTile t = shared.tiles.take(n);
        if (t.b < 0) break;
        const QueryTiles<F> queries(p, t.row);
        const int head = t.b * p.NH + t.h, blocks_before = t.row / KEYS;
        auto semaphore = [&](int i) { return w.dq_semaphore + 2 * ((int64_t)head * w.tiles + queries.tile(i)) + half; };
        int i = 0;
        for (; i < queries.count - queries.diagonal; i++, sent++) {
            float *const sum = dq_accumulator<F>(w, head, queries.tile(i)) + half * (F::DQ_BYTES / 4);
            dq.wait(sent);
            bool first = blocks_before == 0;
            if (p.deterministic) wait_until(semaphore(i), blocks_before);
            else                 first = acquire_first(semaphore(i));
            fence_proxy_async_global();
            if (first) cp_async_bulk_store(sum, part, F::DQ_BYTES);
            else       cp_reduce_async_bulk_add(sum, part, F::DQ_BYTES);
            cp_async_bulk_commit_group();
            cp_async_bulk_wait_group_read<0>();
            mbarrier_arrive(dq.empty(sent));
            cp_async_bulk_wait_group<0>();
            fence_proxy_async_global();
            red_add_release(semaphore(i), first && !p.deterministic ? 1 - STORING : 1);
        }
        for (; i < queries.count; i++) wait_until(semaphore(i), blocks_before);
        mbarrier_arrive(shared.summed(half).full(n));
    }
}

/* Without a mask, after all blocks: dq = or += scale times the sum. A block per tile of queries; the threads read what
   the consumers' threads have written. */
template<class F> __global__ __launch_bounds__(256)
void flash_backward_dq(const Problem p, const Workspace w, Result dq) {
    const int head = blockIdx.x / w.tiles, tile = blockIdx.x % w.tiles, half = threadIdx.x / WARPGROUP;
    const float4 *sum = (const float4 *)dq_accumulator<F>(w, head, tile) + threadIdx.x / 32 * 256 + lane_id();
    const int row = tile * F::QT + threadIdx.x / 32 % 4 * 16 + (F::PANELS == 1 ? 64 * half : 0);
    float x[32];
    for (int j = 0; j < 8; j++) {
        const float4 part = __ldcs(sum + 32 * j);
        x[4 * j]     = part.x;
        x[4 * j + 1] = part.y;
        x[4 * j + 2] = part.z;
        x[4 * j + 3] = part.w;
    }
    const int column = F::PANELS == 2 ? 64 * half : 0;
    if (dq.is_bf16)
        each_pair<1>(p, dq, head / p.NH, head % p.NH, row, column, [&](int n, int, int64_t at) {
            *(uint32_t *)((bf16 *)dq.data + at) = bf16_pair(x[n] * p.scale, x[n + 1] * p.scale);
        });
    else
        store_f32_rows<1>(p, dq, head / p.NH, head % p.NH, row, column, x, p.scale, p.scale);
}

/* Fragments of one tile. Not members of Consumer: the compiler keeps a struct with arrays in memory until loops are
   unrolled, and optimizes the other members less. */
template<class F> struct Registers {
    float s[F::QT / 2], dp[F::QT / 2], dq[32], dk[F::COLUMNS / 2], dv[F::COLUMNS / 2];
    uint32_t p[F::QT / 4], ds[F::QT / 4];       /* P^T, dS^T in bf16: the A of dv and dk */
};

/* A warpgroup: 64 keys. */
template<class F> struct Consumer {
    const Problem &p;
    const Workspace &w;
    const Maps &maps;
    const Shared<F> &shared;
    const AttentionDropout &dropout;
    const int group, warp;
    const int g = lane_id() / 4, c = lane_id() % 4;
    const int warp_row = 64 * group + 16 * warp;    /* the warp's keys; the thread's are g and g + 8 of them */
    const float scale2 = p.scale * LOG2E;
    const float dv_scale = F::DROPOUT ? dropout.scale : 1, dqk_scale = F::DROPOUT ? p.scale * dropout.scale : p.scale;
    /* The groups compute the two halves of dq: of 128 queries, or of 128 columns */
    const int half_row = F::PANELS == 1 ? 64 * group : 0, half_column = F::PANELS == 2 ? 64 * group : 0;
    const Descriptor v = make_descriptor(shared.base + F::V + 64 * group * ROW_BYTES);
    const Pipeline<1> dq_pipeline = shared.dq(group);
    /* dq in shared and global memory has the order of the registers: 16 bytes of each thread, eight times. (Computed
       from `group` and `warp` this spills.) */
    const int dq_offset = (int)(threadIdx.x / 32 - 4) * 256 + lane_id();
    /* The tile */
    WorkTile t = {};
    QueryTiles<F> queries = {};
    Descriptor k = 0, k_half = 0;

    DEVICE float4 *dq_staging() const { return (float4 *)(shared.memory + F::DQ) + dq_offset; }

    /* S^T = K Q^T */
    DEVICE void issue_qk(float (&s)[F::QT / 2], int stage) {
        issue_gemm_nt<F::PANELS>(s, k, F::KV_PANEL, shared.q_tile(stage), F::Q_PANEL);
    }
    /* dP^T = V dout^T */
    DEVICE void issue_dp(float (&dp)[F::QT / 2], int stage) {
        issue_gemm_nt<F::PANELS>(dp, v, F::KV_PANEL, shared.dout_tile(stage), F::Q_PANEL);
    }

    /* dq = dS K of the first `keys` keys */
    DEVICE void issue_dq(float (&dq)[32], int stage, int keys) {
        const Descriptor ds = make_descriptor(shared.base + F::DS + stage * F::DS_BYTES + half_row / 64 * F::DS_PANEL);
        wgmma_fence();
        #pragma unroll
        for (int x = 0; x < keys / 16; x++)
            wgmma<MN_MAJOR, MN_MAJOR>(dq, advance(ds, x * 16 * ROW_BYTES), advance(k_half, x * 16 * ROW_BYTES), x > 0);
        wgmma_commit_group();
    }

    DEVICE uint8_t *warp_mask() const {
        return shared.memory + F::WARP_MASKS + (4 * group + warp) * F::WARP_MASK;
    }

    /* The mask of the i-th tile of queries */
    DEVICE void draw(int n, int i) {
        if constexpr (F::DROPOUT)
            draw_mask_sm90<16, F::QT>(warp_mask(), dropout, shared.mask(n), queries.tile(i) * F::QT, t.row + warp_row);
    }

    /* s = value where the query does not see the key, or the key does not exist */
    DEVICE void mask(float (&s)[F::QT / 2], int i, float value) {
        const int key = t.row + warp_row + g;
        /* the query that is the first to see key g */
        const int first = F::PART == RECTANGLE ? 0 : key - queries.tile(i) * F::QT - (F::PART == SQUARE ? p.q0 : 0);
        #pragma unroll
        for (int j = 0; j < F::QT / 8; j++)
            for (int e = 0; e < 4; e++)
                if (F::PART == RECTANGLE ? key + e / 2 * 8 >= p.Tk : 8 * j + 2 * c + e % 2 < first + e / 2 * 8)
                    s[4 * j + e] = value;
    }

    /* s = P^T = exp(scale S^T - lse). Masked: on the diagonal, or in the last block of keys. There P of keys that do
       not exist must be 0, and not exp(-lse), which may be infinite, since dq adds dS times a k of 0. The mask comes
       first: without a branch behind the exponentials, ptxas fills the gaps between them with the draw and with dS. */
    DEVICE void compute_p(float (&s)[F::QT / 2], int n, int i, bool masked, int stage) {
        const float *lse2 = (const float *)(shared.memory + F::LSE + stage * F::VECTOR_BYTES) + 2 * c;
        constexpr bool MASK_LAST = F::PART == RECTANGLE && F::PANELS == 1;      /* spills otherwise */
        constexpr int EARLY = F::QT / 32;       /* more of them spill with dropout */
        float2 early[EARLY];            /* read while S is computed */
        #pragma unroll
        for (int j = 0; j < EARLY; j++) early[j] = *(const float2 *)(lse2 + 8 * j);
        wgmma_wait_group<1>();
        wgmma_fence_operand(s);
        if (masked && !MASK_LAST) mask(s, i, -INFINITY);
        #pragma unroll
        for (int j = 0; j < F::QT / 8; j++) {
            const float2 l = j < EARLY ? early[j] : *(const float2 *)(lse2 + 8 * j);
            for (int e = 0; e < 4; e++) s[4 * j + e] = ex2(s[4 * j + e] * scale2 - (e % 2 ? l.y : l.x));
        }
        if (masked && MASK_LAST) mask(s, i, 0);
        draw(n, i);
    }

    /* dS^T = P^T (dP^T - delta), in registers and, for dq, in shared memory */
    DEVICE void compute_ds(Registers<F> &r, int stage, int used) {
        const float *delta = (const float *)(shared.memory + F::DELTA + stage * F::VECTOR_BYTES) + 2 * c;
        const uint32_t ds = shared.base + F::DS + stage * F::DS_BYTES;
        const int row = warp_row + lane_id() % 16;
        auto store_ds = [&](int x) {
            stmatrix(ds + x / 4 * F::DS_PANEL + row * ROW_BYTES + swizzled(x % 4 * 2 + lane_id() / 16, row),
                     r.ds[4 * x], r.ds[4 * x + 1], r.ds[4 * x + 2], r.ds[4 * x + 3]);
        };
        #pragma unroll
        for (int j = 0; j < F::QT / 8; j++) {
            const float2 m = *(const float2 *)(delta + 8 * j);
            const uint32_t bits = F::DROPOUT ? ((const uint32_t *)warp_mask())[4 * j + c] << (7 - g) : 0;
            for (int i = 0; i < 2; i++) {
                const float p0 = r.s[4 * j + 2 * i], p1 = r.s[4 * j + 2 * i + 1];
                const float dp0 = r.dp[4 * j + 2 * i], dp1 = r.dp[4 * j + 2 * i + 1];
                if constexpr (F::DROPOUT) {
                    const float kept0 = keep_by_bit(p0, bits, i), kept1 = keep_by_bit(p1, bits, 2 + i);
                    r.p[2 * j + i]  = bf16_pair(kept0, kept1);
                    r.ds[2 * j + i] = bf16_pair(kept0 * dp0 - p0 * m.x, kept1 * dp1 - p1 * m.y);
                } else {
                    r.p[2 * j + i]  = bf16_pair(p0, p1);
                    r.ds[2 * j + i] = bf16_pair(p0 * (dp0 - m.x), p1 * (dp1 - m.y));
                }
            }
        }
        if constexpr (F::LATE_DQ) shared.ds.acquire(used);
        #pragma unroll
        for (int x = 0; x < F::QT / 16; x++) store_ds(x);
        shared.ds.commit(used);
    }

    /* To shared memory, where accumulate_dq reads it; on the diagonal it stays there for the epilogue. */
    DEVICE void write_dq(const float (&dq)[32], int sent) {
        dq_pipeline.acquire(sent);
        for (int j = 0; j < 8; j++)
            dq_staging()[32 * j] = make_float4(dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
    }

    /* 16 bytes of the other blocks' dq */
    DEVICE float4 load_dq(int tile, int j) {
        return t.row == 0 ? make_float4(0, 0, 0, 0)
                          : __ldcg((const float4 *)dq_accumulator<F>(w, t.b * p.NH + t.h, tile) + dq_offset + 32 * j);
    }
    static DEVICE void add(float (&dq)[32], int j, float4 x) {
        dq[4 * j]     += x.x;
        dq[4 * j + 1] += x.y;
        dq[4 * j + 2] += x.z;
        dq[4 * j + 3] += x.w;
    }
    DEVICE void store_dq(uint32_t staging, const float (&dq)[32], int tile) {
        store_rows<1, F::PART>(p, staging, maps.dq, t.b, t.h, tile * F::QT + half_row + EPILOGUE_ROWS * warp,
                               half_column, dq, dqk_scale, dqk_scale);
    }

    /* Stores dv, dk and, of the diagonal, dq, staged in the warp's part of dq's shared memory. Without a mask the last
       part of dq is sent as the others are. */
    DEVICE void epilogue(Registers<F> &r, int n, int used, int &sent) {
        const uint32_t staging = shared.base + F::DQ + (dq_offset - lane_id()) * 16;
        const int tile = queries.first;
        const bool two = queries.diagonal > 1;      /* tile + 1, taken before it, is on the diagonal, too */
        float dq_before[32];
        /* in the order in which they were issued */
        float (&first)[F::COLUMNS / 2] = F::LATE_DQ ? r.dk : r.dv, (&second)[F::COLUMNS / 2] = F::LATE_DQ ? r.dv : r.dk;
        const float first_scale = F::LATE_DQ ? dqk_scale : dv_scale, second_scale = F::LATE_DQ ? dv_scale : dqk_scale;
        dq_pipeline.acquire(sent);
        if constexpr (F::QT < KEYS && F::PART != RECTANGLE)
            for (int j = 0; j < 8; j++) *(float4 *)(dq_before + 4 * j) = dq_staging()[32 * j];
        wgmma_wait_group<1>();
        wgmma_fence_operand(first);
        if constexpr (F::LATE_DQ) shared.q.release(used);
        /* overlaps with the GEMM of `second` */
        store_rows<F::PANELS, F::PART>(p, staging, F::LATE_DQ ? maps.dk : maps.dv, t.b, t.h, t.row + warp_row, 0, first,
                                       first_scale, first_scale);

        shared.ds.wait(used);
        wgmma_wait_group<0>();
        wgmma_fence_operand(second);
        (F::LATE_DQ ? shared.dout : shared.q).release(used);
        if constexpr (F::PART == RECTANGLE) {
            issue_dq(r.dq, uniform_stage(used), KEYS);
            store_rows<F::PANELS, F::PART>(p, staging, maps.dk, t.b, t.h, t.row + warp_row, 0, r.dk, dqk_scale,
                                           dqk_scale);
            wgmma_wait_group<0>();
            wgmma_fence_operand(r.dq);
            shared.k.release(n);
            wait_for_stores();
            write_dq(r.dq, sent);
            dq_pipeline.commit(sent++);
            return;
        }
        float dq[32];       /* not r.dq: spills */
        issue_dq(dq, uniform_stage(used), F::QT);     /* the diagonal's first tile: its QT queries see QT keys */
        float4 others[8];
        shared.summed(group).wait(n);
        for (int j = 0; j < 8; j++) others[j] = load_dq(tile, j);
        store_rows<F::PANELS, F::PART>(p, staging, F::LATE_DQ ? maps.dv : maps.dk, t.b, t.h, t.row + warp_row, 0,
                                       second, second_scale, second_scale);
        if (two)
            for (int j = 0; j < 8; j++) add(dq_before, j, load_dq(tile + 1, j));
        wgmma_wait_group<0>();
        wgmma_fence_operand(dq);
        if constexpr (F::LATE_DQ) shared.ds.release(used);
        shared.k.release(n);
        for (int j = 0; j < 8; j++) add(dq, j, others[j]);
        store_dq(staging, dq, tile);
        if (two) store_dq(staging, dq_before, tile + 1);
    }

    DEVICE void begin_tile(Registers<F> &r, int n, int used) {
        queries = QueryTiles<F>(p, t.row);
        const uint32_t k_tile = shared.base + F::K + uniform_stage(n) * F::KV_BYTES;
        k = make_descriptor(k_tile + 64 * group * ROW_BYTES);
        k_half = make_descriptor(k_tile + half_column / 64 * F::KV_PANEL);
        shared.k.wait(n);
        shared.q.wait(used);
        issue_qk(r.s, uniform_stage(used));
        shared.v.wait(n);
        shared.dout.wait(used);
        issue_dp(r.dp, uniform_stage(used));
        wait_for_stores();      /* stores of the tile before, staged in the shared memory of dq */
        /* A first GEMM with d = a b instead extends their live range past the end of the tile and causes spills. */
        #pragma unroll
        for (int x = 0; x < F::COLUMNS / 2; x++) r.dk[x] = r.dv[x] = 0;
    }

    /* LATE_DQ: dQ of the tile of queries before this one, dK and dV. In one place for both cases, dK and dV would make
       ptxas serialize the wgmma (C7514), and so would dQ in an array of its own (C7512). */
    DEVICE void issue_late_dq(Registers<F> &r, int i, int stage, int used, int sent) {
        float (&dq)[32] = *(float (*)[32])r.s;      /* free from P in bf16 to the next S */
        auto issue_dk_dv = [&] {
            issue_gemm_nn(r.dk, r.ds, shared.q_tile(stage), F::QT);
            issue_gemm_nn(r.dv, r.p, shared.dout_tile(stage), F::QT);
        };
        if (i > 0) {
            shared.ds.wait(used - 1);
            issue_dq(dq, stage ^ 1, KEYS);
            issue_dk_dv();
            wgmma_wait_group<2>();
            wgmma_fence_operand(dq);
            shared.ds.release(used - 1);
            write_dq(dq, sent);
        } else
            issue_dk_dv();
    }

    DEVICE void consume() {
        if (group == 1) bar_arrive(F::TURN, 2 * WARPGROUP);     /* the first turn is group 0's */
        int used = 0, sent = 0;     /* tiles of queries before this one; those of them that are off the diagonal */
        for (int n = 0; ; n++) {
            t = shared.tiles.take_by_warp(n);
            if (t.b < 0) break;
            Registers<F> r;
            begin_tile(r, n, used);
            #pragma unroll 1
            for (int i = 0; ; i++) {
                const int stage = uniform_stage(used);
                const bool diagonal = queries.on_diagonal(i), last = i == queries.count - 1;
                compute_p(r.s, n, i, F::PART == RECTANGLE ? t.row + KEYS > p.Tk : diagonal, stage);
                wgmma_wait_group<0>();
                wgmma_fence_operand(r.dp);
                if (last) shared.v.release(n);
                compute_ds(r, stage, used);

                bar_sync(F::TURN + group, 2 * WARPGROUP);
                if constexpr (F::LATE_DQ) {
                    issue_late_dq(r, i, stage, used, sent);
                } else {
                    issue_gemm_nn(r.dv, r.p, shared.dout_tile(stage), F::QT);
                    issue_gemm_nn(r.dk, r.ds, shared.q_tile(stage), F::QT);
                }
                if (last) break;

                shared.q.wait(used + 1);
                issue_qk(r.s, stage ^ 1);
                if constexpr (F::LATE_DQ) {
                    wgmma_wait_group<2>();
                    wgmma_fence_operand(r.dk);
                    shared.q.release(used);
                    wgmma_wait_group<1>();
                    wgmma_fence_operand(r.dv);
                    shared.dout.release(used);
                    used++;
                    shared.dout.wait(used);
                    issue_dp(r.dp, stage ^ 1);
                    bar_arrive(F::TURN + (group ^ 1), 2 * WARPGROUP);
                    if (i > 0) dq_pipeline.commit(sent++);
                } else {
                    shared.ds.wait(used);
                    wgmma_wait_group<1>();
                    wgmma_fence_operand(r.dv);
                    wgmma_fence_operand(r.dk);
                    shared.q.release(used);
                    issue_dq(r.dq, stage, KEYS);
                    bar_arrive(F::TURN + (group ^ 1), 2 * WARPGROUP);
                    wgmma_wait_group<0>();
                    wgmma_fence_operand(r.s);
                    wgmma_fence_operand(r.dq);
                    write_dq(r.dq, sent);
                    used++;
                    shared.dout.wait(used);
                    issue_dp(r.dp, stage ^ 1);
                    if (F::QT == KEYS || !diagonal) dq_pipeline.commit(sent++);
                }
            }
            bar_arrive(F::TURN + (group ^ 1), 2 * WARPGROUP);
            epilogue(r, n, used++, sent);
        }
        wait_for_stores();
    }
};

template<class F> __global__ __launch_bounds__(F::THREADS, 1)
void flash_backward_sm90(const Problem p, const Workspace w, const __grid_constant__ Maps maps,
                         const AttentionDropout dropout) {
    extern __shared__ __align__(1024) uint8_t memory[];
    const Shared<F> shared = { memory };
    const int group = uniform(threadIdx.x / WARPGROUP) - 1, warp = uniform(threadIdx.x / 32) % 4;
    const int lane = lane_id();
    if (threadIdx.x == 0) shared.init_barriers();
    __syncthreads();
    if (group < 0) {
        setmaxnreg_dec<F::PRODUCER_REGISTERS>();
        if (lane != 0) return;
        if (warp == 0) produce<F>(p, w, maps, shared, dropout);
        if (warp % 2) accumulate_dq<F>(p, w, shared, warp / 2);
    } else {
        setmaxnreg_inc<F::REGISTERS>();
        Consumer<F>{ p, w, maps, shared, dropout, group, warp }.consume();
    }
}

/* ---- host ---- */

static int     padded(int T)                        { return (T + 127) / 128 * 128; }
static int64_t padded_rows(const AttentionSpec *s)  { return (int64_t)s->B * s->NH * padded(s->Tq); }

/* Two ints per tile of 64 or 128 queries; room for one per 32, a multiple of 16 bytes */
static size_t semaphore_bytes(const AttentionSpec *s) { return (size_t)padded_rows(s) / 32 * sizeof(int); }

size_t attention_flash_sm90_workspace(const AttentionSpec *s) {
    return semaphore_bytes(s) + (size_t)padded_rows(s) * sizeof(float) * (2 + (s->HS > 64 ? 128 : 64));
}

template<int PANELS, Part PART, bool LATE_DQ = false>
static void launch(const AttentionSpec *s, const AttentionOperands *o) {
    using F = Backward<PANELS, PART, LATE_DQ>;
    /* Two tiles per SM in flight (1.92: 256 tiles on 132 SMs), a long and a short one, so that all SMs finish together.
       More heads need more of the L2; with fewer, blocks of one head wait for each other's dq. With `deterministic`
       they always wait, and more heads are better. Within 3 % of the best of 2 .. 132 heads at T = 512 .. 16384. */
    const int tiles = padded(s->Tk) / KEYS;
    const float heads = s->deterministic ? 16000 / sqrtf((float)s->Tq * F::COLUMNS) : 1.92f * cuda_sm_count() / tiles;
    Problem p = make_problem(s, o, (int64_t)ceilf(heads));
    p.tiles = tiles;
    require_aligned_rows("attention", { o->out });
    REQUIRE((uintptr_t)o->work % 16 == 0, "attention: workspace at %p, want a multiple of 16 bytes", o->work);
    float *const lse2 = (float *)((char *)o->work + semaphore_bytes(s)), *const delta = lse2 + padded_rows(s);
    const Workspace w = { lse2, delta, delta + padded_rows(s), (int *)o->work, padded(s->Tq) / F::QT, padded(s->Tq) };
    const Maps maps = { tensor_map("q", s, o->q, F::QT), tensor_map("k", s, o->k, KEYS), tensor_map("v", s, o->v, KEYS),
                        tensor_map("dout", s, o->dout, F::QT), make_result("dq", s, o->dq, s->dq_into),
                        make_result("dk", s, o->dk, s->dkv_into), make_result("dv", s, o->dv, s->dkv_into) };
    const int blocks = persistent_blocks(p, 1);
    LAUNCH((flash_backward_rows<PANELS, F::DROPOUT>), (unsigned)(padded_rows(s) / 128), 256, 0, p, w, o->lse,
           o->out, o->dout, s->dropout);
    LAUNCH(flash_backward_sm90<F>, blocks, F::THREADS, F::SHARED_BYTES, p, w, maps, s->dropout);
    if constexpr (PART == RECTANGLE)
        LAUNCH(flash_backward_dq<F>, (unsigned)(p.heads * w.tiles), 256, 0, p, w, maps.dq);
}

template<Part PART> static void launch_part(const AttentionSpec *s, const AttentionOperands *o) {
    (s->HS > 64 ? launch<2, PART> : launch<1, PART>)(s, o);
}

/* LATE_DQ from so many keys on: between 2048, where it is 0.6 % slower, and 4096, where it is 4.1 % faster */
enum { LATE_DQ_KEYS = 3072 };

void attention_flash_sm90_backward(const AttentionSpec *s, const AttentionOperands *o) {
    const Part part = part_of(s, OVERWRITE);
    if (part == WHOLE && s->HS > 64 && s->Tk >= LATE_DQ_KEYS) return launch<2, WHOLE, true>(s, o);
    switch (part) {
    case WHOLE:     return launch_part<WHOLE>(s, o);
    case DROPPED:   return launch_part<DROPPED>(s, o);
    case SQUARE:    return launch_part<SQUARE>(s, o);
    case RECTANGLE: return launch_part<RECTANGLE>(s, o);
    }
}
