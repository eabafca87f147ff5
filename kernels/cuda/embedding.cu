/* Token and position embedding. The backward pass adds the rows of each token in the order of their positions: the
   positions are sorted by token, the sorted list is cut into chunks of equal length, and a warp adds up the runs of
   equal tokens in its chunk. Of a run that several chunks share (the space in a text of bytes: 5000 of 32768) the last
   of their warps adds the parts, in their order. */
#include <assert.h>
#include "common.cuh"
extern "C" {
#include "../device.h"
#include "../embedding.h"
#include "../profile.h"
}

/* ---- forward */

/* A thread has SIZE columns of one position in SEQUENCES sequences: they share the row of wpe, and as many rows of wte
   are in flight. */
enum { SEQUENCES = 4, FORWARD_THREADS = 256 };

/* Row of wpe of token t: of each token, or from *position on. */
__device__ inline int64_t position_of(const int *position, bool each, int64_t t) {
    return !position ? t : each ? position[t] : *position + t;
}

/* The blocks of the first sequences come first, row_blocks of them. A token outside of the table ends the program with
   the message of the assertion: for a better one the host would have to wait for the device. */
template <class T, int SIZE> __global__ void __launch_bounds__(FORWARD_THREADS)
embedding_forward_kernel(T *x, const int *tokens, const T *wte, int64_t wte_pitch, const T *wpe, int64_t wpe_pitch,
                         const int *position, bool each, int B, int T_count, int C, int Vp, unsigned row_blocks) {
    const unsigned item = blockIdx.x % row_blocks * FORWARD_THREADS + threadIdx.x, row_items = C / SIZE;
    const int t = (int)(item / row_items), c = (int)(item % row_items) * SIZE;
    const int first = (int)(blockIdx.x / row_blocks) * SEQUENCES;
    if (t >= T_count) return;
    int token[SEQUENCES];
    #pragma unroll
    for (int k = 0; k < SEQUENCES; k++) {
        token[k] = first + k < B ? tokens[(int64_t)(first + k) * T_count + t] : 0;
        assert(token[k] >= 0 && token[k] < Vp && "embedding: a token id outside of the table wte");
    }
    float place[SIZE], sum[SEQUENCES][SIZE];
    load_floats(place, wpe + position_of(position, each, t) * wpe_pitch + c);
    #pragma unroll
    for (int k = 0; k < SEQUENCES; k++) load_floats(sum[k], wte + token[k] * wte_pitch + c);
    #pragma unroll
    for (int k = 0; k < SEQUENCES; k++) {
        #pragma unroll
        for (int i = 0; i < SIZE; i++) sum[k][i] += place[i];
        if (first + k < B) store_floats(x + ((int64_t)(first + k) * T_count + t) * C + c, sum[k]);
    }
}

template <class T, int SIZE> static void forward(Tensor x, Tensor tokens, Tensor wte, Tensor wpe, Tensor position) {
    const int64_t B = x.dim[0], C = x.dim[2], row_blocks = ceil_div(x.dim[1] * (C / SIZE), FORWARD_THREADS);
    LAUNCH((embedding_forward_kernel<T, SIZE>), (unsigned)(row_blocks * ceil_div(B, SEQUENCES)), FORWARD_THREADS, 0,
           (T *)x.data, (const int *)tokens.data, (const T *)wte.data, wte.pitch, (const T *)wpe.data, wpe.pitch,
           (const int *)position.data, position.dim[0] > 1, (int)B, (int)x.dim[1], (int)C, (int)wte.dim[0],
           (unsigned)row_blocks);
}

void embedding_forward(Tensor x, Tensor tokens, Tensor wte, Tensor wpe, Tensor position) {
    check_embedding("embedding", x, tokens, wte, wpe, position);
    op_begin("embedding", op_bytes(3, x, tokens, wpe), 0);
    const bool aligned = rows_aligned(x) && rows_aligned(wte) && rows_aligned(wpe);
    if (x.dtype == BF16) (aligned ? forward<bf16, 8> : forward<bf16, 1>)(x, tokens, wte, wpe, position);
    else                 (aligned ? forward<float, 4> : forward<float, 1>)(x, tokens, wte, wpe, position);
    op_end();
}

/* ---- the sort */

/* A counting sort, by the low bits of the token, then the others, then the position. A block has the tokens with its
   index in their low bits, so that the frequent ones are in different blocks, and reads all positions twice, which are
   in the L2 cache, rather than wait for other blocks. */
enum { SORT_WARPS = 16, RANGE = 400, SORT_BITS = 7 };

typedef struct {
    int  *token, *position;     /* of the sorted positions */
    int2 *run;                  /* (Vp): the first of each token, and the end */
} Sorted;

