/* Token and position embedding. The backward pass adds the rows of each token in the order of their positions, without
   atomics: the positions are sorted by token (a stable counting sort), the sorted list is cut into chunks of equal
   length, and a warp adds up the runs of equal tokens in its chunk. A run that began in an earlier chunk (the space in
   a text of bytes: 5000 of 32768) leaves a partial sum, and a second kernel adds those in order. */
#include <assert.h>
#include "partial_sums.cuh"
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

/* One digit at a time, lowest first: two passes for 50304 tokens, one for bytes. A block has about 4096 positions or
   more; several blocks exchange their counts in memory, and all of them wait for all twice a pass. */
enum { DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS, SORT_WARPS = 32, SORT_SHARE = 4096, SORT_BLOCKS = 64 };
static __device__ int digit_count[SORT_BLOCKS][DIGITS];
static __device__ Arrivals sort_arrivals;

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
            key[a] = i < last ? __ldcg(keys + i) : 0;           /* other blocks have written them */
            position[a] = positions && i < last ? __ldcg(positions + i) : i;
        }
        #pragma unroll
        for (int a = 0; a < AHEAD; a++) f(start + 32 * a + (int)threadIdx.x % 32 < last, key[a], position[a]);
    }
}

/* Every warp has an equal share of the positions. A prefix sum over digits, then blocks, then warps, turns its counts
   into the index of its first position of each digit. The last of the passes writes to, the one before it other, and
   so on. */
static __global__ void __launch_bounds__(32 * SORT_WARPS)
sort_kernel(Sorted to, Sorted other, const int *tokens, int count, int Vp, int passes) {
    wait_for_previous();
    __shared__ int next[SORT_WARPS][DIGITS], warp_total[SORT_WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, block = blockIdx.x, blocks = gridDim.x;
    const int share = (int)ceil_div(count, 32 * SORT_WARPS * blocks) * 32;
    const int first = min((block * SORT_WARPS + warp) * share, count), last = min(first + share, count);
    int *const mine = next[warp];
    const int *keys = tokens, *positions = NULL;
    for (int pass = 0; pass < passes; pass++) {
        const Sorted result = (passes - pass) % 2 ? to : other;
        const int shift = DIGIT_BITS * pass;
        for (int d = lane; d < DIGITS; d += 32) mine[d] = 0;
        __syncwarp();
        for_keys(keys, NULL, first, last, [&](bool own, int key, int) {
            assert((!own || key >= 0 && key < Vp) && "embedding backward: a token id outside of the table dwte");
            if (own) atomicAdd(&mine[key >> shift & (DIGITS - 1)], 1);
        });
        __syncthreads();

        /* a thread has 8 counts, of one digit, of 8 warps, and counts of every fourth block */
        const int digit = threadIdx.x / 4, quarter = threadIdx.x % 4, group = quarter * 8;
        int own = 0, below = 0;
        #pragma unroll
        for (int w = 0; w < 8; w++) own += next[group + w][digit];
        int all = own;                                  /* of all blocks; below: of those before this one */
        if (blocks > 1) {
            const int of_block = warp_sum<4>(own);
            if (quarter == 0) digit_count[block][digit] = of_block;
            arrive(&sort_arrivals, blocks);
            all = 0;
            #pragma unroll 4
            for (int b = quarter; b < blocks; b += 4) {
                const int n = __ldcg(&digit_count[b][digit]);
                all += n;
                if (b < block) below += n;
            }
            below = warp_sum<4>(below);
        }
        int upto = all, own_upto = own;                 /* inclusive prefix sums in the warp, and in the digit */
        #pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int n = __shfl_up_sync(0xffffffffu, upto, step);
            if (lane >= step) upto += n;
        }
        #pragma unroll
        for (int step = 1; step < 4; step *= 2) {
            const int n = __shfl_up_sync(0xffffffffu, own_upto, step, 4);
            if (quarter >= step) own_upto += n;
        }
        if (lane == 31) warp_total[warp] = upto;
        __syncthreads();
        int before = __shfl_sync(0xffffffffu, upto - all, 0, 4) + warp_sum(lane < warp ? warp_total[lane] : 0)
                     + below + own_upto - own;
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
        keys = result.token;
        positions = result.position;
        if (blocks == 1)            __syncthreads();
        else if (pass + 1 < passes) arrive(&sort_arrivals, blocks);
    }
}

