/* Token and position embedding. The backward pass adds the rows of each token in the order of their positions, without
   atomics: the positions are sorted by token (a stable counting sort), the sorted list is cut into chunks of equal
   length, and a block adds up the runs of equal tokens in its chunk. A run that began in an earlier chunk (the space in
   a text of bytes: 5000 of 32768) leaves a partial sum, and a second kernel adds those in order. */
#include <assert.h>
#include "common.cuh"
extern "C" {
#include "../device.h"
#include "../embedding.h"
#include "../profile.h"
}

/* to = or += SIZE floats, 16 bytes at a time where SIZE allows. */
template <int SIZE> __device__ inline void put_floats(float *to, const float (&f)[SIZE], bool add) {
    constexpr int STEP = SIZE % 4 == 0 ? 4 : 1;
    #pragma unroll
    for (int i = 0; i < SIZE; i += STEP) {
        float part[STEP] = {}, sum[STEP];
        if (add) load_floats(part, to + i);
        #pragma unroll
        for (int k = 0; k < STEP; k++) sum[k] = part[k] + f[i + k];
        store_floats(to + i, sum);
    }
}

/* Threads and grid.y of a kernel whose threads have size columns each, and whose grid.x are rows. */
struct Columns { unsigned threads, blocks; };
static Columns columns_by(int64_t C, int size) {
    const int64_t threads = ceil_div(ceil_div(C, size), 32) * 32;
    const unsigned max_threads = 256;
    return threads <= max_threads ? Columns{ (unsigned)threads, 1 }
                                  : Columns{ max_threads, (unsigned)ceil_div(threads, max_threads) };
}

/* ---- forward */

/* A token outside of the table ends the program with the message of the assertion: for a better one the host would
   have to wait for the device. */
template <class T, int SIZE> __global__ void __launch_bounds__(256)
embedding_forward_kernel(T *x, const int *tokens, const T *wte, int64_t wte_pitch, const T *wpe, int64_t wpe_pitch,
                         const int *first, int T_count, int C, int Vp) {
    const int64_t row = blockIdx.x;
    const int c = (blockIdx.y * blockDim.x + threadIdx.x) * SIZE, token = tokens[row];
    if (c >= C) return;
    assert(token >= 0 && token < Vp && "embedding: a token id outside of the table wte");
    float sum[SIZE], position[SIZE];
    load_floats(sum, wte + token * wte_pitch + c);
    load_floats(position, wpe + ((first ? *first : 0) + row % T_count) * wpe_pitch + c);
    #pragma unroll
    for (int k = 0; k < SIZE; k++) sum[k] += position[k];
    store_floats(x + row * C + c, sum);
}

template <class T, int SIZE> static void forward(Tensor x, Tensor tokens, Tensor wte, Tensor wpe, Tensor position) {
    const int64_t C = x.dim[2];
    const Columns by = columns_by(C, SIZE);
    LAUNCH((embedding_forward_kernel<T, SIZE>), dim3((unsigned)tensor_rows(x), by.blocks), by.threads, 0, (T *)x.data,
           (const int *)tokens.data, (const T *)wte.data, wte.pitch, (const T *)wpe.data, wpe.pitch,
           (const int *)position.data, (int)x.dim[1], (int)C, (int)wte.dim[0]);
}

void embedding_forward(Tensor x, Tensor tokens, Tensor wte, Tensor wpe, Tensor position) {
    check_embedding("embedding", x, tokens, wte, wpe);
    if (position.data) check_tensor("embedding", "position", position, I32, 1, 1);
    op_begin("embedding", op_bytes(3, x, tokens, wpe), 0);
    const bool aligned = rows_aligned(x) && rows_aligned(wte) && rows_aligned(wpe);
    if (x.dtype == BF16) (aligned ? forward<bf16, 8> : forward<bf16, 1>)(x, tokens, wte, wpe, position);
    else                 (aligned ? forward<float, 4> : forward<float, 1>)(x, tokens, wte, wpe, position);
    op_end();
}

/* ---- the sort */

/* One digit at a time, lowest first: two passes for 50304 tokens, one for bytes. One block for all: more would exchange
   their counts through kernels of 3 us each, and the text of a batch is short. */
enum { DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS, SORT_WARPS = 32 };

typedef struct { int *token, *position; } Sorted;

/* f(i < last, keys[i], positions[i]) for 32 neighbours at a time, in order, called by all lanes; the loads of 8 steps
   are in flight. positions NULL: 0, 1, 2, ... */
template <class F> __device__ inline void for_keys(const int *keys, const int *positions, int first, int last, F f) {
    constexpr int AHEAD = 8;
    for (int start = first; start < last; start += 32 * AHEAD) {
        int key[AHEAD], position[AHEAD];
        #pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const int i = start + 32 * a + threadIdx.x % 32;
            key[a] = i < last ? keys[i] : 0;
            position[a] = positions && i < last ? positions[i] : i;
        }
        #pragma unroll
        for (int a = 0; a < AHEAD; a++) f(start + 32 * a + (int)threadIdx.x % 32 < last, key[a], position[a]);
    }
}

