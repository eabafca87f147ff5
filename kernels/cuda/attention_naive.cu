/* attention_naive.cu - Attention as the formula says, all of P in memory: the baseline for flash. Batched GEMMs by
   cuBLAS and one softmax kernel each way (README.md, "Attention in f32 and naive"). P and dS have the data type of the
   run, scores and dP are f32: rounded to bf16, a score of 9 would be off by up to 0.03, and P by 3 %. */
#include <type_traits>
#include <cublas_v2.h>
#include "attention_cuda.h"
#include "ptx.cuh"

enum {
    BLOCK_ROWS = 256,       /* at least; fewer would save bytes, but leave PV and dQ few tiles */
    BLOCKS_MAX = 8,
    GROUP_ROWS = 192 * 256, /* rows of a launch: 384 tiles of 128, three for each SM of an H200 */
    PACKS      = 8,         /* packs of 4 columns that a thread keeps in registers */
    WARP_KEYS  = 32 * 4 * PACKS,
    WARPS      = 4,         /* warps of a block with a row for each warp */
    WARPS_MAX  = 16,        /* maximum number of warps that share a row */
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
    p.group = (int)ceil_div(s->B, ceil_div(s->B, max((int64_t)1, GROUP_ROWS / ((int64_t)s->NH * p.rows))));
    p.pitch = ceil_div(s->Tk, 8) * 8;
    p.square = s->Tq * p.pitch;
    return p;
}

/* Rows first .. first + rows - 1 of the matrices, whose columns from width on are not computed: no row sees them. The
   keys of a column block are those first .. first + keys - 1, and rows from first on see them. */
struct Block { int first, rows, keys, width; };

static Block block_of(const AttentionSpec *s, const Plan &p, int index) {
    const int first = index * p.rows, rows = min(p.rows, s->Tq - first);
    return p.blocks == 1 ? Block{ 0, s->Tq, s->Tk, s->Tk } : Block{ first, rows, rows, first + rows };
}

/* A matrix for each head of each sequence, as a block of rows takes it: strides in elements, step from block to block.
   After so many sequences the memory is used again. */
struct Operand { char *data; DType dtype; int64_t pitch, head, sequence, step; int sequences; };

__host__ __device__ inline char *address_of(const Operand &x, int sequence, int head, int block) {
    return x.data + (sequence % x.sequences * x.sequence + head * x.head + block * x.step) * (x.dtype == F32 ? 4 : 2);
}

/* ---- softmax: one warp per row, or a block per row of more than WARP_KEYS; f32 inside, a fixed order of every sum */

/* A block of rows of the heads of a group of sequences, whose operands begin there. squares: P without what is dropped,
   later dS; scores: in the backward pass dP. */
struct Rows {
    AttentionSpec spec;
    Block block;
    int first_sequence;
    Operand P, squares, scores;
    Tensor lse;
};

/* This thread's row of a block, which sees the first so many keys. */
struct Row { int index, seen; };

__device__ inline Row row_of_thread(const Rows &rows) {
    const int i = blockIdx.x * blockDim.y + threadIdx.y;
    const int position = rows.spec.position ? *rows.spec.position : 0;
    return { i, max(0, min(rows.spec.q0 + position + rows.block.first + i + 1, rows.spec.Tk)) };
}

__device__ inline float row_max_of(float x) { return blockDim.x == 32 ? warp_max(x) : block_max(x); }
__device__ inline float row_sum_of(float x) { return blockDim.x == 32 ? warp_sum(x) : block_sum(x); }

/* A warp has WARP_KEYS neighbouring columns: the first of its pack p, and of this thread's. */
__device__ inline int columns_before(int p) { return (int)threadIdx.x / 32 * WARP_KEYS + 128 * p; }
__device__ inline int column_of(int p)      { return columns_before(p) + 4 * ((int)threadIdx.x % 32); }

/* A row's column_of(0). */
template <class T> __device__ inline T *row_in(const Operand &x, const Row &r) {
    return (T *)x.data + blockIdx.y * x.head + r.index * x.pitch + column_of(0);
}

/* f(p) for the packs of this warp that have a column before `end` */
template <class F> __device__ inline void for_packs(int end, F f) {
    #pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if (columns_before(p) >= end) break;
        f(p);
    }
}

