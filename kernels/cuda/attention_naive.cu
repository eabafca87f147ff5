/* attention_naive.cu - Attention as the formula says, all of P in memory: the baseline for flash. Batched
   GEMMs by cuBLAS over the heads of many sequences, with q, k and v as they lie, and one softmax kernel each way.

   Memory traffic bounds the time: of the (T,T) matrices of a head forward writes and reads the scores and P, backward
   reads P twice, writes and reads dP, writes dS and reads it twice. P and dS have the data type of the run, scores and
   dP are f32: rounded to bf16, a score of 9 would be off by up to 0.03, and P by 3 %. With a causal mask the rows are
   divided into blocks, whose GEMMs take only the keys up to the end of the block: 62 % of the matrices at T = 1024. */
#include <cublas_v2.h>
#include "attention_cuda.h"
#include "ptx.cuh"

enum {
    BLOCK_ROWS = 256,       /* at least; fewer would save bytes, but leave PV and dQ few tiles */
    BLOCKS_MAX = 8,
    GROUP_ROWS = 192 * 256, /* rows of a launch: 384 tiles of 128, three for each SM of an H200 */
    PACKS      = 8,         /* of 4 columns, that a thread keeps in registers */
    WARP_KEYS  = 32 * 4 * PACKS,
    WARPS      = 4,         /* of a block with a row for each warp */
    WARPS_MAX  = 16,        /* of a row */
    KEYS_MAX   = WARPS_MAX * WARP_KEYS
};

/* ---- the plan: blocks of rows, and groups of sequences that share a launch and the workspace */

struct Plan {
    int rows, blocks, group;    /* rows of a block; sequences of a group */
    int64_t pitch, square;      /* elements of a row and of a matrix (Tq,Tk): rows begin on 16 bytes whatever Tk is */
};

static Plan plan_of(const AttentionSpec *s) {
    const bool triangle = s->causal && !s->position && s->q0 == 0 && s->Tq == s->Tk;
    const int64_t rows = ceil_div(ceil_div(s->Tq, BLOCKS_MAX), BLOCK_ROWS) * BLOCK_ROWS;
    Plan p = {};
    p.rows = triangle && rows < s->Tq ? (int)rows : s->Tq;
    p.blocks = (int)ceil_div(s->Tq, p.rows);
    const int64_t fitting = GROUP_ROWS / ((int64_t)s->NH * p.rows), max = fitting < 1 ? 1 : fitting;
    p.group = (int)ceil_div(s->B, ceil_div(s->B, max));
    p.pitch = ceil_div(s->Tk, 8) * 8;
    p.square = s->Tq * p.pitch;
    return p;
}

/* Rows first .. first + rows - 1 of the matrices, whose columns from width on are not computed: no row sees them. The
   keys of a column block are those first .. first + keys - 1, and rows from first on see them. */
struct Block { int first, rows, keys, width; };

static Block block_of(const AttentionSpec *s, const Plan &p, int index) {
    const int first = index * p.rows, rows = first + p.rows < s->Tq ? p.rows : s->Tq - first;
    return p.blocks == 1 ? Block{ 0, s->Tq, s->Tk, s->Tk } : Block{ first, rows, rows, first + rows };
}

/* ---- softmax: one warp per row, or a block per row of more than WARP_KEYS; f32 inside, a fixed order of every sum */

/* The matrices (Tq,Tk) of the heads of a group, pitch elements from row to row, stride from head to head. */
template <class T> struct Matrices { T *data; int64_t stride, pitch; };

/* This thread's row of a block, which sees the first so many keys. */
struct Row { int matrix, row, seen; };

__device__ inline Row row_of_thread(const AttentionSpec &s, int diagonal, const Block &block) {
    const int i = blockIdx.x * blockDim.y + threadIdx.y, row = block.first + i;
    const int position = s.position ? *s.position : 0;
    return { (int)blockIdx.y, i < block.rows ? row : -1, max(0, min(diagonal + position + row + 1, s.Tk)) };
}