/* Every warp has a 32nd of the positions. A prefix sum over digits, then warps, turns its counts into the index of its
   first position of each digit. The last of the passes writes to, the one before it other, and so on. */
static __global__ void __launch_bounds__(32 * SORT_WARPS)
sort_kernel(Sorted to, Sorted other, const int *tokens, int count, int Vp, int passes) {
    __shared__ int next[SORT_WARPS][DIGITS], warp_total[SORT_WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, share = (count + 1023) / 1024 * 32;
    const int first = min(warp * share, count), last = min(first + share, count);
    int *const mine = next[warp];
    const int *keys = tokens, *positions = NULL;
    for (int pass = 0; pass < passes; pass++) {
        const Sorted result = (passes - pass) % 2 ? to : other;
        const int shift = DIGIT_BITS * pass;
        for (int d = lane; d < DIGITS; d += 32) mine[d] = 0;
        __syncwarp();
        for_keys(keys, NULL, first, last, [&](bool own, int key, int) {
            assert(key >= 0 && key < Vp && "embedding backward: a token id outside of the table dwte");
            if (own) atomicAdd(&mine[key >> shift & (DIGITS - 1)], 1);
        });
        __syncthreads();

        /* a thread has 8 counts: of one digit, of 8 warps */
        const int digit = threadIdx.x / 4, group = threadIdx.x % 4 * 8;
        int own = 0;
        #pragma unroll
        for (int w = 0; w < 8; w++) own += next[group + w][digit];
        int upto = own;                                 /* inclusive prefix sum in the warp */
        for (int step = 1; step < 32; step *= 2) {
            const int below = __shfl_up_sync(0xffffffffu, upto, step);
            if (lane >= step) upto += below;
        }
        if (lane == 31) warp_total[warp] = upto;
        __syncthreads();
        int before = upto - own + warp_sum(lane < warp ? warp_total[lane] : 0);
        #pragma unroll
        for (int w = 0; w < 8; w++) {
            const int n = next[group + w][digit];
            next[group + w][digit] = before;
            before += n;
        }
        __syncthreads();

        /* a lane's index is the next of its digit, plus the number of lanes below it with the same digit */
        for_keys(keys, positions, first, last, [&](bool own, int key, int position) {
            const int digit = own ? key >> shift & (DIGITS - 1) : DIGITS;           /* no digit */
            const unsigned same = __match_any_sync(0xffffffffu, digit);
            const int rank = __popc(same & ((1u << lane) - 1));
            if (own) {
                const int at = mine[digit] + rank;
                result.token[at] = key;
                result.position[at] = position;
            }
            __syncwarp();
            if (own && rank == 0) mine[digit] += __popc(same);
            __syncwarp();
        });
        __syncthreads();
        keys = result.token;
        positions = result.position;
    }
}

/* The memory is kept for the next call and grows with the batch. */
static Sorted sort_by_token(const int *tokens, int count, int64_t Vp) {
    static int *memory, room;
    if (count > room) {
        device_free(memory);
        memory = NULL;
        room = 0;
        memory = (int *)device_alloc(4 * (size_t)count * sizeof *memory, "the sort of the tokens");
        room = count;
    }
    const Sorted to = { memory, memory + room }, other = { memory + 2 * (size_t)room, memory + 3 * (size_t)room };
    int passes = 1;
    while ((Vp - 1) >> (DIGIT_BITS * passes)) passes++;
    LAUNCH(sort_kernel, 1, 32 * SORT_WARPS, 0, to, other, tokens, count, (int)Vp, passes);
    return to;
}

/* ---- backward */

/* A chunk's partial sum of the run that it shares with the chunk before: a row of C floats a chunk, 8 MiB in all, which
   bounds the number of chunks: 1024 at C = 768, of 32 positions each for a batch of 32768. */
enum { PARTIAL_ROOM = 1 << 21, MAX_CHUNKS = 1024, MIN_CHUNK = 32 };
static __device__ __align__(16) float partial[PARTIAL_ROOM];

/* A run that began before the chunk goes to partial; the others are in this block only: dwte += . AHEAD rows are in
   flight. */
template <class T, int SIZE> __device__ inline void
add_chunk(float *dwte, int64_t pitch, const T *dx, Sorted sorted, int count, int chunk, int C, int c) {
    constexpr int AHEAD = 8;
    const int *token = sorted.token, *position = sorted.position;
    const int first = blockIdx.x * chunk, last = min(first + chunk, count);
    int run = token[first];
    bool shared = first > 0 && token[first - 1] == run;
    float total[SIZE] = {};
    const auto end_run = [&] {
        if (shared) put_floats(partial + (int64_t)blockIdx.x * C + c, total, false);
        else        put_floats(dwte + run * pitch + c, total, true);
    };
    for (int start = first; start < last; start += AHEAD) {
        float row[AHEAD][SIZE];
        int next[AHEAD];
        #pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const int i = min(start + a, last - 1);
            next[a] = token[i];
            load_floats(row[a], dx + (int64_t)position[i] * C + c);
        }
        #pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            if (start + a >= last) break;
            if (next[a] != run) {
                end_run();
                run = next[a];
                shared = false;
                #pragma unroll
                for (int k = 0; k < SIZE; k++) total[k] = 0;
            }
            #pragma unroll
            for (int k = 0; k < SIZE; k++) total[k] += row[a][k];
        }
    }
    end_run();
}