/* f(token, i) for i = first .. last - 1, 32 neighbours at a time, in order, called by all lanes: -1 from last on. */
template <class F> __device__ inline void for_tokens(const int *tokens, int first, int last, F f) {
    constexpr int AHEAD = 16;
    for (; first < last; first += 32 * AHEAD) {
        int token[AHEAD];
        const int i = first + threadIdx.x % 32;
        #pragma unroll
        for (int a = 0; a < AHEAD; a++) token[a] = i + 32 * a < last ? tokens[i + 32 * a] : -1;
        #pragma unroll
        for (int a = 0; a < AHEAD; a++) f(token[a], i + 32 * a);
    }
}

/* Every warp has an equal share of the positions. A prefix sum over tokens, then warps, turns its counts into the index
   of its first position of each token. range: tokens of a block. */
static __global__ void __launch_bounds__(32 * SORT_WARPS)
sort_kernel(Sorted to, const int *tokens, int count, int Vp, int bits, int range) {
    wait_before_next();
    __shared__ int next[SORT_WARPS][RANGE], warp_total[SORT_WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned block = blockIdx.x, blocks = 1u << bits, low = 1u << 31 | (blocks - 1);      /* -1: no block's */
    const int share = (int)ceil_div(count, 32 * SORT_WARPS) * 32;
    const int first = min(warp * share, count), last = min(first + share, count);
    int *const mine = next[warp];
    int below = 0, own_count = 0;
    for (int i = lane; i < range; i += 32) mine[i] = 0;
    __syncwarp();
    for_tokens(tokens, first, last, [&](int token, int) {
        if ((token & low) < block) below++;
        if ((token & low) != block) return;
        assert(token < Vp && "embedding backward: a token id outside of the table dwte");
        atomicAdd(&mine[token >> bits], 1);
    });
    __syncthreads();
    const int high = threadIdx.x, token = high << bits | (int)block;
    #pragma unroll
    for (int w = 0; w < SORT_WARPS; w++) if (high < range) own_count += next[w][high];
    int upto = own_count;
    #pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int n = __shfl_up_sync(0xffffffffu, upto, step);
        if (lane >= step) upto += n;
    }
    if (lane == 31) warp_total[warp] = upto;
    below = block_sum(below);
    int at = below + warp_sum(lane < warp ? warp_total[lane] : 0) + upto - own_count;
    if (token < Vp) to.run[token] = make_int2(at, at + own_count);
    for (int w = 0; w < SORT_WARPS && high < range; w++) {
        const int n = next[w][high];
        next[w][high] = at;
        at += n;
    }
    assert((high != range - 1 || block != blocks - 1 || at == count) && "embedding backward: a negative token id");
    __syncthreads();

    /* a lane's index is the next of its token, plus the number of lanes below it with the same token */
    for_tokens(tokens, first, last, [&](int token, int position) {
        const bool own = (token & low) == block;
        if (!__any_sync(0xffffffffu, own)) return;
        const unsigned same = __match_any_sync(0xffffffffu, own ? token : -1);
        const int rank = __popc(same & ((1u << lane) - 1));
        int *const to_next = &mine[token >> bits];
        if (own) {
            const int index = *to_next + rank;
            to.token[index] = token;
            to.position[index] = position;
        }
        __syncwarp();
        if (own && rank == 0) *to_next += __popc(same);
        __syncwarp();
    });
}

/* The memory is kept for the next call and grows with the batch. */
static Sorted sort_by_token(const int *tokens, int64_t count, int64_t Vp) {
    static int *memory;
    static int64_t room;
    int bits = SORT_BITS;
    if (2 * (count + Vp) > room) {
        device_free(memory);
        memory = NULL;
        room = 0;
        memory = (int *)device_alloc(2 * (size_t)(count + Vp) * sizeof *memory, "the sort of the tokens");
        room = 2 * (count + Vp);
    }
    const Sorted to = { memory, memory + count, (int2 *)(memory + 2 * count) };
    while (ceil_div(Vp, 1 << bits) > RANGE) bits++;
    LAUNCH_EARLY(sort_kernel, 1u << bits, 32 * SORT_WARPS, 0, to, tokens, (int)count, (int)Vp, bits,
                 (int)ceil_div(Vp, 1 << bits));
    return to;
}

/* ---- backward */

/* Where chunks share a token, all but the first of them have a row of C partial sums each: 8 MiB in all, which bounds
   the number of chunks: 2048 at C = 768, of 32 positions each for a batch of 65536. */
