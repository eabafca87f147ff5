/* kernels/cuda/partial_sums.cuh - Column sums over all blocks of a kernel, in a fixed order and in the same kernel:
   every block writes its part, and the last to arrive add the parts up. For kernels on one stream, one after the other:
   memory and counters are shared. */
#ifndef KERNELS_CUDA_PARTIAL_SUMS_CUH
#define KERNELS_CUDA_PARTIAL_SUMS_CUH
#include "common.cuh"

/* Low bits: how many blocks have arrived; the highest changes when all have, and the others are 0 again. */
typedef unsigned Arrivals;

/* Called once by all threads of a block whose part is written. Returns 0 .. last - 1 in the blocks that arrive last,
   when every block has arrived and __ldcg reads their parts, and -1 in the others. last: at most the blocks of the
   grid, and fewer than the GPU holds at a time, for waiting blocks keep their places. */
__device__ inline int arrive(Arrivals *arrivals, unsigned last) {
    constexpr unsigned ROUND = 1u << 31;
    __shared__ int index;
    const unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();                    /* of what the whole block has written before the barrier */
        const unsigned before = atomicAdd(arrivals, 1u), arrival = before & ~ROUND;
        index = (int)arrival - (int)(blocks - last);
        if (arrival == blocks - 1) atomicAdd(arrivals, ROUND - blocks);
        else if (index >= 0) while (!((*(volatile Arrivals *)arrivals ^ before) & ROUND)) { }
        __threadfence();
    }
    __syncthreads();
    return index < 0 ? -1 : index;
}

enum { PARTIAL_COUNT = 5 << 19 };       /* floats: 10 MiB */

struct PartialSums {
    float    *partial;                  /* (slices, columns) */
    int       slices, columns, width;
    float    *to[3];                    /* the sums of width columns each */
    bool      add;
    unsigned  last;
    Arrivals *arrivals;
    unsigned *tile_arrivals;            /* of each tile of columns, for partial_sums_finish_tile; 0 after each launch */
};

/* Of at most PARTIAL_COUNT / columns slices; c, or b and c, may be absent. The memory is shared by all kernels. */
PartialSums partial_sums(int64_t slices, Tensor a, Tensor b, Tensor c, Into into);

/* The end of the kernel, called by all threads of every block: at most 12 warps. */
__device__ inline void partial_sums_finish(const PartialSums &s) {
    constexpr int AHEAD = 22;       /* loads in flight: 264 slices are 22 for each of 12 warps */
    __shared__ float part[12][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int index = arrive(s.arrivals, s.last);
    if (index < 0) return;
    for (int tile = index; 32 * tile < s.columns; tile += (int)s.last) {
        const int c = 32 * tile + lane;
        float total = 0;
        for (int first = warp; c < s.columns && first < s.slices; first += AHEAD * warps) {
            float f[AHEAD];
            #pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                const int i = first + k * warps;
                f[k] = i < s.slices ? __ldcg(s.partial + (int64_t)i * s.columns + c) : 0.0f;
            }
            #pragma unroll
            for (int k = 0; k < AHEAD; k++) total += f[k];
        }
        part[warp][lane] = total;
        __syncthreads();
        if (warp == 0 && c < s.columns) {
            #pragma unroll 4
            for (int w = 1; w < warps; w++) total += part[w][lane];
            float *to = c < s.width ? s.to[0] + c : c < 2 * s.width ? s.to[1] + c - s.width : s.to[2] + c - 2 * s.width;
            *to = (s.add ? *to : 0.0f) + total;
        }
        __syncthreads();
    }
}

/* The end of a kernel whose block (tile, slice) has 8 warps and 32 WIDTH columns: a lane has WIDTH neighbours of them,
   and in sum what its warp has added up of the slice. The last block of a tile to arrive adds up its slices: none
   waits. */
template <int WIDTH> __device__ inline void partial_sums_finish_tile(const PartialSums &s, float (&sum)[WIDTH]) {
    constexpr int WARPS = 8, AHEAD = 4, STEP = 36;  /* 32 lanes + 4: the 8 values of a lane are in different banks */
    static_assert(WIDTH <= WARPS, "a block has a thread for every column");
    __shared__ float warp_total[WARPS][WIDTH * STEP];
    __shared__ bool is_last;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slices = (int)gridDim.y;
    const int column = blockIdx.x * 32 * WIDTH + threadIdx.x, at = threadIdx.x % WIDTH * STEP + threadIdx.x / WIDTH;
    const bool own = threadIdx.x < 32 * WIDTH && column < s.columns;
    /* of the 8 warps, in the threads that have a column */
    const auto block_total = [&] {
        #pragma unroll
        for (int i = 0; i < WIDTH; i++) warp_total[warp][i * STEP + lane] = sum[i];
        __syncthreads();
        float total = 0;
        #pragma unroll
        for (int i = 0; i < WARPS; i++) total += own ? warp_total[i][at] : 0.0f;
        return total;
    };
    const float slice_total = block_total();
    if (own) s.partial[(int64_t)blockIdx.y * s.columns + column] = slice_total;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        is_last = atomicInc(s.tile_arrivals + blockIdx.x, (unsigned)slices - 1) == (unsigned)slices - 1;
        __threadfence();
    }
    __syncthreads();
    if (!is_last) return;

    constexpr int LOAD = WIDTH == 8 ? 4 : WIDTH;            /* floats */
    const int first_column = (blockIdx.x * 32 + lane) * WIDTH;
    #pragma unroll
    for (int i = 0; i < WIDTH; i++) sum[i] = 0;
    for (int first = warp; first < slices && first_column < s.columns; first += AHEAD * WARPS) {
        float f[AHEAD][WIDTH] = {};
        #pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int slice = first + k * WARPS;
            const float *from = s.partial + (int64_t)slice * s.columns + first_column;
            #pragma unroll
            for (int i = 0; i < WIDTH && slice < slices; i += LOAD) {
                if constexpr (LOAD == 1) {
                    f[k][i] = __ldcg(from + i);
                } else {
                    const float4 part = __ldcg((const float4 *)(from + i));
                    f[k][i] = part.x;
                    f[k][i + 1] = part.y;
                    f[k][i + 2] = part.z;
                    f[k][i + 3] = part.w;
                }
            }
        }
        #pragma unroll
        for (int k = 0; k < AHEAD; k++)
            #pragma unroll
            for (int i = 0; i < WIDTH; i++) sum[i] += f[k][i];
    }
    const float total = block_total();
    if (own) s.to[0][column] = (s.add ? s.to[0][column] : 0.0f) + total;
}

#endif
