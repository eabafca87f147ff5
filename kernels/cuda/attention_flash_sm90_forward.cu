/* attention_flash_sm90_forward.cu - out = softmax(scale q k^T, causal) v on Hopper: tiles and online softmax as in
   FlashAttention-2 (Dao 2023, arXiv 2307.08691), warp specialization and the overlap of softmax and GEMMs as in
   FlashAttention-3 (Shah et al. 2024, arXiv 2407.08608). Over time, for one of the warpgroups, which each walk from the
   diagonal to the first keys:

       tensor cores   O+=Pn Vn S0  .           S1 O+=P0 V0 .      S2 O+=P1 V1 .      ..
       other units             store  mask,P0     max,P1             max,P2          ..
       waits for      V n      K 0             K 1 V 0            K 2 V 1

   The other warpgroups run out of step with it and fill the gaps. (ptxas 13.0 moves the wait for O += P V up into the
   exponentials. Preventing that is no faster: the other warpgroups fill this gap, too.) */
#include "attention_flash_sm90.cuh"
#include <cfloat>

/* From this length on, two blocks that share K and V save more energy than their waiting for each other costs (hs 128,
   at the power limit: 2 % at 2048, 6 % at 16384; at 1024 2 % slower). */
enum { CLUSTER_T = 2048 };
static constexpr float SLACK = 8.0f;    /* row_max may lie this much (log2) below the true maximum: P <= 2^8 */

struct Maps { CUtensorMap q, k, v; Result out; };

/* Tile shape and shared memory. GROUPS consumer warpgroups take neighbouring rows of one head, rotated from tile to
   tile, since later rows have more work, and share the K and V pipelines. So do the BLOCKS of a cluster: a tile has the
   rows of all of them; each loads one panel of K and V and multicasts it. */
