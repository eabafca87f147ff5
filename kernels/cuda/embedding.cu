/* Token and position embedding. The backward pass adds the rows of each token in the order of their positions: the
   positions are sorted by token, the sorted list is cut into chunks of equal length, and a warp adds up the runs of
   equal tokens in its chunk. Of a run that several chunks share (the space in a text of bytes: 5000 of 32768) another
   kernel adds the parts, in their order. */
#include <assert.h>
#include <cub/device/device_radix_sort.cuh>
#include "common.cuh"
extern "C" {
#include "../embedding.h"
}

/* ---- forward */

/* A thread has 16 bytes of one position in SEQUENCES sequences: they share the row of wpe, and as many rows of wte
   are in flight. */
enum { SEQUENCES = 4, FORWARD_THREADS = 256 };

/* Row of wpe of token t: of each token, or from *position on. */
__device__ inline int64_t position_of(const int *position, bool each, int64_t t) {
    return !position ? t : each ? position[t] : *position + t;
}

/* The blocks of the first sequences come first, row_blocks of them. A token outside of the table ends the program with
   the message of the assertion: for a better one the host would have to wait for the device. */
template <class T> __global__ void __launch_bounds__(FORWARD_THREADS)
embedding_forward_kernel(T *x, const int *tokens, const T *wte, int64_t wte_pitch, const T *wpe, int64_t wpe_pitch,
                         const int *position, bool each, int B, int T_count, int C, int Vp, unsigned row_blocks) {
    constexpr int SIZE = Pack<T>::SIZE;
    const unsigned item = blockIdx.x % row_blocks * FORWARD_THREADS + threadIdx.x, row_items = C / SIZE;
    const int t = (int)(item / row_items), c = (int)(item % row_items) * SIZE;
    const int first = (int)(blockIdx.x / row_blocks) * SEQUENCES;
    if (t >= T_count) return;
    int token[SEQUENCES];
    for (int k = 0; k < SEQUENCES; k++) {
        token[k] = first + k < B ? tokens[(int64_t)(first + k) * T_count + t] : 0;
        assert(token[k] >= 0 && token[k] < Vp && "embedding: a token id outside of the table wte");
    }
    float place[SIZE], sum[SEQUENCES][SIZE];
    load_floats(place, wpe + position_of(position, each, t) * wpe_pitch + c);
    for (int k = 0; k < SEQUENCES; k++) load_floats(sum[k], wte + token[k] * wte_pitch + c);
    #pragma unroll
    for (int k = 0; k < SEQUENCES; k++) {
        for (int i = 0; i < SIZE; i++) sum[k][i] += place[i];
        if (first + k < B) store_floats(x + ((int64_t)(first + k) * T_count + t) * C + c, sum[k]);
    }
}

template <class T> static void forward(Tensor x, Tensor tokens, Tensor wte, Tensor wpe, Tensor position) {
    const int64_t B = x.dim[0], C = x.dim[2], row_blocks = ceil_div(x.dim[1] * (C / Pack<T>::SIZE), FORWARD_THREADS);
    LAUNCH(embedding_forward_kernel<T>, (unsigned)(row_blocks * ceil_div(B, SEQUENCES)), FORWARD_THREADS, 0,
           x, tokens, wte, wte.pitch, wpe, wpe.pitch, position, position.dim[0] > 1, B, x.dim[1], C, wte.dim[0],
           row_blocks);
}

void embedding_forward(Tensor x, Tensor tokens, Tensor wte, Tensor wpe, Tensor position) {
    check_embedding("embedding", x, tokens, wte, wpe, position);
    require_aligned_rows("embedding", { x, wte, wpe });
    op_begin("embedding", op_bytes(3, x, tokens, wpe), 0);
    (x.dtype == BF16 ? forward<bf16> : forward<float>)(x, tokens, wte, wpe, position);
    op_end();
}

/* ---- the sort */

static __global__ void count_kernel(int *position, int count) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) position[i] = i;
}

/* The tokens of embedding_sort, ascending, and their positions, ascending for each token. The memory is kept for the
   next call and grows with the batch. */
static struct {
    const void *tokens;
    int64_t count, room;
    int    *token, *position, *unsorted;        /* unsorted: 0, 1, 2, .. */
    void   *work;
    size_t  work_bytes;
} sorted;