/* Row t of dwpe. */
template <class T, int SIZE> __device__ inline void
add_positions(float *dwpe, int64_t pitch, const T *dx, int64_t t, int B, int T_count, int C, int c, bool add) {
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
    put_floats(dwpe + t * pitch + c, total, add);
}

/* The first blocks have the chunks, the others the rows of dwpe. */
template <class T, int SIZE> __global__ void __launch_bounds__(256)
embedding_sums_kernel(float *dwte, int64_t dwte_pitch, float *dwpe, int64_t dwpe_pitch, const T *dx, Sorted sorted,
                      int chunks, int chunk, int B, int T_count, int C, bool add) {
    const int c = (blockIdx.y * blockDim.x + threadIdx.x) * SIZE, t = (int)blockIdx.x - chunks;
    if (c >= C) return;
    if (t < 0) add_chunk<T, SIZE>(dwte, dwte_pitch, dx, sorted, B * T_count, chunk, C, c);
    else       add_positions<T, SIZE>(dwpe, dwpe_pitch, dx, t, B, T_count, C, c, add);
}

/* Where chunk blockIdx.x + 1 is the first to continue a run, this block adds the run's partial sums, up to the last
   chunk that begins with the token, found by bisection. */
static __global__ void __launch_bounds__(256)
embedding_join_kernel(float *dwte, int64_t pitch, const int *token, int chunks, int chunk, int C) {
    const int from = blockIdx.x + 1, run = token[from * chunk], c = blockIdx.y * blockDim.x + threadIdx.x;
    if (c >= C || token[from * chunk - 1] != run) return;
    if (from > 1 && token[(from - 1) * chunk - 1] == run) return;
    int low = from, high = chunks;                  /* low begins with the token, high does not */
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (token[middle * chunk] == run) low = middle;
        else                              high = middle;
    }
    float total = 0;
    #pragma unroll 16
    for (int i = from; i < high; i++) total += partial[(int64_t)i * C + c];
    dwte[run * pitch + c] += total;
}

template <class T, int SIZE> static void backward(Tensor dwte, Tensor dwpe, Tensor dx, Sorted sorted, Into dwpe_into) {
    const int64_t C = dx.dim[2], count = tensor_rows(dx);
    int64_t chunks = PARTIAL_ROOM / C;
    if (chunks > MAX_CHUNKS) chunks = MAX_CHUNKS;
    int64_t chunk = ceil_div(count, chunks);
    if (chunk < MIN_CHUNK) chunk = MIN_CHUNK;
    chunks = ceil_div(count, chunk);
    const Columns by = columns_by(C, SIZE), by_one = columns_by(C, 1);
    LAUNCH((embedding_sums_kernel<T, SIZE>), dim3((unsigned)(chunks + dwpe.dim[0]), by.blocks), by.threads, 0,
           (float *)dwte.data, dwte.pitch, (float *)dwpe.data, dwpe.pitch, (const T *)dx.data, sorted, (int)chunks,
           (int)chunk, (int)dx.dim[0], (int)dx.dim[1], (int)C, dwpe_into == ACCUMULATE);
    if (chunks > 1)
        LAUNCH(embedding_join_kernel, dim3((unsigned)chunks - 1, by_one.blocks), by_one.threads, 0, (float *)dwte.data,
               dwte.pitch, sorted.token, (int)chunks, (int)chunk, (int)C);
}

void embedding_backward(Tensor dwte, Tensor dwpe, Tensor dx, Tensor tokens, Into dwpe_into) {
    check_embedding("embedding backward", dx, tokens, dwte, dwpe);
    REQUIRE(tensor_rows(dx) <= 1 << 30, "embedding backward: %lld positions, want at most %d",
            (long long)tensor_rows(dx), 1 << 30);
    op_begin("embedding backward", op_bytes(3, dx, tokens, dwpe), 0);
    const bool aligned = rows_aligned(dx) && rows_aligned(dwte) && rows_aligned(dwpe);
    const Sorted sorted = sort_by_token((const int *)tokens.data, (int)tensor_rows(dx), dwte.dim[0]);
    if (dx.dtype == BF16) (aligned ? backward<bf16, 8> : backward<bf16, 1>)(dwte, dwpe, dx, sorted, dwpe_into);
    else                  (aligned ? backward<float, 4> : backward<float, 1>)(dwte, dwpe, dx, sorted, dwpe_into);
    op_end();
}