template<int PANELS_, int GROUPS_, int STAGES_, int BLOCKS_, Part PART_> struct Forward {
    static constexpr Part PART = PART_;
    static constexpr int BLOCKS = BLOCKS_;      /* blocks of a cluster */
    static constexpr bool DROPOUT = PART == DROPPED;
    static constexpr float NO_MAX = PART == SQUARE ? -FLT_MAX : -INFINITY;  /* finite: P of a row without keys is 0 */
    static constexpr int PANELS = PANELS_, GROUPS = GROUPS_, ROWS = GROUP_ROWS * GROUPS * BLOCKS;
    static constexpr bool MERGES = PANELS == 2 && (PART == SQUARE || PART == RECTANGLE);      /* one panel: spills */
    static constexpr int STAGES = STAGES_;      /* stages of K and of V */
    static constexpr bool Q_IN_REGISTERS = PANELS == 2;     /* two groups leave enough registers */
    static constexpr int Q_STAGES = Q_IN_REGISTERS ? 1 : 2; /* a group need not wait until the others are done with Q */
    static constexpr int SENT = 4;      /* tiles on their way to the cluster's second block */
    static constexpr int THREADS = WARPGROUP * (GROUPS + 1);
    static constexpr int REGISTERS = GROUPS == 3 ? 160 : 232, PRODUCER_REGISTERS = GROUPS == 3 ? 32 : 40;
    static constexpr int Q_PANEL = GROUP_ROWS * ROW_BYTES, Q_BYTES = PANELS * Q_PANEL;
    static constexpr int KV_PANEL = KEYS * ROW_BYTES, KV_BYTES = PANELS * KV_PANEL;
    /* Shared memory: Q of each stage and group, K, V, staging of out, barriers, tiles */
    static constexpr int Q = 0, K = Q + Q_STAGES * GROUPS * Q_BYTES, V = K + STAGES * KV_BYTES;
    static constexpr int OUT = V + STAGES * KV_BYTES;
    static constexpr int Q_PIPELINES = OUT + GROUPS * Q_BYTES, K_PIPELINE = Q_PIPELINES + 16 * Q_STAGES * GROUPS;
    static constexpr int V_PIPELINE = K_PIPELINE + 16 * STAGES, TILE_PIPELINE = V_PIPELINE + 16 * STAGES;
    static constexpr int TILES = TILE_PIPELINE + 16 * 2, SENT_TILES = TILES + 2 * (int)sizeof(WorkTile);
    static constexpr int SENT_BARRIERS = SENT_TILES + SENT * (int)sizeof(WorkTile), MASKS = SENT_BARRIERS + 8 * SENT;
    static constexpr int WARP_MASK = WARP_MASK_BYTES + 16;      /* and the mask of the head */
    static constexpr int SHARED_BYTES = MASKS + (DROPOUT ? 4 * GROUPS * WARP_MASK : 0);
    static_assert(SHARED_BYTES <= 232448, "a block of Hopper has 227 KiB");
    static_assert(STAGES > (BLOCKS > 1 ? (ROWS - 1) / KEYS : (ROWS - GROUP_ROWS + KEYS - 1) / KEYS),
                  "a group keeps a tile's last V while it skips blocks of the next tile that only other groups need");
    /* Tiles end with the last row and the first tile is short, where it costs least: at T = 1024, tiles of 192 rows
       that began with the first row would walk over 32 blocks of keys and not 27. */
    __host__ __device__ static int first_row(int T) {
        const int unit = GROUP_ROWS * BLOCKS, rows = (T + unit - 1) / unit * unit;
        return rows - (rows + ROWS - 1) / ROWS * ROWS;
    }
    /* First row of a group in the block's n-th tile. The blocks of a cluster take rows by turns: each skips the first
       keys with one group only. */
    static DEVICE int group_row(const WorkTile &t, int group, int n) {
        if (BLOCKS > 1) return t.row + ((group + n) % GROUPS * BLOCKS + cluster_rank()) * GROUP_ROWS;
        return t.row + (group + n) % GROUPS * GROUP_ROWS;
    }
    /* Blocks of keys that the tile sees */
    static DEVICE int key_blocks(const WorkTile &t, const Problem &p) {
        return ((PART == RECTANGLE ? p.Tk : min(t.row + ROWS, p.Tq)) - 1) / KEYS + 1;
    }
    /* Those that a group sees. Without a mask, or in a cluster, a group whose rows lie behind the last query computes
       with zeros: if it skipped more blocks than there are pipeline stages, it would wait for V of a stage that it
       holds itself. */
    static DEVICE int key_blocks(const WorkTile &t, const Problem &p, int first_row) {
        if (PART == RECTANGLE) return t.b >= 0 ? key_blocks(t, p) : 0;
        return t.b >= 0 && first_row >= 0 && (BLOCKS > 1 || first_row < p.Tq) ? first_row / KEYS + 1 : 0;
    }
};

template<Part PART> using Narrow  = Forward<1, 3, 4, 1, PART>;      /* head sizes to 64: 200 KiB */
template<Part PART> using Wide    = Forward<2, 2, 2, 1, PART>;      /* head sizes to 128: 192 KiB */
template<Part PART> using Cluster = Forward<2, 2, 2, 2, PART>;      /* the same, from CLUSTER_T on */

