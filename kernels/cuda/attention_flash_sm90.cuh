/* attention_flash_sm90.cuh - Shared by the two passes of attention on Hopper (README.md, "Attention for Hopper"):
   pipelines, tile scheduler, the GEMMs of a warpgroup, epilogue. A producer warpgroup fetches tiles and issues TMA
   loads, two or three consumer warpgroups own 64 rows each and compute. */
#pragma once
#include "attention_dropout.cuh"
#include "ptx_sm90.cuh"

enum {
    KEYS = 128,             /* rows of a K or V tile */
    WARPGROUP = 128,        /* threads */
    GROUP_ROWS = 64,        /* rows of a consumer warpgroup: the M of wgmma */
    ROW_BYTES = 128,        /* bytes of a panel's row: 64 columns of bf16 */
    EPILOGUE_ROWS = 16,     /* rows that a warp stores */
    EPILOGUE_PANEL = EPILOGUE_ROWS * ROW_BYTES,
};

/* What a call computes: training's attention, causal, with results in bf16, also with dropout; a causal square with
   results in f32, q0 = 0 or -1, or with out merged; a rectangle without a mask. The kernels are compiled for each: as
   fields of Problem the differences would spill registers. */
enum Part { WHOLE, DROPPED, SQUARE, RECTANGLE };

struct Problem {
    int   NH, HS, Tq, Tk, heads;    /* heads: of all sequences */
    int   q0, lse_pitch;
    int   tiles, first_row;     /* tiles of a head, and the row where the first begins */
    int   heads_in_flight;      /* heads whose tiles run in turn: swizzled_tile */
    int   deterministic;
    float scale;
    /* The next tile. Zero at the launch and after it, since it wraps around at `fetches`: one per tile plus one
       terminating fetch per block. */
    unsigned *tile_counter, fetches;
    int merges;             /* out and lse with what they hold: SQUARE and RECTANGLE, forward */
};

/* STAGES buffers that a producer fills and consumers drain. The n-th use takes stage n % STAGES and completes a phase
   of parity n / STAGES % 2; the producer waits for the opposite parity, so that all stages start out empty. */
template<int STAGES> struct Pipeline {
    uint32_t barriers;      /* address of STAGES full and STAGES empty mbarriers */

    static DEVICE int stage(int n)  { return n % STAGES; }
    static DEVICE int parity(int n) { return n / STAGES & 1; }
    DEVICE uint32_t full(int n)  const { return barriers + 8 * stage(n); }
    DEVICE uint32_t empty(int n) const { return barriers + 8 * STAGES + 8 * stage(n); }
    DEVICE void init(int producers, int consumers) const {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(full(i), producers);
            mbarrier_init(empty(i), consumers);
        }
    }
    DEVICE void acquire(int n) const { mbarrier_wait(empty(n), parity(n) ^ 1); }
    DEVICE void wait(int n)    const { mbarrier_wait(full(n), parity(n)); }
    /* By a warp, which is done reading the stage. */
    DEVICE void release(int n) const { if (lane_id() == 0) mbarrier_arrive(empty(n)); }
    /* By a warp: what its lanes have written to the stage can be read by wgmma and TMA. */
    DEVICE void commit(int n) const {
        fence_proxy_async();
        __syncwarp();
        if (lane_id() == 0) mbarrier_arrive(full(n));
    }
};

/* Stage of a two-stage pipeline. The vote makes it uniform: otherwise each wgmma takes its operands from vector
   registers, which costs 4 % of the time. (With uniform() the backward pass spills.) */
DEVICE int uniform_stage(int n) { return __any_sync(0xffffffffu, Pipeline<2>::stage(n)) ? 1 : 0; }

/* Loads rows `row` .. of a head to the n-th stage of a pipeline, whose stages begin at `tiles`. The stage is full when
   more_bytes have been loaded as well. */
template<int PANELS, int STAGES>
DEVICE void load_tile(const Pipeline<STAGES> &pipeline, int n, uint32_t tiles, int panel_bytes, const CUtensorMap *map,
                      int b, int h, int row, int more_bytes = 0) {
    const uint32_t to = tiles + pipeline.stage(n) * (PANELS * panel_bytes);
    mbarrier_arrive_expect_tx(pipeline.full(n), PANELS * panel_bytes + more_bytes);
    for (int panel = 0; panel < PANELS; panel++)
        cp_async_bulk_tensor_load(to + panel * panel_bytes, map, pipeline.full(n), 64 * panel, h, row, b);
}

/* ---- tile scheduler: a tile may wait for those fetched before it. The producer fetches one when all loads of the one
   before are issued; one tile earlier, some tiles begin long after later ones that wait for them (8 % of the backward
   pass at T = 1024, 5 % at 2048). ---- */

/* b: sequence, -1 = no tile is left; row: the first; loaded: uses of the K and V pipelines before it (forward pass). */
struct WorkTile { int b, h, row, loaded; };