/* What no GEMM has written may be NaN. */
__device__ inline void mask_unseen(float (&f)[4], const Row &r, int column, float value) {
    for (int i = 0; i < 4; i++)
        if (column + i >= r.seen) f[i] = value;
}

/* 4 neighbours, kept as they lie in memory */
template <class T> using Four = std::conditional_t<sizeof(T) == 4, Pack<float>, HalfPack>;

extern __shared__ Random64 mask_of_rows[];      /* masks of this thread block's 8 rows, by columns / 8 */

/* Draws the mask. Every thread calls it. A thread block with one long row draws 7 more rows that it does not need. */
__device__ inline void draw_mask(const Rows &rows) {
    const Dropout &d = rows.spec.dropout;
    const int matrix = blockIdx.y, first_row = rows.block.first + blockIdx.x * blockDim.y;
    const uint64_t sequence = (d.sequence ? *d.sequence : 0) + rows.first_sequence + matrix / rows.spec.NH;
    const DropoutMask m = dropout_mask(d.seed, d.site, sequence, matrix % rows.spec.NH);
    const uint32_t threshold = dropout_threshold(d.rate);
    for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < (rows.block.width + 7) / 8; i += blockDim.x * blockDim.y)
        mask_of_rows[i] = dropout_draw(m, first_row / 8, i, dropout_digits(threshold));
    __syncthreads();
}

/* Zeroes what is dropped of the 4 columns of a row from this one on. */
__device__ inline void drop(float (&f)[4], const Row &r, int column) {
    const uint32_t kept = ((const uint8_t *)&mask_of_rows[column / 8])[r.index % 8] >> column % 8;
    for (int i = 0; i < 4; i++)
        if (!(kept >> i & 1)) f[i] = 0;
}

/* P = softmax(scale scores) and lse; columns after the last key that is seen become 0. With dropout also P without
   what is dropped. P may be scores: each thread reads its elements before it writes them, and no other thread does. */
template <class T, bool DROPOUT> static __global__ void __launch_bounds__(32 * WARPS_MAX) softmax_kernel(Rows rows) {
    constexpr float UNIT = sizeof(T) == 4 ? 1 : LOG2E;      /* bf16: powers of two, with an error far below its own */
    const Row r = row_of_thread(rows);
    if constexpr (DROPOUT) draw_mask(rows);
    if (r.index >= rows.block.rows) return;
    const float *scores = row_in<const float>(rows.scores, r);
    float f[PACKS][4] = {}, row_max = -INFINITY, total = 0;
    #pragma unroll
    for (int p = 0; p < PACKS; p++)
        if (column_of(p) < r.seen) load_floats(f[p], scores + 128 * p);
    for_packs(r.seen, [&](int p) {
        for (float &x : f[p]) x *= UNIT * rows.spec.scale;
        if (columns_before(p + 1) > r.seen) mask_unseen(f[p], r, column_of(p), -INFINITY);
        for (float x : f[p]) row_max = fmaxf(row_max, x);
    });
    row_max = row_max_of(row_max);
    for_packs(r.seen, [&](int p) {
        for (float &x : f[p]) total += x = sizeof(T) == 4 ? expf(x - row_max) : ex2(x - row_max);
    });
    total = row_sum_of(total);
    if (threadIdx.x == 0)               /* -infinity where no key is seen */
        ((float *)rows.lse.data)[blockIdx.y * rows.lse.pitch + rows.block.first + r.index] =
            row_max * (1 / UNIT) + logf(total);
    const float normalise = r.seen ? 1 / total : 0;
    T *P = row_in<T>(rows.P, r), *dropped = row_in<T>(rows.squares, r);
    for_packs(rows.block.width, [&](int p) {
        if (column_of(p) >= rows.block.width) return;
        for (float &x : f[p]) x *= normalise;
        store_floats(P + 128 * p, f[p]);
        if (!DROPOUT) return;
        drop(f[p], r, column_of(p));
        store_floats(dropped + 128 * p, f[p]);
    });
}

/* P without what is dropped */
template <class T, bool> static __global__ void __launch_bounds__(32 * WARPS_MAX) dropout_kernel(Rows rows) {
    const Row r = row_of_thread(rows);
    draw_mask(rows);
    if (r.index >= rows.block.rows) return;
    const T *P = row_in<const T>(rows.P, r);
    T *dropped = row_in<T>(rows.squares, r);
    #pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if (column_of(p) >= rows.block.width) break;
        float f[4];
        load_floats(f, P + 128 * p);
        drop(f, r, column_of(p));
        store_floats(dropped + 128 * p, f);
    }
}