template <class T> __device__ inline T *row_in(const Matrices<T> &m, const Row &r, int first_row) {
    return m.data + r.matrix * m.stride + (r.row - first_row) * m.pitch;
}

__device__ inline float row_max_of(float x) { return blockDim.x == 32 ? warp_max(x) : block_max(x); }
__device__ inline float row_sum_of(float x) { return blockDim.x == 32 ? warp_sum(x) : block_sum(x); }

/* A warp has WARP_KEYS neighbouring columns: the first of its pack p, and of this thread's. */
__device__ inline int columns_before(int p) { return (int)threadIdx.x / 32 * WARP_KEYS + 128 * p; }
__device__ inline int column_of(int p)      { return columns_before(p) + 4 * ((int)threadIdx.x % 32); }

/* What no GEMM has written may be NaN. */
__device__ inline void mask_unseen(float (&f)[4], const Row &r, int column, float value) {
    #pragma unroll
    for (int i = 0; i < 4; i++)
        if (column + i >= r.seen) f[i] = value;
}

/* 4 neighbours, kept as they lie in memory */
template <class T> struct Four;
template <> struct Four<float> {
    float4 bits;
    __device__ inline void to_float(float (&f)[4]) const { f[0] = bits.x; f[1] = bits.y; f[2] = bits.z; f[3] = bits.w; }
};
template <> struct Four<bf16> {
    uint2 bits;
    __device__ inline void to_float(float (&f)[4]) const {
        f[0] = __uint_as_float(bits.x << 16);
        f[1] = __uint_as_float(bits.x & 0xffff0000u);
        f[2] = __uint_as_float(bits.y << 16);
        f[3] = __uint_as_float(bits.y & 0xffff0000u);
    }
};
template <class T> __device__ inline Four<T> load_four(const T *from) {
    return *(const Four<T> *)__builtin_assume_aligned(from, 4 * sizeof(T));
}

extern __shared__ Random64 mask_of_rows[];      /* of this thread block's 8 rows, by columns / 8 */

/* Draws the mask. Every thread calls it. A thread block with one long row draws 7 more rows that it does not need. */
__device__ inline void draw_mask(const AttentionSpec &s, int first_sequence, const Block &block) {
    const int matrix = blockIdx.y, first_row = block.first + blockIdx.x * blockDim.y;
    const uint64_t sequence = (s.dropout.sequence ? *s.dropout.sequence : 0) + first_sequence + matrix / s.NH;
    const DropoutMask m = dropout_mask(s.dropout.seed, s.dropout.site, sequence, matrix % s.NH);
    const uint32_t threshold = dropout_threshold(s.dropout.rate);
    for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < (block.width + 7) / 8; i += blockDim.x * blockDim.y)
        mask_of_rows[i] = dropout_block(m, first_row / 8, i, threshold);
    __syncthreads();
}

/* Zeroes what is dropped of the 4 columns of a row from this one on. */
__device__ inline void drop(float (&f)[4], int row, int column) {
    const uint32_t kept = ((const uint8_t *)&mask_of_rows[column / 8])[row % 8] >> column % 8;
    #pragma unroll
    for (int i = 0; i < 4; i++)
        if (!(kept >> i & 1)) f[i] = 0;
}

/* P = softmax(scale scores) and lse; columns after the last key that is seen become 0. With dropout also P without
   what is dropped. P may be scores: each thread reads its elements before it writes them, and no other thread does. */