template<class F> struct Shared {
    uint8_t *memory;
    uint32_t base = shared_address(memory);
    Pipeline<F::STAGES> k = { base + F::K_PIPELINE }, v = { base + F::V_PIPELINE };
    TileQueue<2> tiles = { (WorkTile *)(memory + F::TILES), { base + F::TILE_PIPELINE } };

    /* Each of the Q_STAGES x GROUPS tiles of Q is a pipeline of one stage: the n-th tile is its use n / Q_STAGES. */
    DEVICE Pipeline<1> q(int i) const { return { base + F::Q_PIPELINES + 16 * i }; }
    DEVICE uint32_t q_tile(int i) const { return base + F::Q + i * F::Q_BYTES; }
    DEVICE uint32_t k_tile(int n) const { return base + F::K + k.stage(n) * F::KV_BYTES; }
    DEVICE uint32_t v_tile(int n) const { return base + F::V + v.stage(n) * F::KV_BYTES; }
    DEVICE uint32_t sent_barrier(int n) const { return base + F::SENT_BARRIERS + 8 * (n % F::SENT); }
    /* By a warp, which is done with a stage of K or V: another block of the cluster also writes to it. */
    DEVICE void release(const Pipeline<F::STAGES> &kv, int n) const {
        if (F::BLOCKS == 1) kv.release(n);
        else if (lane_id() < F::BLOCKS) mbarrier_arrive_cluster(map_to_block(kv.empty(n), lane_id()));
    }
    DEVICE void init_barriers() const {
        for (int i = 0; i < F::Q_STAGES * F::GROUPS; i++) q(i).init(1, 4);
        k.init(1, 4 * F::GROUPS * F::BLOCKS);
        v.init(1, 4 * F::GROUPS * F::BLOCKS);
        for (int i = 0; i < F::SENT; i++) mbarrier_init(sent_barrier(i), 1);
        tiles.pipeline.init(1, 4 * F::GROUPS);
        fence_mbarrier_init();
    }
};

/* The n-th tile of a block; in a cluster the first block fetches it and sends it to the other. It is never SENT tiles
   ahead, since its loads of K wait for both. */
template<class F> DEVICE WorkTile next_tile(const Problem &p, const Shared<F> &shared, int n) {
    if constexpr (F::BLOCKS == 1) return fetch_tile(p, F::ROWS, true);
    else {
        WorkTile *const sent = (WorkTile *)(shared.memory + F::SENT_TILES) + n % F::SENT;
        const uint32_t barrier = shared.sent_barrier(n);
        if (cluster_rank() == 0) {
            const WorkTile t = fetch_tile(p, F::ROWS, true);
            st_async(map_to_block(shared_address(sent), 1), t.b, t.h, t.row, t.loaded, map_to_block(barrier, 1));
            return t;
        }
        mbarrier_arrive_expect_tx(barrier, sizeof(WorkTile));
        mbarrier_wait(barrier, n / F::SENT & 1);
        return *sent;
    }
}

/* K or V of a block of keys; in a cluster each block loads one panel and multicasts it to both. */
template<class F> DEVICE void load_kv(const Pipeline<F::STAGES> &pipeline, int n, uint32_t tiles,
                                      const CUtensorMap *map, const WorkTile &t, int row) {
    pipeline.acquire(n);
    if constexpr (F::BLOCKS == 1) load_tile<F::PANELS>(pipeline, n, tiles, F::KV_PANEL, map, t.b, t.h, row);
    else {
        const int panel = cluster_rank();
        mbarrier_arrive_expect_tx(pipeline.full(n), F::KV_BYTES);
        cp_async_bulk_tensor_multicast(tiles + pipeline.stage(n) * F::KV_BYTES + panel * F::KV_PANEL, map,
                                       pipeline.full(n), 3, 64 * panel, t.h, row, t.b);
    }
}

/* One thread. Loads are issued in the order of use, across tiles, too: K of a block, V of the block before, and Q of a
   new tile. */
template<class F> DEVICE void produce(const Problem &p, const Maps &maps, const Shared<F> &shared) {
    prefetch_tensormap(&maps.q);
    prefetch_tensormap(&maps.k);
    prefetch_tensormap(&maps.v);
    WorkTile v_tile = {};
    int v_block = 0, loaded = 0;
    auto load_v = [&](int n) { load_kv<F>(shared.v, n, shared.base + F::V, &maps.v, v_tile, v_block * KEYS); };
    for (int n = 0; ; n++) {
        WorkTile t = next_tile(p, shared, n);
        t.loaded = loaded;
        shared.tiles.publish(n, t);
        if (t.b < 0) break;
        const int last = F::key_blocks(t, p) - 1;
        for (int block = last; block >= 0; block--, loaded++) {
            load_kv<F>(shared.k, loaded, shared.base + F::K, &maps.k, t, block * KEYS);
            if (loaded) load_v(loaded - 1);
            v_tile = t;
            v_block = block;
            if (block == last)
                for (int group = 0; group < F::GROUPS; group++) {
                    const int i = n % F::Q_STAGES * F::GROUPS + group;
                    shared.q(i).acquire(n / F::Q_STAGES);
                    load_tile<F::PANELS>(shared.q(i), n / F::Q_STAGES, shared.q_tile(i), F::Q_PANEL, &maps.q, t.b, t.h,
                                         F::group_row(t, group, n));
                }
        }
    }
    if (loaded) load_v(loaded - 1);
}