/* The memory is kept for the next call and grows with the batch. */
static Sorted sort_by_token(const int *tokens, int count, int64_t Vp) {
    static int *memory, room, max_blocks;
    if (!max_blocks) {                      /* they wait for each other: every second SM holds one at least */
        int device, sms;
        CUDA(cudaGetDevice(&device));
        CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
        max_blocks = max(1, min(sms / 2, (int)SORT_BLOCKS));
    }
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
    LAUNCH_EARLY(sort_kernel, min((int)ceil_div(count, SORT_SHARE), max_blocks), 32 * SORT_WARPS, 0, to, other,
                 tokens, count, (int)Vp, passes);
    return to;
}

/* ---- backward */

/* A chunk's partial sum of the run that it shares with the chunk before: a row of C floats a chunk, 8 MiB in all, which
   bounds the number of chunks: 2048 at C = 768, of 32 positions each for a batch of 65536. */
enum { PARTIAL_ROOM = 1 << 21, MAX_CHUNKS = 2048, MIN_CHUNK = 32, SUM_WARPS = 4, JOIN_WARPS = 8 };
static __device__ __align__(16) float partial[PARTIAL_ROOM];

/* A run that began before the chunk goes to partial; the others are in this warp only: dwte += . The rows of AHEAD
   positions are in flight, with the rows of dwte where runs end. own: the lane has columns c .. c + SIZE - 1; the
   others take part in the shuffles. */
template <class T, int SIZE> __device__ inline void
add_chunk(float *dwte, int64_t pitch, const T *dx, Sorted sorted, int count, int index, int chunk, int C, int c,
          bool own) {
    constexpr int AHEAD = SIZE == 8 ? 4 : 8, STEP = SIZE % 4 == 0 ? 4 : 1;
    const int lane = threadIdx.x % 32, first = index * chunk, last = min(first + chunk, count);
    bool shared = first > 0 && sorted.token[first - 1] == sorted.token[first];
    float total[SIZE] = {};
    for (int start = first; start < last; start += 32) {
        const int i = min(start + lane, last - 1), own_token = sorted.token[i], own_position = sorted.position[i];
        const unsigned ends = __ballot_sync(0xffffffffu, i == last - 1 || sorted.token[i + 1] != own_token);
        for (int group = 0; group < min(32, last - start); group += AHEAD) {
            float row[AHEAD][SIZE], sum[AHEAD][SIZE];
            float *to[AHEAD];
            #pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                const int token = __shfl_sync(0xffffffffu, own_token, group + a);
                const int position = __shfl_sync(0xffffffffu, own_position, group + a);
                const bool end = ends >> (group + a) & 1, inside = own && start + group + a < last;
                to[a] = inside && end ? dwte + token * pitch + c : NULL;
                if (to[a] && shared) to[a] = partial + (int64_t)index * C + c;
                #pragma unroll
                for (int k = 0; k < SIZE; k++) row[a][k] = sum[a][k] = 0;
                if (inside) load_floats(row[a], dx + (int64_t)position * C + c);
                #pragma unroll
                for (int k = 0; k < SIZE; k += STEP) {
                    float part[STEP] = {};
                    if (to[a] && !shared) load_floats(part, to[a] + k);
                    #pragma unroll
                    for (int n = 0; n < STEP; n++) sum[a][k + n] = part[n];
                }
                shared = shared && !end;
            }
            #pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                #pragma unroll
                for (int k = 0; k < SIZE; k++) total[k] += row[a][k];
                if (!(ends >> (group + a) & 1)) continue;
                #pragma unroll
                for (int k = 0; k < SIZE; k++) {
                    sum[a][k] += total[k];
                    total[k] = 0;
                }
                if (to[a]) put_floats(to[a], sum[a], false);
            }
        }
    }
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
    put_floats(dwpe + position_of(position, true, t) * pitch + c, total, add);
}

/* A warp has a chunk, or then a row of dwpe, in 32 SIZE columns: those of blockIdx.y, the slower index, so that dx is
   read twice while its columns are in the L2 cache (at 124M, B = 64: 32 MiB of 96). */
template <class T, int SIZE> __global__ void __launch_bounds__(32 * SUM_WARPS, 4)
embedding_sums_kernel(float *dwte, int64_t dwte_pitch, float *dwpe, int64_t dwpe_pitch, const T *dx, Sorted sorted,
                      const int *position, int chunks, int chunk, int positions, int B, int T_count, int C, bool add) {
    wait_for_previous();
    const int c = (blockIdx.y * 32 + threadIdx.x % 32) * SIZE, index = blockIdx.x * SUM_WARPS + threadIdx.x / 32;
    if (index < chunks)
        add_chunk<T, SIZE>(dwte, dwte_pitch, dx, sorted, B * T_count, index, chunk, C, c, c < C);
    else if (index < chunks + positions && c < C)
        add_positions<T, SIZE>(dwpe, dwpe_pitch, dx, position, index - chunks, B, T_count, C, c, add);
}