DEVICE WorkTile fetch_tile(const Problem &p, int rows, bool last_is_longest) {
    const int index = (int)atomicInc(p.tile_counter, p.fetches - 1);
    if (index >= p.heads * p.tiles) return { -1, 0, 0, 0 };
    const TileIndex t = swizzled_tile(index, p.heads, p.heads_in_flight, p.tiles, last_is_longest);
    return { t.head / p.NH, t.head % p.NH, p.first_row + t.tile * rows, 0 };
}

/* Passes the tiles that a block has fetched from the producer to its readers, through shared memory. Two stages in the
   forward pass, one in the backward pass; ptxas spills 4 bytes with any other choice. */
template<int STAGES> struct TileQueue {
    WorkTile *tiles;
    Pipeline<STAGES> pipeline;

    DEVICE void publish(int n, const WorkTile &t) const {
        pipeline.acquire(n);
        tiles[pipeline.stage(n)] = t;
        mbarrier_arrive(pipeline.full(n));
    }
    /* By one thread: one reader. */
    DEVICE WorkTile take(int n) const {
        pipeline.wait(n);
        const WorkTile t = tiles[pipeline.stage(n)];
        mbarrier_arrive(pipeline.empty(n));
        return t;
    }
    /* By a warp: one reader; all lanes get the tile. */
    DEVICE WorkTile take_by_warp(int n) const {
        WorkTile t = {};
        if (lane_id() == 0) t = take(n);
        return { uniform(t.b), uniform(t.h), uniform(t.row), uniform(t.loaded) };
    }
};

/* ---- GEMMs of a warpgroup, issued and committed but not waited for; n, t: not transposed, transposed (BLAS) ---- */

/* d (64,2N) = a b^T over 64 PANELS columns; both operands K-major in shared memory. */
template<int PANELS, int N>
DEVICE void issue_gemm_nt(float (&d)[N], Descriptor a, int a_panel, Descriptor b, int b_panel) {
    wgmma_fence();
    #pragma unroll
    for (int x = 0; x < 4 * PANELS; x++)
        wgmma<K_MAJOR, K_MAJOR>(d, advance(a, x / 4 * a_panel + x % 4 * 32), advance(b, x / 4 * b_panel + x % 4 * 32),
                                x > 0);
    wgmma_commit_group();
}

/* The same with a in registers. */
template<int PANELS, int N> DEVICE void issue_gemm_nt(float (&d)[N], const uint32_t *a, Descriptor b, int b_panel) {
    wgmma_fence();
    #pragma unroll
    for (int x = 0; x < 4 * PANELS; x++)
        wgmma<K_MAJOR>(d, a + 4 * x, advance(b, x / 4 * b_panel + x % 4 * 32), x > 0);
    wgmma_commit_group();
}

/* d (64,2N) += a b over `k` columns of a, in registers, and rows of b, MN-major in shared memory. */
template<int N> DEVICE void issue_gemm_nn(float (&d)[N], const uint32_t *a, Descriptor b, int k) {
    wgmma_fence();
    #pragma unroll
    for (int x = 0; x < k / 16; x++) wgmma<MN_MAJOR>(d, a + 4 * x, advance(b, x * 16 * ROW_BYTES), true);
    wgmma_commit_group();
}