enum { PARTIAL_ROOM = 1 << 21, MAX_CHUNKS = 2048, MIN_CHUNK = 32, SUM_WARPS = 4 };
static __device__ __align__(16) float partial[PARTIAL_ROOM];
static __device__ int chunks_done[PARTIAL_ROOM / 16];       /* of the token that begins in the chunk, in its columns */

/* to += , in the L2 cache: the warp does not wait for what is there. Subnormal sums become 0. */
template <int SIZE> __device__ inline void add_to_memory(float *to, const float (&f)[SIZE]) {
#if __CUDA_ARCH__ >= 900
    if constexpr (SIZE == 4)
        asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                     :: "l"(to), "f"(f[0]), "f"(f[1]), "f"(f[2]), "f"(f[3]) : "memory");
    else
#endif
    for (int k = 0; k < SIZE; k++) atomicAdd(to + k, f[k]);
}

/* A run of equal tokens that shares chunks: the last of the warps that have added up its parts adds those of all chunks
   but the first to the row of dwte, in their order. own: the lane has columns c .. c + SIZE - 1. */
template <int SIZE> __device__ inline void
join_chunks(float *dwte, int64_t pitch, Sorted sorted, int token, int chunk, int C, int c, bool own) {
    constexpr int AHEAD = 16;
    const int2 run = sorted.run[token];
    const int first = run.x / chunk, last = (run.y - 1) / chunk;
    int before = 0, *const done = &chunks_done[first * gridDim.y + blockIdx.y];
    if (threadIdx.x % 32 == 0) before = atomicAdd(done, 1);
    if (__shfl_sync(0xffffffffu, before, 0) < last - first) return;
    if (threadIdx.x % 32 == 0) *done = 0;
    __threadfence();
    __syncwarp();           /* lane 0's fence, behind its atomicAdd, comes before the loads of all lanes */
    float total[SIZE] = {};
    #pragma unroll 1
    for (int start = first + 1; own && start <= last; start += AHEAD) {
        float part[AHEAD][SIZE] = {};
        #pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (start + a <= last) load_floats(part[a], partial + (int64_t)(start + a) * C + c);
        #pragma unroll
        for (int a = 0; a < AHEAD; a++)
            #pragma unroll
            for (int k = 0; k < SIZE; k++) total[k] += part[a][k];
    }
    if (own) add_to_memory(dwte + token * pitch + c, total);
}

/* A chunk of the sorted positions. The part of a run that began before goes to partial. */
template <class T, int SIZE> __device__ inline void
add_chunk(float *dwte, int64_t pitch, const T *dx, Sorted sorted, int count, int index, int chunk, int C, int c) {
    constexpr int AHEAD = sizeof(T) == 2 ? 16 : 8;
    const int lane = threadIdx.x % 32, first = index * chunk, last = min(first + chunk, count);
    const int first_token = sorted.token[first], last_token = sorted.token[last - 1];
    const bool is_continued = first > 0 && sorted.token[first - 1] == first_token, own = c < C;
    const bool goes_on = last < count && sorted.token[last] == last_token;
    float total[SIZE] = {}, *to = partial + (int64_t)index * C + c;
    bool is_partial = is_continued;
    dx += own ? c : 0;
    for (int start = first; start < last; start += 32) {
        const int i = min(start + lane, last - 1), own_token = sorted.token[i], own_position = sorted.position[i];
        const bool is_end = start + lane == last - 1 || start + lane < last && sorted.token[i + 1] != own_token;
        const unsigned ends = __ballot_sync(0xffffffffu, is_end);
        for (int group = 0; group < min(32, last - start); group += AHEAD) {
            float row[AHEAD][SIZE];
            #pragma unroll
            for (int a = 0; a < AHEAD; a++)
                load_floats<true>(row[a], dx + (int64_t)__shfl_sync(0xffffffffu, own_position, group + a) * C);
            #pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                #pragma unroll
                for (int k = 0; k < SIZE; k++) total[k] += row[a][k];       /* what follows the last end is not used */
                if (!(ends >> (group + a) & 1)) continue;
                if (!is_partial) to = dwte + __shfl_sync(0xffffffffu, own_token, group + a) * pitch + c;
                if (own && is_partial) store_floats(to, total);
                else if (own)          add_to_memory(to, total);
                is_partial = false;
                #pragma unroll
                for (int k = 0; k < SIZE; k++) total[k] = 0;
            }
        }
    }
    if (!is_continued && !goes_on) return;
    __syncwarp();           /* lane 0's fence, in front of its atomicAdd, covers what all lanes have stored */
    __threadfence();
    if (is_continued) join_chunks<SIZE>(dwte, pitch, sorted, first_token, chunk, C, c, own);
    if (goes_on && !(is_continued && last_token == first_token))
        join_chunks<SIZE>(dwte, pitch, sorted, last_token, chunk, C, c, own);
}