/* dS = scale P (dP - rowsum(P dP)), 0 where P is, also after the last key; dP = 0 where P was dropped. dS may be dP, as
   above. */
template <class T, bool DROPOUT> static __global__ void __launch_bounds__(32 * WARPS_MAX)
softmax_backward_kernel(Rows rows) {
    const Row r = row_of_thread(rows);
    if constexpr (DROPOUT) draw_mask(rows);
    if (r.index >= rows.block.rows) return;
    const T *P = row_in<const T>(rows.P, r);
    const float *dP = row_in<const float>(rows.scores, r);
    T *dS = row_in<T>(rows.squares, r);
    Four<T> probabilities[PACKS] = {};
    float f[PACKS][4] = {}, delta = 0;
    #pragma unroll
    for (int p = 0; p < PACKS; p++)
        if (column_of(p) < r.seen) {
            load_floats(f[p], dP + 128 * p);
            probabilities[p] = *(const Four<T> *)(P + 128 * p);
        }
    for_packs(r.seen, [&](int p) {
        if (columns_before(p + 1) > r.seen) mask_unseen(f[p], r, column_of(p), 0);
        if constexpr (DROPOUT) drop(f[p], r, column_of(p));
        float g[4];
        probabilities[p].to_float(g);
        for (int i = 0; i < 4; i++) delta += g[i] * f[p][i];
    });
    delta = row_sum_of(delta);
    for_packs(rows.block.width, [&](int p) {
        float g[4];
        probabilities[p].to_float(g);
        for (int i = 0; i < 4; i++) f[p][i] = rows.spec.scale * g[i] * (f[p][i] - delta);
        if (column_of(p) < rows.block.width) store_floats(dS + 128 * p, f[p]);
    });
}

/* ---- a pass: its operands, and GEMMs of them by cuBLAS */

/* Matrices (Tq,Tk) by blocks of rows, and by blocks of keys; the last row only in a backward pass. OUT: or dout. */
enum { Q, K, V, OUT, P, SQUARES, SCORES,
       DQ, DK, DV, P_KEYS, SQUARES_KEYS, OPERANDS };

struct Pass {
    const AttentionSpec *s;
    Plan plan;
    Operand x[OPERANDS];
    char **pointers;            /* (operands,blocks,B,NH), or NULL: one call of cuBLAS per sequence */
    int first, count;           /* the group of sequences */
};

static __global__ void pointers_kernel(Pass p, int B, int NH) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, block = blockIdx.y, operand = blockIdx.z;
    if (i >= B * NH) return;
    p.pointers[((int64_t)operand * gridDim.y + block) * B * NH + i] =
        address_of(p.x[operand], i / NH, i % NH, block);
}

/* The workspace: the pointers; of a group of sequences the squares; of a block of their rows the scores or dP in f32.
   In an f32 run the scores lie in P, and dP in dS. */
static size_t pointer_bytes(const AttentionSpec *s, const Plan &p) {
    return (size_t)(ceil_div((int64_t)OPERANDS * p.blocks * s->B * s->NH, 2) * 2) * sizeof(void *);
}

static size_t matrix_bytes(const AttentionSpec *s, int sequences, int64_t elements, DType dtype) {
    return (size_t)sequences * (size_t)s->NH * (size_t)elements * dtype_bytes(dtype);
}

static size_t kept_bytes(const AttentionSpec *s) { return matrix_bytes(s, s->B, plan_of(s).square, s->dtype); }

static size_t workspace_bytes(const AttentionSpec *s) {
    const Plan p = plan_of(s);
    return pointer_bytes(s, p) + matrix_bytes(s, p.group, p.square, s->dtype) +
           (s->dtype == F32 ? 0 : matrix_bytes(s, p.group, p.rows * p.pitch, F32));
}

static cublasHandle_t cublas;

/* Heads and sequences are two strides, and cuBLAS knows one: the matrices of several sequences are given by pointers,
   which cuBLAS expects on 16 bytes. */