void embedding_sort(Tensor tokens, int64_t Vp) {
    const int64_t count = tensor_count(tokens);
    int bits = 1;
    while (Vp > 1ll << bits) bits++;
    REQUIRE(tokens.data && tokens.dtype == I32 && tensor_is_packed(tokens) && count <= 1 << 30, "embedding sort: %lld "
            "tokens of %s, want at most %d of i32, packed", (long long)count, dtype_name(tokens.dtype), 1 << 30);
    const auto sort = [&](void *work, size_t *work_bytes) {
        CUDA(cub::DeviceRadixSort::SortPairs(work, *work_bytes, (const int *)tokens.data, sorted.token, sorted.unsorted,
                                             sorted.position, (int)count, 0, bits, cuda_stream));
    };
    op_begin("embedding sort", op_bytes(4, tokens, tokens, tokens, tokens), 0);
    size_t work_bytes = 0;
    sort(NULL, &work_bytes);
    if (count > sorted.room || work_bytes > sorted.work_bytes) {
        device_free(sorted.token);
        sorted.token = (int *)device_alloc(3 * (size_t)count * sizeof(int) + work_bytes, "the sort of the tokens");
        sorted.position = sorted.token + count;
        sorted.unsorted = sorted.position + count;
        sorted.work = sorted.unsorted + count;
        sorted.work_bytes = work_bytes;
        sorted.room = count;
        LAUNCH(count_kernel, (unsigned)ceil_div(count, 256), 256, 0, sorted.unsorted, count);
    }
    sorted.tokens = tokens.data;
    sorted.count = count;
    device_side_begin();
    sort(sorted.work, &sorted.work_bytes);
    device_side_end();
    op_end();
}

/* ---- backward */

/* A chunk whose first run began before it has a row of C partial sums: 8 MiB in all, which bounds the number of chunks:
   2048 at C = 768, of 32 positions each for a batch of 65536. */
enum { PARTIAL_ROOM = 1 << 21, MAX_CHUNKS = 2048, MIN_CHUNK = 32, SUM_WARPS = 4, SIZE = 4 };
static __device__ __align__(16) float partial[PARTIAL_ROOM];

/* to += , in the L2 cache: the warp does not wait for what is there. Subnormal sums become 0. */
__device__ inline void add_to_memory(float *to, const float (&f)[SIZE]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "l"(to), "f"(f[0]), "f"(f[1]), "f"(f[2]), "f"(f[3]) : "memory");
#else
    for (int k = 0; k < SIZE; k++) atomicAdd(to + k, f[k]);
#endif
}

/* A chunk of the sorted positions. The part of a run that began before goes to partial. */
template <class T> __device__ inline void
add_chunk(float *dwte, int64_t pitch, const T *dx, const int *token, const int *position, int count, int index,
          int chunk, int Vp, int C, int c) {
    constexpr int AHEAD = sizeof(T) == 2 ? 16 : 8;
    const int lane = threadIdx.x % 32, first = index * chunk, last = min(first + chunk, count);
    const bool own = c < C;
    float total[SIZE] = {}, *to = partial + (int64_t)index * C + c;
    bool is_partial = first > 0 && token[first - 1] == token[first];
    dx += own ? c : 0;
    for (int start = first; start < last; start += 32) {
        const int i = min(start + lane, last - 1), own_token = token[i], own_position = position[i];
        const bool is_end = start + lane == last - 1 || start + lane < last && token[i + 1] != own_token;
        const unsigned ends = __ballot_sync(0xffffffffu, is_end);
        assert(own_token >= 0 && own_token < Vp && "embedding backward: a token id outside of the table dwte");
        for (int group = 0; group < min(32, last - start); group += AHEAD) {
            float row[AHEAD][SIZE];
            #pragma unroll
            for (int a = 0; a < AHEAD; a++)
                load_floats<true>(row[a], dx + (int64_t)__shfl_sync(0xffffffffu, own_position, group + a) * C);
            #pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                for (int k = 0; k < SIZE; k++) total[k] += row[a][k];       /* what follows the last end is not used */
                if (!(ends >> (group + a) & 1)) continue;
                if (!is_partial) to = dwte + __shfl_sync(0xffffffffu, own_token, group + a) * pitch + c;
                if (own && is_partial) store_floats(to, total);
                else if (own)          add_to_memory(to, total);
                is_partial = false;
                for (int k = 0; k < SIZE; k++) total[k] = 0;
            }
        }
    }
}

/* The row of dwpe of token t of each sequence; without position all rows of dwpe, and those from T_count on are 0. */
template <class T> __device__ inline void
add_positions(float *dwpe, int64_t pitch, const T *dx, const int *position, int64_t t, int B, int T_count, int C, int c,
              bool add) {
    if (t >= T_count && add) return;
    float total[SIZE] = {};
    if (t < T_count) {
        #pragma unroll 16
        for (int b = 0; b < B; b++) {
            float row[SIZE];
            load_floats(row, dx + (b * (int64_t)T_count + t) * C + c);
            for (int k = 0; k < SIZE; k++) total[k] += row[k];
        }
    }
    dwpe += position_of(position, true, t) * pitch + c;
    if (add) add_to_memory(dwpe, total);
    else     store_floats(dwpe, total);
}