template <class T, bool DROPOUT> static __global__ void __launch_bounds__(32 * WARPS_MAX)
softmax_kernel(AttentionSpec spec, int diagonal, Block block, int first_sequence, Matrices<T> P, Matrices<T> dropped,
               float *lse, int64_t lse_pitch, Matrices<const float> scores) {
    constexpr float UNIT = sizeof(T) == 4 ? 1 : LOG2E;      /* bf16: powers of two, with an error far below its own */
    const Row r = row_of_thread(spec, diagonal, block);
    if constexpr (DROPOUT) draw_mask(spec, first_sequence, block);
    if (r.row < 0) return;
    const float *s = row_in(scores, r, block.first) + column_of(0);
    T *p_row = row_in(P, r, 0) + column_of(0);
    float f[PACKS][4] = {}, row_max = -INFINITY, total = 0;
    #pragma unroll
    for (int p = 0; p < PACKS; p++)
        if (column_of(p) < r.seen) load_floats(f[p], s + 128 * p);
    #pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if (columns_before(p) >= r.seen) break;
        #pragma unroll
        for (int i = 0; i < 4; i++) f[p][i] *= UNIT * spec.scale;
        if (columns_before(p + 1) > r.seen) mask_unseen(f[p], r, column_of(p), -INFINITY);
        #pragma unroll
        for (int i = 0; i < 4; i++) row_max = fmaxf(row_max, f[p][i]);
    }
    row_max = row_max_of(row_max);
    #pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if (columns_before(p) >= r.seen) break;
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const float x = f[p][i] - row_max;
            total += f[p][i] = sizeof(T) == 4 ? expf(x) : ex2(x);
        }
    }
    total = row_sum_of(total);
    if (threadIdx.x == 0)               /* -infinity where no key is seen */
        lse[r.matrix * lse_pitch + r.row] = row_max * (1 / UNIT) + logf(total);
    const float normalise = r.seen ? 1 / total : 0;
    #pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if (columns_before(p) >= block.width) break;
        #pragma unroll
        for (int i = 0; i < 4; i++) f[p][i] *= normalise;
        if (column_of(p) < block.width) store_floats(p_row + 128 * p, f[p]);
        if (DROPOUT && column_of(p) < block.width) {
            drop(f[p], r.row, column_of(p));
            store_floats(row_in(dropped, r, 0) + column_of(p), f[p]);
        }
    }
}

/* P without what is dropped */
template <class T, bool> static __global__ void __launch_bounds__(32 * WARPS_MAX)
dropout_kernel(AttentionSpec spec, int diagonal, Block block, int first_sequence, Matrices<T> dropped,
               Matrices<const T> P) {
    const Row r = row_of_thread(spec, diagonal, block);
    draw_mask(spec, first_sequence, block);
    if (r.row < 0) return;
    #pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if (column_of(p) >= block.width) break;
        float f[4];
        load_four(row_in(P, r, 0) + column_of(p)).to_float(f);
        drop(f, r.row, column_of(p));
        store_floats(row_in(dropped, r, 0) + column_of(p), f);
    }
}

/* dS = scale P (dP - rowsum(P dP)), 0 where P is, also after the last key; dP = 0 where P was dropped. dS may be dP, as
   above. */
template <class T, bool DROPOUT> static __global__ void __launch_bounds__(32 * WARPS_MAX)
softmax_backward_kernel(AttentionSpec spec, int diagonal, Block block, int first_sequence, Matrices<T> dS,
                        Matrices<const T> P, Matrices<const float> dP) {
    const Row r = row_of_thread(spec, diagonal, block);
    if constexpr (DROPOUT) draw_mask(spec, first_sequence, block);
    if (r.row < 0) return;
    const T *p_row = row_in(P, r, 0) + column_of(0);
    const float *dp_row = row_in(dP, r, block.first) + column_of(0);
    T *ds_row = row_in(dS, r, 0) + column_of(0);
    Four<T> probabilities[PACKS] = {};
    float f[PACKS][4] = {}, delta = 0;
    #pragma unroll
    for (int p = 0; p < PACKS; p++)
        if (column_of(p) < r.seen) {
            load_floats(f[p], dp_row + 128 * p);
            probabilities[p] = load_four(p_row + 128 * p);
        }
    #pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if (columns_before(p) >= r.seen) break;
        if (columns_before(p + 1) > r.seen) mask_unseen(f[p], r, column_of(p), 0);
        if constexpr (DROPOUT) drop(f[p], r.row, column_of(p));
        float g[4];
        probabilities[p].to_float(g);
        #pragma unroll
        for (int i = 0; i < 4; i++) delta += g[i] * f[p][i];
    }
    delta = row_sum_of(delta);
    #pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if (columns_before(p) >= block.width) break;
        float g[4];
        probabilities[p].to_float(g);
        #pragma unroll
        for (int i = 0; i < 4; i++) f[p][i] = spec.scale * g[i] * (f[p][i] - delta);
        if (column_of(p) < block.width) store_floats(ds_row + 128 * p, f[p]);
    }
}