/* A thread's fragments and its softmax of two rows. Not members of Consumer: the compiler keeps a struct with arrays in
   memory until loops are unrolled, and optimizes the other members less. */
template<class F> struct Registers {
    uint32_t q[F::Q_IN_REGISTERS ? 16 * F::PANELS : 1];
    uint32_t p[KEYS / 4];               /* P in bf16: the A of O += P V */
    float o[F::PANELS * 32];
    Pair row_max;                       /* in use, in units of log2 */
    float row_sum[2], rescale[2];       /* sum of P; 2^(old - new row_max) */
};

/* A warpgroup: 64 queries. The rows of a thread are `row` and row + 8 of them. */
template<class F> struct Consumer {
    const Problem &p;
    const Maps &maps;
    const Shared<F> &shared;
    float *lse;
    const AttentionDropout &dropout;
    const int group, warp;
    const int row = 16 * warp + lane_id() / 4, column = 2 * (lane_id() % 4);
    const float scale2 = p.scale * LOG2E;
    uint32_t q_tile = 0;
    Registers<F> &r;
    struct { int b, h, row, block; } out = { 0, 0, -1, 0 };     /* tile whose out is to be stored (row -1: none), and
                                                                   its last block */

    bool exact = true;      /* the row maxima of the tile are to be, see thread_max */
    int query = 0;          /* the warp's first */

    DEVICE Consumer(const Problem &p, const Maps &maps, const Shared<F> &shared, float *lse,
                    const AttentionDropout &dropout, int group, int warp, Registers<F> &r)
        : p(p), maps(maps), shared(shared), lse(lse), dropout(dropout), group(group), warp(warp), r(r) {}

    /* S = Q K^T of the first 2N keys of block n */
    template<int N> DEVICE void issue_qk(float (&s)[N], int n) {
        const Descriptor k = make_descriptor(shared.k_tile(n));
        if constexpr (F::Q_IN_REGISTERS) issue_gemm_nt<F::PANELS>(s, r.q, k, F::KV_PANEL);
        else issue_gemm_nt<F::PANELS>(s, make_descriptor(q_tile), F::Q_PANEL, k, F::KV_PANEL);
    }

    /* O += P V of the first `keys` keys of block n */
    DEVICE void issue_pv(int n, int keys) {
        shared.v.wait(n);
        issue_gemm_nn(r.o, r.p, make_descriptor(shared.v_tile(n), F::KV_PANEL), keys);
    }

    /* This thread's maxima of its two rows. Not exact: from the bits as integers, of which VIMNMX3 compares three. If
       all scores are negative, that is the least of them, which is right where row_max >= -SLACK: none of them can
       exceed row_max by SLACK. */
    template<int N> static DEVICE void thread_max(float (&top)[2], const float (&s)[N], bool exact) {
        if (exact) {
            #pragma unroll
            for (int i = 0; i < 2; i++) {
                top[i] = s[2 * i];
                #pragma unroll
                for (int j = 0; j < N / 4; j++) top[i] = fmaxf(top[i], fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
            }
        } else {
            int x[2] = { __float_as_int(s[0]), __float_as_int(s[2]) };
            #pragma unroll
            for (int j = 0; j < N / 4; j++)
                for (int i = 0; i < 2; i++)
                    x[i] = max(max(x[i], __float_as_int(s[4 * j + 2 * i])), __float_as_int(s[4 * j + 2 * i + 1]));
            top[0] = __int_as_float(x[0]);
            top[1] = __int_as_float(x[1]);
        }
    }

    /* Whether row_max has changed and o must be rescaled: rare after the first block. The maxima of the threads of a
       row are compared only then. */
    template<int N> DEVICE bool update_row_max(const float (&s)[N], bool exact) {
        float top[2];
        thread_max(top, s, exact);
        bool grown = false;
        for (int i = 0; i < 2; i++) grown |= top[i] * scale2 > r.row_max[i] + SLACK;
        grown = __any_sync(0xffffffffu, grown);
        if (grown) {
            for (int i = 0; i < 2; i++) {
                top[i] = quad_max(top[i]);
                top[i] = fmaxf(top[i] * scale2 + tie_breaker(top[i]), r.row_max[i]);
                r.rescale[i] = ex2(r.row_max[i] - top[i]);
                r.row_sum[i] *= r.rescale[i];
            }
            r.row_max = Pair(top[0], top[1]);
        }
        return grown;
    }

    /* s = P = 2^(s - row_max). row_sum takes P before it is rounded to bf16: backward recomputes P from lse. */
    template<int N> DEVICE void exponentials(float (&s)[N]) {
        #pragma unroll
        for (int j = 0; j < N / 4; j++)
            for (int e = 0; e < 4; e++) {
                s[4 * j + e] = ex2(s[4 * j + e] * scale2 - r.row_max[e / 2]);
                r.row_sum[e / 2] += s[4 * j + e];
            }
    }

    /* The rest of half a block is 0: where it is the tile's only one, its O += P V takes all 128 keys. */
    template<int N> DEVICE void convert_p(const float (&s)[N]) {
        #pragma unroll
        for (int x = 0; x < KEYS / 4; x++) r.p[x] = x >= N / 2 ? 0 : bf16_pair(s[2 * x], s[2 * x + 1]);
        if constexpr (F::DROPOUT) drop<N>();
    }

    DEVICE uint8_t *warp_mask() const { return shared.memory + F::MASKS + (4 * group + warp) * F::WARP_MASK; }
    DEVICE DropoutMask &head_mask() const { return *(DropoutMask *)(warp_mask() + WARP_MASK_BYTES); }

    /* Next to the exponentials: ptxas interleaves both, and the draw runs while they wait for their unit. */
    DEVICE void draw(int key) {
        if constexpr (F::DROPOUT) draw_mask_sm90<KEYS, 16>(warp_mask(), dropout, head_mask(), query, key);
    }

    /* p = 0 where the mask drops it */
    template<int N> DEVICE void drop() {
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 bits = ((const uint4 *)warp_mask())[lane_id() / 4 + 8 * i];
            #pragma unroll
            for (int x = 0; x < N / 16; x++) {
                const uint32_t word = x == 0 ? bits.x : x == 1 ? bits.y : x == 2 ? bits.z : bits.w;
                const uint32_t even = word << (7 - column), odd = word << (6 - column);
                for (int j = 0; j < 4; j++) r.p[8 * x + 2 * j + i] &= prmt(even, odd, 0xcc88 + 0x1111 * j);
            }
        }
    }

    DEVICE uint32_t staging() const {
        return shared.base + F::OUT + (4 * group + warp) * F::PANELS * EPILOGUE_PANEL;
    }

    /* Begins to copy the rows of the tile's out in bf16 to shared memory, where merge_out expects them; zeros without
       `merges`. */
    DEVICE void prefetch_out(const WorkTile &t, int first_row) {
        const int lane = reload_lane_id();
        wait_for_stores();
        #pragma unroll
        for (int i = 0; i < EPILOGUE_ROWS * 8 * F::PANELS / 32; i++) {
            const int chunk = (32 * i + lane) % (8 * F::PANELS), r = (32 * i + lane) / (8 * F::PANELS);
            const int query = first_row + EPILOGUE_ROWS * warp + r;
            const bool is_there = p.merges && query < p.Tq && 8 * chunk < p.HS;
            const bf16 *const from = (const bf16 *)maps.out.data
                + (is_there ? ((int64_t)t.b * p.Tq + query) * maps.out.pitch + t.h * p.HS + 8 * chunk : 0);
            cp_async_16(staging() + chunk / 8 * EPILOGUE_PANEL + r * ROW_BYTES + swizzled(chunk % 8, r), from,
                        is_there);
        }
    }

    /* out and lse = the merge of what they hold, where p.merges, with this tile's. Rows without a key: 0 and -inf. */
    DEVICE void merge_out() {
        float factor[2], keep[2];
        for (int i = 0; i < 2; i++) {
            const float total = quad_sum(r.row_sum[i]), part = r.row_max[i] + log2f(total);
            const int query = out.row + row + 8 * i;
            float *const l = lse + ((int64_t)out.b * p.NH + out.h) * p.lse_pitch + query;
            const float before = p.merges && query < p.Tq ? *l * LOG2E : -INFINITY;
            const float top = fmaxf(fmaxf(before, part), -FLT_MAX);
            const float weight = ex2(before - top), part_weight = ex2(part - top), sum = weight + part_weight;
            __syncwarp();                   /* all lanes of a row have read lse */
            if (column == 0 && query < p.Tq) *l = LN2 * (top + log2f(sum));
            keep[i] = sum == 0 ? 0 : weight / sum;
            factor[i] = sum == 0 || total == 0 ? 0 : part_weight / sum / total;
        }
        cp_async_wait_all();
        __syncwarp();
        #pragma unroll
        for (int j = 0; j < 4 * F::PANELS; j++) {
            uint32_t x[4];
            ldmatrix(x, staged_rows(staging(), j));
            for (int i = 0; i < 4; i++)
                x[i] = bf16_pair(keep[i % 2] * __uint_as_float(x[i] << 16) + factor[i % 2] * r.o[8 * j + 2 * i],
                                 keep[i % 2] * __uint_as_float(x[i] & 0xffff0000)
                                 + factor[i % 2] * r.o[8 * j + 2 * i + 1]);
            stmatrix(staged_rows(staging(), j), x[0], x[1], x[2], x[3]);
        }
        store_staged_rows<F::PANELS>(staging(), maps.out, out.b, out.h, out.row + EPILOGUE_ROWS * warp, 0);
    }

    /* Epilogue of the tile before: only the first S of the next one has been issued behind its last O += P V. (The wait
       is unconditional: ptxas serialises wgmma across a conditional wait, C7514.) */
    DEVICE void write_out() {
        wgmma_wait_group<1>();
        wgmma_fence_operand(r.o);
        if (out.row < 0) return;
        shared.release(shared.v, out.block);
        if constexpr (F::MERGES)
            if (maps.out.is_bf16) {
                merge_out();
                out.row = -1;
                return;
            }
        float normalise[2];
        for (int i = 0; i < 2; i++) {
            const float total = quad_sum(r.row_sum[i]);
            const int query = out.row + row + 8 * i;
            normalise[i] = F::PART == SQUARE && total == 0 ? 0.0f : (F::DROPOUT ? dropout.scale : 1.0f) / total;
            if (column == 0 && query < p.Tq)
                lse[((int64_t)out.b * p.NH + out.h) * p.lse_pitch + query] = LN2 * (r.row_max[i] + log2f(total));
        }
        store_rows<F::PANELS, F::PART>(p, staging(), maps.out, out.b, out.h, out.row + EPILOGUE_ROWS * warp, 0, r.o,
                                       normalise[0], normalise[1]);
        out.row = -1;
    }

    /* The block on the diagonal, or the last one, of which the first 2N keys are seen, the last 64 of them not all or
       not by all rows. Without `any` S is computed of whatever is in shared memory, and dropped (C7514 again). */
    template<int N> DEVICE void first_block(float (&s)[N], int n, int key, bool any) {
        if (any) shared.k.wait(n);
        issue_qk(s, n);
        write_out();
        wgmma_wait_group<0>();
        wgmma_fence_operand(s);
        if (!any) return;
        shared.release(shared.k, n);
        const int last = F::PART == RECTANGLE ? (p.Tk - 1) % 64 : F::PART == SQUARE ? row + p.q0 : row;
        #pragma unroll
        for (int j = N / 4 - 8; j < N / 4; j++)
            for (int e = 0; e < 4; e++)
                if (8 * j + column + e % 2 - (2 * N - 64) > last + (F::PART == RECTANGLE ? 0 : e / 2 * 8))
                    s[4 * j + e] = -INFINITY;
        r.row_max = Pair(F::NO_MAX, F::NO_MAX);
        r.row_sum[0] = r.row_sum[1] = 0;
        #pragma unroll
        for (int x = 0; x < F::PANELS * 32; x++) r.o[x] = 0;
        update_row_max(s, true);
        exact = __any_sync(0xffffffffu, fminf(r.row_max[0], r.row_max[1]) < -SLACK);
        exponentials(s);
        draw(key);
        convert_p(s);
    }

    /* Block n, from `key` on, and O += P V of the one before, of which `keys` keys are seen. */
    template<int N> DEVICE void next_block(float (&s)[N], int n, int key, int keys) {
        shared.k.wait(n);
        issue_qk(s, n);
        issue_pv(n - 1, keys);
        wgmma_wait_group<1>();
        wgmma_fence_operand(s);
        shared.release(shared.k, n);
        const bool grown = update_row_max(s, F::PART == SQUARE || exact);    /* SQUARE spills otherwise */
        exponentials(s);
        draw(key);
        wgmma_wait_group<0>();
        wgmma_fence_operand(r.o);
        shared.release(shared.v, n - 1);
        convert_p(s);
        if (grown)
            #pragma unroll
            for (int x = 0; x < F::PANELS * 32; x++) r.o[x] *= r.rescale[x / 2 % 2];
    }

    /* Blocks that only the groups further down need */
    DEVICE void skip_blocks(int begin, int end) {
        for (int n = begin; n < end; n++) {
            shared.k.wait(n);
            __syncwarp();       /* all lanes have seen the phase before the stage can be filled again */
            shared.release(shared.k, n);
            shared.v.wait(n);
            __syncwarp();
            shared.release(shared.v, n);
        }
    }

    DEVICE void load_q_fragments() {
        const int lane = F::MERGES ? reload_lane_id() : lane_id(), q_row = 16 * warp + lane % 16;
        #pragma unroll
        for (int x = 0; x < 4 * F::PANELS; x++)
            ldmatrix(r.q + 4 * x, q_tile + x / 4 * F::Q_PANEL + q_row * ROW_BYTES
                                  + swizzled(x % 4 * 2 + lane / 16, q_row));
    }

    DEVICE void consume() {
        float s[KEYS / 2];
        r.row_max = Pair(0, 0);
        r.row_sum[0] = r.row_sum[1] = 0;
        for (int n = 0; ; n++) {
            const WorkTile t = shared.tiles.take_by_warp(n);
            const int first_row = uniform(F::group_row(t, group, n));
            const int blocks = F::key_blocks(t, p, first_row);
            const int first = t.loaded + F::key_blocks(t, p) - blocks;
            auto key_of = [&](int n) { return (first + blocks - 1 - n) * KEYS; };
            const int q_stage = uniform_stage(n) % F::Q_STAGES * F::GROUPS + group;
            const Pipeline<1> q = shared.q(q_stage);
            q_tile = shared.q_tile(q_stage);
            if (t.b >= 0) {
                skip_blocks(t.loaded, first);
                q.wait(n / F::Q_STAGES);
                if constexpr (F::Q_IN_REGISTERS) load_q_fragments();
                if (F::Q_IN_REGISTERS || blocks == 0) {
                    __syncwarp();
                    q.release(0);
                }
            }
            if constexpr (F::DROPOUT) {
                head_mask() = dropout.mask(t.b, t.h);
                query = first_row + 16 * warp;
            }
            int next = first + 1;
            if ((F::PART == RECTANGLE ? (p.Tk - 1) / 64 * 64 : first_row) % KEYS == 0) {    /* half of it is seen */
                float half[KEYS / 4];
                first_block(half, first, key_of(first), blocks > 0);
                if (blocks > 1) next_block(s, next, key_of(next), KEYS / 2), next++;
            } else
                first_block(s, first, key_of(first), blocks > 0);
            if (t.b < 0) break;
            if (blocks == 0) continue;
            #pragma unroll 1
            for (; next < first + blocks; next++) next_block(s, next, key_of(next), KEYS);
            if (!F::Q_IN_REGISTERS) q.release(0);
            if constexpr (F::MERGES)
                if (maps.out.is_bf16) prefetch_out(t, first_row);
            issue_pv(next - 1, KEYS);
            out = { t.b, t.h, first_row, next - 1 };
        }
        wait_for_stores();
    }
};