/* A warp has a row of dwpe or then a chunk, in 32 SIZE columns. Their index is blockIdx.y, one less for chunks: the
   second read of dx, for the chunks, follows the first by one slice of columns (at 124M, B = 64: 16 MiB) and runs
   beside the first read of the next one. */
template <class T> __global__ void __launch_bounds__(32 * SUM_WARPS, 5)
embedding_sums_kernel(float *dwte, int64_t dwte_pitch, float *dwpe, int64_t dwpe_pitch, const T *dx, const int *token,
                      const int *token_position, const int *position, int chunks, int chunk, int positions, int B,
                      int T_count, int Vp, int C, bool add) {
    const int index = blockIdx.x * SUM_WARPS + threadIdx.x / 32, c = (blockIdx.y * 32 + threadIdx.x % 32) * SIZE;
    wait_for_previous();
    if (index < positions) {
        if (c < C) add_positions<T>(dwpe, dwpe_pitch, dx, position, index, B, T_count, C, c, add);
    } else if (index - positions < chunks && blockIdx.y > 0) {
        add_chunk<T>(dwte, dwte_pitch, dx, token, token_position, B * T_count, index - positions, chunk, Vp, C,
                     c - 32 * SIZE);
    }
}

/* A warp has a chunk, in 32 SIZE columns. Where a run begins in it and goes on behind it, the parts of the other chunks
   are added up in their order, and then to the row of dwte, which has the first part. */
static __global__ void __launch_bounds__(32 * SUM_WARPS)
embedding_join_kernel(float *dwte, int64_t pitch, const int *token, int count, int chunk, int C) {
    constexpr int AHEAD = 16;
    const int index = blockIdx.x * SUM_WARPS + threadIdx.x / 32, c = (blockIdx.y * 32 + threadIdx.x % 32) * SIZE;
    const int64_t begin = (int64_t)index * chunk, end = begin + chunk;
    wait_for_previous();
    if (end >= count || c >= C) return;
    const int own = token[end - 1];
    if (token[end] != own || (begin > 0 && token[begin - 1] == own)) return;
    float total[SIZE] = {};
    const auto shares = [&](int64_t i) { return i * chunk < count && token[i * chunk] == own; };
    for (int64_t first = index + 1; shares(first); first += AHEAD) {
        float part[AHEAD][SIZE] = {};
        #pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (shares(first + a)) load_floats(part[a], partial + (first + a) * C + c);
        #pragma unroll
        for (int a = 0; a < AHEAD; a++)
            for (int k = 0; k < SIZE; k++) total[k] += part[a][k];
    }
    add_to_memory(dwte + own * pitch + c, total);
}

template <class T> static void backward(Tensor dwte, Tensor dwpe, Tensor dx, Tensor position, Into dwpe_into) {
    const int64_t C = dx.dim[2], count = tensor_rows(dx), positions = position.data ? dx.dim[1] : dwpe.dim[0];
    const int64_t max_chunks = min(PARTIAL_ROOM / C, (int64_t)MAX_CHUNKS), slices = ceil_div(C, 32 * SIZE);
    const int64_t chunk = max(ceil_div(count, max_chunks), (int64_t)MIN_CHUNK), chunks = ceil_div(count, chunk);
    const dim3 blocks((unsigned)ceil_div(chunks + positions, SUM_WARPS), (unsigned)slices + 1);
    LAUNCH_EARLY(embedding_sums_kernel<T>, blocks, 32 * SUM_WARPS, 0, dwte, dwte.pitch, dwpe, dwpe.pitch, dx,
                 sorted.token, sorted.position, position, chunks, chunk, positions, dx.dim[0], dx.dim[1], dwte.dim[0],
                 C, dwpe_into == ACCUMULATE || position.data);
    LAUNCH_EARLY(embedding_join_kernel, dim3((unsigned)ceil_div(chunks, SUM_WARPS), (unsigned)slices), 32 * SUM_WARPS,
                 0, dwte, dwte.pitch, sorted.token, count, chunk, C);
}

void embedding_backward(Tensor dwte, Tensor dwpe, Tensor dx, Tensor tokens, Tensor position, Into dwpe_into) {
    check_embedding("embedding backward", dx, tokens, dwte, dwpe, position);
    require_aligned_rows("embedding backward", { dx, dwte, dwpe });
    REQUIRE(sorted.tokens == tokens.data && sorted.count == tensor_count(tokens),
            "embedding backward: tokens are not those of the last embedding_sort");
    op_begin("embedding backward", op_bytes(3, dx, tokens, dwpe), 0);
    device_overlap_wait();                  /* for the sort */
    if (position.data && dwpe_into == OVERWRITE) device_zero(dwpe.data, tensor_bytes(dwpe));
    (dx.dtype == BF16 ? backward<bf16> : backward<float>)(dwte, dwpe, dx, position, dwpe_into);
    op_end();
}