/* Where chunk `from` is the first to continue a run, its warp adds the partial sums of the run, in 32 SIZE columns. Two
   blocks on an SM: without this bound ptxas saves registers and keeps 4 loads in flight. */
template <int SIZE> __global__ void __launch_bounds__(32 * JOIN_WARPS, 2)
embedding_join_kernel(float *dwte, int64_t pitch, const int *token, int chunks, int chunk, int C) {
    wait_for_previous();
    constexpr int AHEAD = 16;
    const int lane = threadIdx.x % 32, from = blockIdx.x * JOIN_WARPS + threadIdx.x / 32 + 1;
    const int c = (blockIdx.y * 32 + lane) * SIZE;
    if (from >= chunks) return;
    const int run = token[from * chunk];
    if (token[from * chunk - 1] != run || from > 1 && token[(from - 1) * chunk - 1] == run) return;
    int end = from + 1;                             /* the next chunk that does not begin with the token */
    for (;; end += 32) {
        const bool same = end + lane < chunks && token[(end + lane) * chunk] == run;
        const unsigned others = ~__ballot_sync(0xffffffffu, same);
        if (!others) continue;
        end += __ffs((int)others) - 1;
        break;
    }
    if (c >= C) return;
    float total[SIZE] = {};
    #pragma unroll 1
    for (int start = from; start < end; start += AHEAD) {
        float part[AHEAD][SIZE] = {};
        #pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (start + a < end) load_floats(part[a], partial + (int64_t)(start + a) * C + c);
        #pragma unroll
        for (int a = 0; a < AHEAD; a++)
            #pragma unroll
            for (int k = 0; k < SIZE; k++) total[k] += part[a][k];
    }
    put_floats(dwte + run * pitch + c, total, true);
}

template <class T, int SIZE>
static void backward(Tensor dwte, Tensor dwpe, Tensor dx, Sorted sorted, Tensor position, Into dwpe_into) {
    constexpr int JOIN_SIZE = SIZE == 1 ? 1 : 4;
    const int64_t C = dx.dim[2], count = tensor_rows(dx), positions = position.data ? dx.dim[1] : dwpe.dim[0];
    const int64_t max_chunks = min(PARTIAL_ROOM / C, (int64_t)MAX_CHUNKS);
    REQUIRE(max_chunks, "embedding backward: %lld columns, want at most %d", (long long)C, PARTIAL_ROOM);
    const int64_t chunk = max(ceil_div(count, max_chunks), (int64_t)MIN_CHUNK), chunks = ceil_div(count, chunk);
    const dim3 blocks((unsigned)ceil_div(chunks + positions, SUM_WARPS), (unsigned)ceil_div(C, 32 * SIZE));
    LAUNCH_EARLY((embedding_sums_kernel<T, SIZE>), blocks, 32 * SUM_WARPS, 0, (float *)dwte.data, dwte.pitch,
                 (float *)dwpe.data, dwpe.pitch, (const T *)dx.data, sorted, (const int *)position.data,
                 (int)chunks, (int)chunk, (int)positions, (int)dx.dim[0], (int)dx.dim[1], (int)C,
                 dwpe_into == ACCUMULATE || position.data);
    const dim3 join_blocks((unsigned)ceil_div(chunks - 1, JOIN_WARPS), (unsigned)ceil_div(C, 32 * JOIN_SIZE));
    if (chunks > 1)
        LAUNCH_EARLY((embedding_join_kernel<JOIN_SIZE>), join_blocks, 32 * JOIN_WARPS, 0, (float *)dwte.data,
                     dwte.pitch, sorted.token, (int)chunks, (int)chunk, (int)C);
}

void embedding_backward(Tensor dwte, Tensor dwpe, Tensor dx, Tensor tokens, Tensor position, Into dwpe_into) {
    check_embedding("embedding backward", dx, tokens, dwte, dwpe, position);
    REQUIRE(tensor_rows(dx) <= 1 << 30, "embedding backward: %lld tokens, want at most %d",
            (long long)tensor_rows(dx), 1 << 30);
    op_begin("embedding backward", op_bytes(3, dx, tokens, dwpe), 0);
    const bool aligned = rows_aligned(dx) && rows_aligned(dwte) && rows_aligned(dwpe);
    const Sorted sorted = sort_by_token((const int *)tokens.data, (int)tensor_rows(dx), dwte.dim[0]);
    if (position.data && dwpe_into == OVERWRITE) device_zero(dwpe.data, tensor_bytes(dwpe));
    (dx.dtype == BF16 ? aligned ? backward<bf16, 8> : backward<bf16, 1> : aligned ? backward<float, 4>
     : backward<float, 1>)(dwte, dwpe, dx, sorted, position, dwpe_into);
    op_end();
}