static Pass pass_of(const AttentionSpec *s, const AttentionOperands *o, bool is_backward) {
    const Plan p = plan_of(s);
    const int64_t rows = p.rows, down = rows * p.pitch;
    char *const squares = (char *)o->work + pointer_bytes(s, p);
    char *const scores = squares + matrix_bytes(s, p.group, p.square, s->dtype);
    bool by_pointers = p.group > 1;
    /* q, k, v and what has their shape */
    const auto heads = [&](Tensor t, int64_t step_rows) {
        const int64_t bytes = (int64_t)dtype_bytes(t.dtype);
        by_pointers &= ((uintptr_t)t.data | (uintptr_t)(t.pitch * bytes) | (uintptr_t)(s->HS * bytes)) % 16 == 0;
        return Operand{ (char *)t.data, t.dtype, t.pitch, s->HS, t.dim[1] * t.pitch, step_rows * t.pitch, s->B };
    };
    const auto matrices = [&](const void *data, int64_t step, int sequences) {
        return Operand{ (char *)data, s->dtype, p.pitch, p.square, s->NH * p.square, step, sequences };
    };
    Pass pass = { s, p, {
        heads(o->q, rows), heads(o->k, 0), heads(o->v, 0), heads(is_backward ? o->dout : o->out, rows),
        matrices(o->kept, down, s->B),
        matrices(squares, down, p.group), { scores, F32, p.pitch, down, s->NH * down, 0, p.group },
        heads(o->dq, rows), heads(o->dk, rows), heads(o->dv, rows), matrices(o->kept, down + rows, s->B),
        matrices(squares, down + rows, p.group)
    }, NULL, 0, 0 };
    if (s->dtype == F32) pass.x[SCORES] = pass.x[is_backward ? SQUARES : P];
    if (by_pointers) {
        pass.pointers = (char **)o->work;
        LAUNCH(pointers_kernel, dim3((unsigned)ceil_div(s->B * s->NH, 128), (unsigned)p.blocks,
                                     is_backward ? OPERANDS : DQ), 128, 0, pass, s->B, s->NH);
    }
    if (!cublas) {
        CUBLAS(cublasCreate(&cublas));
        CUBLAS(cublasSetMathMode(cublas, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
    }
    CUBLAS(cublasSetStream(cublas, cuda_stream));
    return pass;
}

/* c (M,N) = or += alpha a b for each head of a group; OP_T: memory holds the transpose. cuBLAS is column-major: it sees
   the transposed matrices, and c^T = b^T a^T. */
static void matmul(const Pass &p, int block, int c, int M, int N, int K, float alpha, int a, cublasOperation_t op_a,
                   int b, cublasOperation_t op_b, Into into) {
    const Operand &A = p.x[a], &B = p.x[b], &C = p.x[c];
    const cublasComputeType_t compute = p.s->dtype == F32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
    const float beta = into == ACCUMULATE;
    const int NH = p.s->NH;
    if (p.pointers) {
        const auto pointers = [&](int operand) {
            return (void **)p.pointers + (((int64_t)operand * p.plan.blocks + block) * p.s->B + p.first) * NH;
        };
        CUBLAS(cublasGemmBatchedEx(cublas, op_b, op_a, N, M, K, &alpha, pointers(b), cuda_type(B.dtype), (int)B.pitch,
                                   pointers(a), cuda_type(A.dtype), (int)A.pitch, &beta, pointers(c),
                                   cuda_type(C.dtype), (int)C.pitch, p.count * NH, compute, CUBLAS_GEMM_DEFAULT));
        return;
    }
    for (int i = p.first; i < p.first + p.count; i++)
        CUBLAS(cublasGemmStridedBatchedEx(cublas, op_b, op_a, N, M, K, &alpha,
                                          address_of(B, i, 0, block), cuda_type(B.dtype), (int)B.pitch, B.head,
                                          address_of(A, i, 0, block), cuda_type(A.dtype), (int)A.pitch, A.head, &beta,
                                          address_of(C, i, 0, block), cuda_type(C.dtype), (int)C.pitch, C.head, NH,
                                          compute, CUBLAS_GEMM_DEFAULT));
}

/* kernel<data type, dropout> */
#define ROWS_KERNEL(kernel, s) \
    ((s)->dtype == F32 ? (s)->dropout.rate > 0 ? kernel<float, true> : kernel<float, false> \
                       : (s)->dropout.rate > 0 ? kernel<bf16, true>  : kernel<bf16, false>)

/* For the rows of a block of the group. A warp reads the mask of 128 columns. */
static void launch_rows(void (*kernel)(Rows), const Pass &p, int index, Tensor lse) {
    const bool drops = p.s->dropout.rate > 0;
    const Block b = block_of(p.s, p.plan, index);
    const int warps = (int)ceil_div(b.width, WARP_KEYS), rows = warps > 1 ? 1 : drops ? 8 : WARPS;
    const dim3 grid((unsigned)ceil_div(b.rows, rows), (unsigned)(p.count * p.s->NH)), threads(32 * warps, rows);
    const auto operand = [&](int i) {
        Operand x = p.x[i];
        x.data = address_of(x, p.first, 0, index);
        return x;
    };
    Rows r = { *p.s, b, p.first, operand(P), operand(SQUARES), operand(SCORES), lse };
    r.lse.data = (float *)lse.data + (int64_t)p.first * p.s->NH * lse.pitch;
    LAUNCH(kernel, grid, threads, drops ? ceil_div(b.width, 128) * 128 : 0, r);
}

/* ---- the two passes */

/* P = softmax(scale q k^T), out = P v; with dropout out = (M o P) v / keep */
static void forward(const AttentionSpec *s, const AttentionOperands *o) {
    const bool drops = s->dropout.rate > 0;
    const float keep_scale = drops ? dropout_scale(s->dropout.rate) : 1;
    Pass p = pass_of(s, o, false);
    for (; p.first < s->B; p.first += p.count) {
        p.count = min(p.plan.group, s->B - p.first);
        for (int i = 0; i < p.plan.blocks; i++) {
            const Block b = block_of(s, p.plan, i);
            matmul(p, i, SCORES, b.rows, b.width, s->HS, 1, Q, CUBLAS_OP_N, K, CUBLAS_OP_T, OVERWRITE);
            launch_rows(ROWS_KERNEL(softmax_kernel, s), p, i, o->lse);
            matmul(p, i, OUT, b.rows, s->HS, b.width, keep_scale, drops ? SQUARES : P, CUBLAS_OP_N, V, CUBLAS_OP_N,
                   OVERWRITE);
        }
    }
}

/* dv = P^T dout, dP = dout v^T, dS = scale P (dP - rowsum(P dP)), dq = dS k, dk = dS^T q; with dropout
   dv = (M o P)^T dout / keep, dP = M o (dout v^T) / keep. No sum of dk and dv goes through memory: a block of keys
   takes all rows that see it. */
static void backward(const AttentionSpec *s, const AttentionOperands *o) {
    const bool drops = s->dropout.rate > 0;
    const float keep_scale = drops ? dropout_scale(s->dropout.rate) : 1;
    Pass p = pass_of(s, o, true);
    for (; p.first < s->B; p.first += p.count) {
        p.count = min(p.plan.group, s->B - p.first);
        for (int i = p.plan.blocks - 1; i >= 0; i--) {
            const Block b = block_of(s, p.plan, i);
            if (drops) launch_rows(ROWS_KERNEL(dropout_kernel, s), p, i, {});
            matmul(p, i, DV, b.keys, s->HS, s->Tq - b.first, keep_scale, drops ? SQUARES_KEYS : P_KEYS, CUBLAS_OP_T,
                   OUT, CUBLAS_OP_N, s->dkv_into);
        }
        for (int i = p.plan.blocks - 1; i >= 0; i--) {
            const Block b = block_of(s, p.plan, i);
            matmul(p, i, SCORES, b.rows, b.width, s->HS, keep_scale, OUT, CUBLAS_OP_N, V, CUBLAS_OP_T, OVERWRITE);
            launch_rows(ROWS_KERNEL(softmax_backward_kernel, s), p, i, {});
            matmul(p, i, DQ, b.rows, s->HS, b.width, 1, SQUARES, CUBLAS_OP_N, K, CUBLAS_OP_N, s->dq_into);
            matmul(p, i, DK, b.keys, s->HS, s->Tq - b.first, 1, SQUARES_KEYS, CUBLAS_OP_T, Q, CUBLAS_OP_N,
                   s->dkv_into);
        }
    }
}

static const char *refuse(const AttentionSpec *s) {
    const char *shared_reason = attention_refuse_on_cuda(s);
    if (shared_reason)    return shared_reason;
    if (s->Tk > KEYS_MAX) return "a row of P has more than 16384 keys";
    return NULL;
}

const Attention attention_naive = { "naive", refuse, kept_bytes, workspace_bytes, forward, backward, NULL };
