/* kernels/cuda/attention_flash_sm90.cuh - What the two passes of the attention for Hopper share: the problem, how blocks
   come by their tasks, and how results leave the registers.

   A block is one warpgroup of producers, which draw tasks and issue copies, and two or three of consumers, which own 64
   rows each and compute. They meet in mbarriers that are named for what they guard: K_FULL is complete when a K tile
   has arrived, K_EMPTY when all its readers are done with it. Every barrier counts its phases: the n-th use of a ring
   of S stages waits for parity n / S % 2, who fills it for the opposite one, so that the first round finds all stages
   empty. */
#ifndef KERNELS_CUDA_ATTENTION_FLASH_SM90_H
#define KERNELS_CUDA_ATTENTION_FLASH_SM90_H
#include "attention_cuda.h"
#include "ptx_sm90.cuh"

static constexpr float LOG2E = 1.44269504f, LN2 = 0.693147181f;

enum {
    KEYS = 128,         /* of a K or V tile */
    WARPGROUP = 128,    /* threads */
    GROUP_ROWS = 64,    /* that a consumer warpgroup owns: the M of wgmma */
    ROW = 128,          /* bytes of a tile's row, in one panel */
    RESULT_ROWS = 16,   /* that a warp of them holds and stores */
    RESULT_PANEL = RESULT_ROWS * ROW,
};

struct Problem {
    int   NH, HS, T, heads;     /* heads: of all sequences */
    int   section;              /* heads whose tiles run side by side: what they read and add to stays in the L2 */
    int   deterministic;
    float scale;
    /* The number of the next task: zero at the launch and again after it, for it wraps round after so many draws: one
       for each task, and one in vain for each who draws. */
    unsigned *ticket, draws;
};

/* Rows row .. of a head into a tile of PANELS panels of 64 columns. */
template<int PANELS> DEVICE void load_tile(uint32_t to, int panel_bytes, const CUtensorMap *map, uint32_t barrier,
                                           int b, int h, int row) {
    #pragma unroll
    for (int panel = 0; panel < PANELS; panel++)
        tensor_load(to + panel * panel_bytes, map, barrier, 64 * panel, h, row, b);
}

/* ---- tasks: a tile of one head each, drawn by whoever is ready, in one order: what a task may wait for has been drawn
   before it, by somebody who runs. They are drawn as late as can be, when all loads of the task before are on their
   way: drawn a task early, some begin long after others drawn behind them, who wait for them (in the backward pass 8 %
   of the time at T = 1024, 5 % at 2048). ---- */

/* Sequence (-1: there are no more tasks), head, the tile's first row; how many blocks the ring of the forward pass has
   brought before. */
struct Task { int b, h, row, before; };

/* Of a head, when the first one begins at row `first`. */
__host__ __device__ static inline int tiles_of(const Problem &p, int rows, int first) {
    return (p.T - first + rows - 1) / rows;
}

/* The tiles of a section of heads in turn, from the longest work to the shortest: the last queries see the most keys,
   the first keys are seen by the most queries. */
DEVICE Task draw_task(const Problem &p, int rows, int first, bool last_is_longest) {
    const int index = (int)atomicInc(p.ticket, p.draws - 1), tiles = tiles_of(p, rows, first);
    if (index >= p.heads * tiles) return { -1, 0, 0, 0 };
    const int begin = index / (p.section * tiles) * p.section, width = min(p.section, p.heads - begin);
    const int within = index - begin * tiles, order = within / width, head = begin + within % width;
    return { head / p.NH, head % p.NH, first + (last_is_longest ? tiles - 1 - order : order) * rows, 0 };
}

/* The n-th use of a ring of so many stages. */
template<int STAGES> DEVICE int stage_of(int n)  { return n % STAGES; }
template<int STAGES> DEVICE int parity_of(int n) { return n / STAGES & 1; }

/* stage_of<2>, the same in all lanes, and so that the compiler sees it: else each product takes its operands from
   vector registers, which costs 4 % of the time. (By uniform() the backward pass spills.) */
DEVICE int uniform_stage(int n) { return __any_sync(0xffffffffu, stage_of<2>(n)) ? 1 : 0; }

/* The tasks that a block has drawn, n = 0, 1, .. COUNT: two in the forward pass, one in the backward pass; any other
   way ptxas spills 4 bytes. */