/* Starts a kernel<T, dropout> for the rows of a block of so many matrices. A warp reads the mask of 128 columns. */
#define LAUNCH_ROWS(kernel, dropout, matrices, block, ...) do { \
    const int warps_ = (int)ceil_div((block).width, WARP_KEYS), rows_ = warps_ > 1 ? 1 : (dropout) ? 8 : WARPS; \
    const dim3 grid_((unsigned)ceil_div((block).rows, rows_), (unsigned)(matrices)), threads_(32 * warps_, rows_); \
    if (dropout) LAUNCH((kernel<T, true>), grid_, threads_, ceil_div((block).width, 128) * 128, __VA_ARGS__); \
    else         LAUNCH((kernel<T, false>), grid_, threads_, 0, __VA_ARGS__); \
} while (0)

/* ---- GEMMs by cuBLAS */

/* A matrix for each head of each sequence, as a GEMM of a block of rows takes it: strides in elements, step from block
   to block. After so many sequences the memory is used again. */
struct Operand { char *data; DType dtype; int64_t pitch, head, sequence, step; int sequences; };

__host__ __device__ inline char *address_of(const Operand &x, int sequence, int head, int block) {
    return x.data + (sequence % x.sequences * x.sequence + head * x.head + block * x.step) * (x.dtype == F32 ? 4 : 2);
}

enum { OPERANDS_MAX = 11 };
struct Operands { Operand x[OPERANDS_MAX]; };

/* pointers (operands,blocks,B,NH) */
static __global__ void pointers_kernel(char **pointers, Operands operands, int B, int NH) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, block = blockIdx.y, operand = blockIdx.z;
    if (i >= B * NH) return;
    pointers[((int64_t)operand * gridDim.y + block) * B * NH + i] =
        address_of(operands.x[operand], i / NH, i % NH, block);
}

static size_t pointer_bytes(const AttentionSpec *s, const Plan &p) {
    return ceil_div((int64_t)OPERANDS_MAX * p.blocks * s->B * s->NH, 2) * 2 * sizeof(void *);
}

/* A group of sequences: the first, and how many. */
struct Group { int first, count; };

/* The GEMMs of a pass. */
struct Gemms { const AttentionSpec *s; Plan plan; Operands operands; char **pointers; };

static cublasHandle_t cublas;