/* The row of dwpe of token t of each sequence; without position all rows of dwpe, and those from T_count on are 0. */
template <class T, int SIZE> __device__ inline void
add_positions(float *dwpe, int64_t pitch, const T *dx, const int *position, int64_t t, int B, int T_count, int C, int c,
              bool add) {
    if (t >= T_count && add) return;
    float total[SIZE] = {};
    if (t < T_count) {
        #pragma unroll 16
        for (int b = 0; b < B; b++) {
            float row[SIZE];
            load_floats(row, dx + (b * (int64_t)T_count + t) * C + c);
            #pragma unroll
            for (int k = 0; k < SIZE; k++) total[k] += row[k];
        }
    }
    dwpe += position_of(position, true, t) * pitch + c;
    if (add) add_to_memory(dwpe, total);
    else     store_floats(dwpe, total);
}

/* A warp has a row of dwpe or then a chunk, in 32 SIZE columns. Their index is blockIdx.y, one less for chunks: the
   second read of dx, for the chunks, follows the first by one slice of columns (at 124M, B = 64: 16 MiB) and runs
   beside the first read of the next one. The rows of dwpe do not wait for the sort. */
template <class T, int SIZE> __global__ void __launch_bounds__(32 * SUM_WARPS, 5)
embedding_sums_kernel(float *dwte, int64_t dwte_pitch, float *dwpe, int64_t dwpe_pitch, const T *dx, Sorted sorted,
                      const int *position, int chunks, int chunk, int positions, int B, int T_count, int C, bool add) {
    const int index = blockIdx.x * SUM_WARPS + threadIdx.x / 32, c = (blockIdx.y * 32 + threadIdx.x % 32) * SIZE;
    if (index < positions) {
        if (c < C) add_positions<T, SIZE>(dwpe, dwpe_pitch, dx, position, index, B, T_count, C, c, add);
    } else if (index - positions < chunks && blockIdx.y > 0) {
        wait_for_previous();
        add_chunk<T, SIZE>(dwte, dwte_pitch, dx, sorted, B * T_count, index - positions, chunk, C, c - 32 * SIZE);
    }
}

template <class T, int SIZE>
static void backward(Tensor dwte, Tensor dwpe, Tensor dx, Sorted sorted, Tensor position, Into dwpe_into) {
    const int64_t C = dx.dim[2], count = tensor_rows(dx), positions = position.data ? dx.dim[1] : dwpe.dim[0];
    const int64_t max_chunks = min(PARTIAL_ROOM / C, (int64_t)MAX_CHUNKS);
    REQUIRE(max_chunks, "embedding backward: %lld columns, want at most %d", (long long)C, PARTIAL_ROOM);
    const int64_t chunk = max(ceil_div(count, max_chunks), (int64_t)MIN_CHUNK), chunks = ceil_div(count, chunk);
    const dim3 blocks((unsigned)ceil_div(chunks + positions, SUM_WARPS), (unsigned)ceil_div(C, 32 * SIZE) + 1);
    LAUNCH_EARLY((embedding_sums_kernel<T, SIZE>), blocks, 32 * SUM_WARPS, 0, (float *)dwte.data, dwte.pitch,
                 (float *)dwpe.data, dwpe.pitch, (const T *)dx.data, sorted, (const int *)position.data,
                 (int)chunks, (int)chunk, (int)positions, (int)dx.dim[0], (int)dx.dim[1], (int)C,
                 dwpe_into == ACCUMULATE || position.data);
}

void embedding_backward(Tensor dwte, Tensor dwpe, Tensor dx, Tensor tokens, Tensor position, Into dwpe_into) {
    check_embedding("embedding backward", dx, tokens, dwte, dwpe, position);
    REQUIRE(tensor_rows(dx) <= 1 << 30, "embedding backward: %lld tokens, want at most %d",
            (long long)tensor_rows(dx), 1 << 30);
    op_begin("embedding backward", op_bytes(3, dx, tokens, dwpe), 0);
    const bool aligned = rows_aligned(dx) && rows_aligned(dwte) && rows_aligned(dwpe);
    if (position.data && dwpe_into == OVERWRITE) device_zero(dwpe.data, tensor_bytes(dwpe));
    const Sorted sorted = sort_by_token((const int *)tokens.data, tensor_rows(dx), dwte.dim[0]);
    (dx.dtype == BF16 ? aligned ? backward<bf16, 4> : backward<bf16, 1> : aligned ? backward<float, 4>
     : backward<float, 1>)(dwte, dwpe, dx, sorted, position, dwpe_into);
    op_end();
}