template<class F> __global__ __cluster_dims__(F::BLOCKS) __launch_bounds__(F::THREADS, 1)
void flash_forward_sm90(const Problem p, const __grid_constant__ Maps maps, float *lse,
                        const AttentionDropout dropout) {
    extern __shared__ __align__(1024) uint8_t memory[];
    const Shared<F> shared = { memory };
    const int group = uniform(threadIdx.x / WARPGROUP) - 1, warp = uniform(threadIdx.x / 32) % 4;
    const int lane = lane_id();
    if (threadIdx.x == 0) shared.init_barriers();
    if (F::BLOCKS > 1) cluster_sync();
    else               __syncthreads();
    if (group < 0) {
        setmaxnreg_dec<F::PRODUCER_REGISTERS>();
        if (warp == 0 && lane == 0) produce<F>(p, maps, shared);
    } else {
        setmaxnreg_inc<F::REGISTERS>();
        Registers<F> registers;
        Consumer<F>(p, maps, shared, lse, dropout, group, warp, registers).consume();
    }
    if (F::BLOCKS > 1) cluster_sync();      /* a block stays while the other multicasts to it */
}

template<class F> static void launch(Problem p, const AttentionSpec *s, const AttentionOperands *o) {
    const Maps maps = { tensor_map("q", s, o->q, GROUP_ROWS), tensor_map("k", s, o->k, KEYS),
                        tensor_map("v", s, o->v, KEYS), make_result("out", s, o->out, OVERWRITE) };
    p.first_row = F::PART == RECTANGLE ? 0 : F::first_row(p.Tq);
    p.tiles = (p.Tq - p.first_row + F::ROWS - 1) / F::ROWS;
    const int blocks = persistent_blocks(p, F::BLOCKS);
    LAUNCH(flash_forward_sm90<F>, blocks, F::THREADS, F::SHARED_BYTES, p, maps, o->lse, s->dropout);
}

template<Part PART> static void launch_part(const AttentionSpec *s, const AttentionOperands *o) {
    Problem p = make_problem(s, o, attention_heads_in_flight(s));
    p.merges = s->out_into == ACCUMULATE;       /* in bf16 */
    if (s->HS <= 64) return launch<Narrow<PART>>(p, s, o);
    if constexpr (PART == WHOLE || PART == RECTANGLE)
        if (s->Tq >= CLUSTER_T && cuda_sm_count() % 2 == 0) return launch<Cluster<PART>>(p, s, o);
    launch<Wide<PART>>(p, s, o);
}

void attention_flash_sm90_forward(const AttentionSpec *s, const AttentionOperands *o) {
    switch (part_of(s, s->out_into)) {
    case WHOLE:     return launch_part<WHOLE>(s, o);
    case DROPPED:   return launch_part<DROPPED>(s, o);
    case SQUARE:    return launch_part<SQUARE>(s, o);
    case RECTANGLE: return launch_part<RECTANGLE>(s, o);
    }
}