static void open_cublas(void) {
    if (!cublas) {
        CUBLAS(cublasCreate(&cublas));
        CUBLAS(cublasSetMathMode(cublas, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
    }
    CUBLAS(cublasSetStream(cublas, cuda_stream));
}

static bool on_16_bytes(const Operand &x) {
    const int64_t bytes = (int64_t)dtype_bytes(x.dtype);
    return (uintptr_t)x.data % 16 == 0 && x.pitch * bytes % 16 == 0 && x.head * bytes % 16 == 0;
}

/* Heads and sequences are two strides, and cuBLAS knows one: the matrices of several sequences are given by pointers,
   which cuBLAS expects on 16 bytes. pointers == NULL: one call per sequence. */
static Gemms gemms_of(const AttentionSpec *s, const Plan &plan, const Operand *operands, int count, void *pointers) {
    Gemms g = { s, plan, {}, plan.group > 1 ? (char **)pointers : NULL };
    for (int i = 0; i < count; i++) {
        g.operands.x[i] = operands[i];
        if (!on_16_bytes(operands[i])) g.pointers = NULL;
    }
    if (g.pointers)
        LAUNCH(pointers_kernel, dim3((unsigned)ceil_div(s->B * s->NH, 128), (unsigned)plan.blocks, (unsigned)count),
               128, 0, g.pointers, g.operands, s->B, s->NH);
    open_cublas();
    return g;
}

enum Layout { ROW_MAJOR, COLUMN_MAJOR };

/* c (M,N) = or += alpha a b for each head of a group, of operands by their number. cuBLAS is column-major: it sees the
   transposed matrices, and c^T = b^T a^T. */
static void matmul(const Gemms &g, Group group, int block, int c, int M, int N, int K, float alpha,
                   int a, Layout a_layout, int b, Layout b_layout, Into into) {
    const Operand &A = g.operands.x[a], &B = g.operands.x[b], &C = g.operands.x[c];
    const cublasOperation_t op_a = a_layout == COLUMN_MAJOR ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_b = b_layout == COLUMN_MAJOR ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasComputeType_t compute = g.s->dtype == F32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
    const float beta = into == ACCUMULATE;
    const int NH = g.s->NH;
    if (g.pointers) {
        const auto pointers = [&](int operand) {
            return (void **)g.pointers + (((int64_t)operand * g.plan.blocks + block) * g.s->B + group.first) * NH;
        };
        CUBLAS(cublasGemmBatchedEx(cublas, op_b, op_a, N, M, K, &alpha, pointers(b), cuda_type(B.dtype), (int)B.pitch,
                                   pointers(a), cuda_type(A.dtype), (int)A.pitch, &beta,
                                   pointers(c), cuda_type(C.dtype), (int)C.pitch, group.count * NH, compute,
                                   CUBLAS_GEMM_DEFAULT));
        return;
    }
    for (int i = group.first; i < group.first + group.count; i++)
        CUBLAS(cublasGemmStridedBatchedEx(cublas, op_b, op_a, N, M, K, &alpha,
                                          address_of(B, i, 0, block), cuda_type(B.dtype), (int)B.pitch, B.head,
                                          address_of(A, i, 0, block), cuda_type(A.dtype), (int)A.pitch, A.head, &beta,
                                          address_of(C, i, 0, block), cuda_type(C.dtype), (int)C.pitch, C.head, NH,
                                          compute, CUBLAS_GEMM_DEFAULT));
}

/* q, k, v and what has their shape; rows: a block takes its own, otherwise all. */
static Operand heads_of(Tensor t, const AttentionSpec *s, int64_t rows) {
    return { (char *)t.data, t.dtype, t.pitch, s->HS, t.dim[1] * t.pitch, rows * t.pitch, s->B };
}

/* Matrices (rows,Tk) of so many sequences, a block from row `row` and column `column` times its number on. */
static Operand squares_of(const void *data, DType dtype, const AttentionSpec *s, const Plan &p, int64_t rows,
                          int64_t row, int64_t column, int sequences) {
    return { (char *)data, dtype, p.pitch, rows * p.pitch, s->NH * rows * p.pitch, row * p.pitch + column, sequences };
}

/* ---- the two passes */

static size_t probability_bytes(const AttentionSpec *s) {
    return (size_t)s->B * (size_t)s->NH * (size_t)plan_of(s).square * dtype_bytes(s->dtype);
}

/* The pointers; of a group of sequences dS, before it P without what is dropped; of a block of their rows the scores or
   dP in f32. In an f32 run the scores lie in P, and dP in dS. */
struct Workspace { char *pointers, *squares, *scores; size_t bytes; };

static Workspace workspace_of(const AttentionSpec *s, void *work) {
    const Plan p = plan_of(s);
    const size_t heads = (size_t)p.group * (size_t)s->NH, pointers = pointer_bytes(s, p);
    const size_t squares = heads * (size_t)p.square * dtype_bytes(s->dtype);
    const size_t scores = s->dtype == F32 ? 0 : heads * (size_t)(p.rows * p.pitch) * sizeof(float);
    char *const start = (char *)work;
    return { start, start + pointers, start + pointers + squares, pointers + squares + scores };
}

static size_t workspace_bytes(const AttentionSpec *s) {
    return workspace_of(s, NULL).bytes + attention_part_bytes(s);
}

/* f(group, matrices of the group) for all groups of sequences */
template <class F> static void for_each_group(const AttentionSpec *s, const Plan &p, F f) {
    for (int first = 0; first < s->B; first += p.group)
        f(Group{ first, first + p.group < s->B ? p.group : s->B - first });
}

/* P = softmax(scale q k^T), out = P v; with dropout out = (M o P) v / keep */
template <class T>
static void forward_as(const AttentionSpec *s, Tensor out, Tensor lse, T *kept, Tensor q, Tensor k, Tensor v,
                       void *work) {
    enum { Q, K, V, OUT, SCORES, P_V, OPERANDS };
    const Plan plan = plan_of(s);
    const Workspace w = workspace_of(s, work);
    const bool drops = s->dropout.rate > 0;
    const int rows = plan.rows, diagonal = attention_diagonal(s);
    const Operand operands[OPERANDS] = {
        heads_of(q, s, rows), heads_of(k, s, 0), heads_of(v, s, 0), heads_of(out, s, rows),
        s->dtype == F32 ? squares_of(kept, F32, s, plan, s->Tq, rows, 0, s->B)
                        : squares_of(w.scores, F32, s, plan, rows, 0, 0, plan.group),
        drops ? squares_of(w.squares, s->dtype, s, plan, s->Tq, rows, 0, plan.group)
              : squares_of(kept, s->dtype, s, plan, s->Tq, rows, 0, s->B)
    };
    const Gemms g = gemms_of(s, plan, operands, OPERANDS, w.pointers);
    const float keep_scale = drops ? dropout_scale(s->dropout.rate) : 1;
    for_each_group(s, plan, [&](Group group) {
        const int heads = group.count * s->NH;
        const int64_t first = (int64_t)group.first * s->NH;
        const Operand &x = operands[SCORES];
        const Matrices<T> P = { kept + first * plan.square, plan.square, plan.pitch };
        const Matrices<T> dropped = { (T *)w.squares, plan.square, plan.pitch };
        for (int i = 0; i < plan.blocks; i++) {
            const Block b = block_of(s, plan, i);
            const Matrices<const float> scores = { (float *)address_of(x, group.first, 0, i), x.head, plan.pitch };
            matmul(g, group, i, SCORES, b.rows, b.width, s->HS, 1, Q, ROW_MAJOR, K, COLUMN_MAJOR, OVERWRITE);
            LAUNCH_ROWS(softmax_kernel, drops, heads, b, *s, diagonal, b, group.first, P, dropped,
                        (float *)lse.data + first * lse.pitch, lse.pitch, scores);
            matmul(g, group, i, OUT, b.rows, s->HS, b.width, keep_scale, P_V, ROW_MAJOR, V, ROW_MAJOR, OVERWRITE);
        }
    });
}

/* dv = P^T dout, dP = dout v^T, dS = scale P (dP - rowsum(P dP)), dq = dS k, dk = dS^T q; with dropout
   dv = (M o P)^T dout / keep, dP = M o (dout v^T) / keep. dk and dv are of blocks of keys, which take the rows that see
   them: no sum goes through memory. */
template <class T>
static void backward_as(const AttentionSpec *s, Tensor dq, Tensor dk, Tensor dv, Tensor dout, const T *kept, Tensor q,
                        Tensor k, Tensor v, void *work) {
    enum { Q, K, V, DOUT, DQ, DK, DV, DP, DS, DS_KEYS, P_KEYS, OPERANDS };
    const Plan plan = plan_of(s);
    const Workspace w = workspace_of(s, work);
    const bool drops = s->dropout.rate > 0;
    const int rows = plan.rows, diagonal = attention_diagonal(s);
    const Operand dS_rows = squares_of(w.squares, s->dtype, s, plan, s->Tq, rows, 0, plan.group);
    const Operand dS_keys = squares_of(w.squares, s->dtype, s, plan, s->Tq, rows, rows, plan.group);
    const Operand operands[OPERANDS] = {
        heads_of(q, s, rows), heads_of(k, s, 0), heads_of(v, s, 0), heads_of(dout, s, rows),
        heads_of(dq, s, rows), heads_of(dk, s, rows), heads_of(dv, s, rows),
        s->dtype == F32 ? dS_rows : squares_of(w.scores, F32, s, plan, rows, 0, 0, plan.group), dS_rows, dS_keys,
        drops ? dS_keys : squares_of(kept, s->dtype, s, plan, s->Tq, rows, rows, s->B)
    };
    const Gemms g = gemms_of(s, plan, operands, OPERANDS, w.pointers);
    const float keep_scale = drops ? dropout_scale(s->dropout.rate) : 1;
    for_each_group(s, plan, [&](Group group) {
        const int heads = group.count * s->NH;
        const Matrices<const T> P = { kept + (int64_t)group.first * s->NH * plan.square, plan.square, plan.pitch };
        const Matrices<T> squares = { (T *)w.squares, plan.square, plan.pitch };
        const Operand &x = operands[DP];
        for (int i = 0; i < plan.blocks && drops; i++) {
            const Block b = block_of(s, plan, i);
            LAUNCH_ROWS(dropout_kernel, true, heads, b, *s, diagonal, b, group.first, squares, P);
        }
        for (int i = 0; i < plan.blocks; i++) {
            const Block b = block_of(s, plan, i);
            matmul(g, group, i, DV, b.keys, s->HS, s->Tq - b.first, keep_scale, P_KEYS, COLUMN_MAJOR, DOUT, ROW_MAJOR,
                   s->dkv_into);
        }
        for (int i = 0; i < plan.blocks; i++) {
            const Block b = block_of(s, plan, i);
            const Matrices<const float> dP = { (float *)address_of(x, group.first, 0, i), x.head, plan.pitch };
            matmul(g, group, i, DP, b.rows, b.width, s->HS, keep_scale, DOUT, ROW_MAJOR, V, COLUMN_MAJOR, OVERWRITE);
            LAUNCH_ROWS(softmax_backward_kernel, drops, heads, b, *s, diagonal, b, group.first, squares, P, dP);
            matmul(g, group, i, DQ, b.rows, s->HS, b.width, 1, DS, ROW_MAJOR, K, ROW_MAJOR, s->dq_into);
        }
        for (int i = 0; i < plan.blocks; i++) {
            const Block b = block_of(s, plan, i);
            matmul(g, group, i, DK, b.keys, s->HS, s->Tq - b.first, 1, DS_KEYS, COLUMN_MAJOR, Q, ROW_MAJOR,
                   s->dkv_into);
        }
    });
}

static void forward(const AttentionSpec *s, Tensor out, Tensor lse, void *kept, Tensor q, Tensor k, Tensor v,
                    void *work) {
    attention_check_forward(&attention_naive, s, out, lse, q, k, v);
    if (attention_merge_part(&attention_naive, s, out, lse, kept, q, k, v, work)) return;
    if (s->dtype == F32) forward_as(s, out, lse, (float *)kept, q, k, v, work);
    else                 forward_as(s, out, lse, (bf16 *)kept, q, k, v, work);
}

static void backward(const AttentionSpec *s, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse,
                     const void *kept, Tensor q, Tensor k, Tensor v, void *work) {
    attention_check_backward(&attention_naive, s, dq, dk, dv, dout, out, lse, q, k, v);
    if (s->dtype == F32) backward_as(s, dq, dk, dv, dout, (const float *)kept, q, k, v, work);
    else                 backward_as(s, dq, dk, dv, dout, (const bf16 *)kept, q, k, v, work);
}

static const char *refuse(const AttentionSpec *s) {
    const char *shared_reason = attention_refuse_on_cuda(s);
    if (shared_reason)    return shared_reason;
    if (s->Tk > KEYS_MAX) return "a row of P has more than 16384 keys";
    return NULL;
}

const Attention attention_naive = {
    .name = "naive", .refuse = refuse, .kept_bytes = probability_bytes, .workspace_bytes = workspace_bytes,
    .forward = forward, .backward = backward
};