/* lane_id(), but what is computed from it is not kept for the next tile: for where that spills */
DEVICE int reload_lane_id() {
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

/* Offset of a 16-byte chunk in its row of a panel */
DEVICE int swizzled(int chunk, int row) { return (chunk ^ row % 8) << 4; }

/* ---- epilogue ---- */

/* Waits until TMA has read all that this warp stores: its shared memory can be written again. */
DEVICE void wait_for_stores() {
    if (lane_id() == 0) cp_async_bulk_wait_group_read<0>();
    __syncwarp();
}

/* A result of T rows per sequence: = by TMA in bf16, or = or += at `data` in f32. */
struct Result {
    CUtensorMap map;
    float      *data;
    int64_t     pitch;
    int         T;
    Into        into;
    bool        is_bf16;
};

/* f(n, i, at) for each pair of neighbouring elements of a thread: x[n] and x[n + 1] of 16 rows of 64 PANELS columns, in
   row i of its two, `at` elements behind to.data. In f32 the four threads of a quad make whole sectors of 32 bytes. */
template<int PANELS, class F>
DEVICE void each_pair(const Problem &p, const Result &to, int b, int h, int row, int column, F f) {
    row += lane_id() / 4;
    const int64_t at = ((int64_t)b * to.T + row) * to.pitch + h * p.HS + column + lane_id() % 4 * 2;
    #pragma unroll
    for (int i = 0; i < 2; i++)
        #pragma unroll
        for (int j = 0; j < 8 * PANELS; j++)
            if (row + 8 * i < to.T && column + 8 * j < p.HS) f(4 * j + 2 * i, i, at + 8 * i * to.pitch + 8 * j);
}

template<int PANELS> DEVICE void store_f32_rows(const Problem &p, const Result &to, int b, int h, int row, int column,
                                                const float (&x)[32 * PANELS], float factor0, float factor1) {
    auto pair = [&](int n, int i) {
        return make_float2(x[n] * (i ? factor1 : factor0), x[n + 1] * (i ? factor1 : factor0));
    };
    if (to.into == ACCUMULATE)
        each_pair<PANELS>(p, to, b, h, row, column, [&](int n, int i, int64_t at) {
            const float2 y = pair(n, i);
            red_add(to.data + at, y.x, y.y);
        });
    else
        each_pair<PANELS>(p, to, b, h, row, column, [&](int n, int i, int64_t at) {
            *(float2 *)(to.data + at) = pair(n, i);
        });
}

/* In bf16 a warp stores by way of PANELS x EPILOGUE_PANEL bytes of shared memory of its own, 1024-byte aligned. The
   address of 16 bytes that a lane gives to ldmatrix and stmatrix: of the j-th 16 columns of 16 rows. (store_rows has
   it, too: if it calls this, ptxas schedules training's kernels differently.) */
DEVICE uint32_t staged_rows(uint32_t staging, int j) {
    const int r = lane_id() % EPILOGUE_ROWS;
    return staging + j / 4 * EPILOGUE_PANEL + r * ROW_BYTES + swizzled(j % 4 * 2 + lane_id() / EPILOGUE_ROWS, r);
}

template<int PANELS>
DEVICE void store_staged_rows(uint32_t staging, const Result &to, int b, int h, int row, int column) {
    fence_proxy_async();
    __syncwarp();
    if (lane_id() == 0) {
        for (int panel = 0; panel < PANELS; panel++)
            cp_async_bulk_tensor_store(&to.map, staging + panel * EPILOGUE_PANEL, column + 64 * panel, h, row, b);
        cp_async_bulk_commit_group();
    }
}

/* A warp stores factor x, EPILOGUE_ROWS rows of 64 PANELS columns. factor0 is for rows 0 .. 7, factor1 for rows
   8 .. 15. */
template<int PANELS, Part PART>
DEVICE void store_rows(const Problem &p, uint32_t staging, const Result &to, int b, int h, int row, int column,
                       const float (&x)[32 * PANELS], float factor0, float factor1) {
    if constexpr (PART == SQUARE || PART == RECTANGLE)
        if (!to.is_bf16) {
            store_f32_rows<PANELS>(p, to, b, h, row, column, x, factor0, factor1);
            return;
        }
    const int r = lane_id() % 16;
    wait_for_stores();
    #pragma unroll
    for (int j = 0; j < 4 * PANELS; j++)
        stmatrix(staging + j / 4 * EPILOGUE_PANEL + r * ROW_BYTES + swizzled(j % 4 * 2 + lane_id() / 16, r),
                 bf16_pair(x[8 * j] * factor0,     x[8 * j + 1] * factor0),
                 bf16_pair(x[8 * j + 2] * factor1, x[8 * j + 3] * factor1),
                 bf16_pair(x[8 * j + 4] * factor0, x[8 * j + 5] * factor0),
                 bf16_pair(x[8 * j + 6] * factor1, x[8 * j + 7] * factor1));
    store_staged_rows<PANELS>(staging, to, b, h, row, column);
}

/* ---- dropout ---- */

/* draw_mask without spills: between the instructions around it, in the registers that they leave */
template<int KEYS, int QUERIES> DEVICE void draw_mask_sm90(uint8_t *mask, const AttentionDropout &dropout,
                                                           DropoutMask of_head, int query, int key) {
    const int lane = reload_lane_id(), row = lane / (KEYS / 8), column = lane % (KEYS / 8);
    const Random64 kept = dropout_draw(of_head, query / 8 + row, key / 8 + column, dropout.digits);
    store_block<KEYS, QUERIES>(mask, kept, row, column);
}

/* ---- host ---- */

/* TMA tiles of `rows` rows and 64 columns of one head. Outside the head and the sequence zeros are read and nothing is
   written. Fails, like make_result, unless all rows of t begin on 16 bytes. */
CUtensorMap tensor_map(const char *name, const AttentionSpec *s, Tensor t, int rows);
Result      make_result(const char *name, const AttentionSpec *s, Tensor t, Into into);
Part        part_of(const AttentionSpec *s, Into into);     /* into: OVERWRITE in the backward pass */
/* The rest is each pass's. */
Problem     make_problem(const AttentionSpec *s, const AttentionOperands *o, int64_t heads_in_flight);
int         persistent_blocks(Problem &p, int cluster);     /* one per SM, at most one cluster per tile; sets fetches */

size_t attention_flash_sm90_workspace(const AttentionSpec *s);
void   attention_flash_sm90_forward (const AttentionSpec *s, const AttentionOperands *o);
void   attention_flash_sm90_backward(const AttentionSpec *s, const AttentionOperands *o);