template<int COUNT> struct Slots {
    static constexpr int BYTES = COUNT * (int)sizeof(Task);

    volatile Task *slots;
    uint32_t full, empty;       /* barriers */

    __device__ __forceinline__ Slots(uint8_t *slots, uint32_t full, uint32_t empty)
        : slots((volatile Task *)slots), full(full), empty(empty) {}
    __device__ __forceinline__ void init(int readers) const {
        for (int i = 0; i < COUNT; i++) { mbarrier_init(full + 8 * i, 1); mbarrier_init(empty + 8 * i, readers); }
    }
    __device__ __forceinline__ void publish(int n, const Task &t) const {
        volatile Task *const slot = slots + stage_of<COUNT>(n);
        mbarrier_wait(empty + 8 * stage_of<COUNT>(n), parity_of<COUNT>(n) ^ 1);
        slot->b = t.b;
        slot->h = t.h;
        slot->row = t.row;
        slot->before = t.before;
        mbarrier_arrive(full + 8 * stage_of<COUNT>(n));
    }
    /* By one thread, or by all of a warp, which get the same: one reader. */
    __device__ __forceinline__ Task take(int n) const {
        volatile Task *const slot = slots + stage_of<COUNT>(n);
        mbarrier_wait(full + 8 * stage_of<COUNT>(n), parity_of<COUNT>(n));
        const Task t = { slot->b, slot->h, slot->row, slot->before };
        mbarrier_arrive(empty + 8 * stage_of<COUNT>(n));
        return t;
    }
    __device__ __forceinline__ Task take_by_warp(int n) const {
        Task t = {};
        if (threadIdx.x % 32 == 0) t = take(n);
        return { uniform(t.b), uniform(t.h), uniform(t.row), uniform(t.before) };
    }
};

/* ---- products of a warpgroup, started and committed ---- */

/* d (64,2N) = a b^T, both along their 64 PANELS columns; the panels of a tile lie so many bytes apart. */
template<int PANELS, int N> DEVICE void start_scores(float (&d)[N], Operand a, int a_panel, Operand b, int b_panel) {
    wgmma_fence();
    #pragma unroll
    for (int x = 0; x < 4 * PANELS; x++)
        wgmma<ALONG, ALONG>(d, advanced(a, x / 4 * a_panel + x % 4 * 32), advanced(b, x / 4 * b_panel + x % 4 * 32),
                            x > 0);
    wgmma_commit_group();
}

/* The same with a in registers. */
template<int PANELS, int N> DEVICE void start_scores(float (&d)[N], const uint32_t *a, Operand b, int b_panel) {
    wgmma_fence();
    #pragma unroll
    for (int x = 0; x < 4 * PANELS; x++)
        wgmma<ALONG>(d, a + 4 * x, advanced(b, x / 4 * b_panel + x % 4 * 32), x > 0);
    wgmma_commit_group();
}

/* d (64,2N) += a (64,rows) b, b across its rows; a in registers. */
template<int N> DEVICE void start_sum(float (&d)[N], const uint32_t *a, Operand b, int rows) {
    wgmma_fence();
    #pragma unroll
    for (int x = 0; x < rows / 16; x++) wgmma<ACROSS>(d, a + 4 * x, advanced(b, x * 16 * ROW), true);
    wgmma_commit_group();
}

/* ---- results: one warp's RESULT_ROWS rows of 64 PANELS columns, as wgmma leaves them, to bf16(factor x), by way of
   PANELS x RESULT_PANEL bytes of shared memory, 1024-byte aligned and the warp's own. The factors are those of rows
   0 .. 7 and 8 .. 15. ---- */

/* Until all that the warp has stored has left shared memory: its place is free. */
DEVICE void wait_for_stores() {
    if (threadIdx.x % 32 == 0) bulk_wait_group_read<0>();
    __syncwarp();
}

template<int PANELS> DEVICE void store_rows(uint32_t staging, const CUtensorMap *map, int b, int h, int row, int column,
                                            const float (&x)[32 * PANELS], float factor0, float factor1) {
    const int lane = threadIdx.x % 32, r = lane % 16;
    wait_for_stores();
    #pragma unroll
    for (int j = 0; j < 4 * PANELS; j++)
        stmatrix(staging + j / 4 * RESULT_PANEL + r * ROW + (((j % 4 * 2 + lane / 16) ^ r % 8) << 4),
                 cvt_bf16x2(x[8 * j] * factor0,     x[8 * j + 1] * factor0),
                 cvt_bf16x2(x[8 * j + 2] * factor1, x[8 * j + 3] * factor1),
                 cvt_bf16x2(x[8 * j + 4] * factor0, x[8 * j + 5] * factor0),
                 cvt_bf16x2(x[8 * j + 6] * factor1, x[8 * j + 7] * factor1));
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
        #pragma unroll
        for (int panel = 0; panel < PANELS; panel++)
            tensor_store(map, staging + panel * RESULT_PANEL, column + 64 * panel, h, row, b);
        bulk_commit_group();
    }
}

/* ---- host ---- */

/* Tiles of `rows` rows of 64 columns of one head. What lies outside the head or the sequence is read as zero and never
   written. */
CUtensorMap tensor_map(const char *name, const AttentionSpec *s, Tensor t, int rows);
int         multiprocessors(void);
Problem     problem_of(const AttentionSpec *s, int64_t section);     /* but for its tickets */
int         blocks_for(int64_t tasks);      /* as many as multiprocessors, at most one a task */

/* Shapes are checked. state: lse (B,NH,T). work: attention_flash_sm90_workspace bytes, whatever they hold. */
size_t attention_flash_sm90_workspace(const AttentionSpec *s);
void   attention_flash_sm90_forward (const AttentionSpec *s, Tensor out, float *lse, Tensor q, Tensor k, Tensor v);
void   attention_flash_sm90_backward(const AttentionSpec *s, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out,
                                     const float *lse, Tensor q, Tensor k, Tensor v, void *work);

#endif
