/* partial_sums.cuh - Sums over all blocks of a kernel in a fixed order. Column sums: every block writes
   its part, and a second kernel, which may run beside what follows, adds the parts up. A single sum: the last block to
   arrive adds. */
#pragma once
#include "common.cuh"

/* Low bits: how many blocks have arrived; the highest changes when all have, and the others are 0 again. */
typedef unsigned Arrivals;

/* Called by all threads of a block whose part is written. Returns 0 .. last - 1 in the blocks that arrive last, when
   every block has arrived and __ldcg reads their parts, and -1 in the others. blocks: those that share arrivals. last:
   at most the blocks, and fewer than the GPU holds at a time, for waiting blocks keep their places. */
__device__ inline int arrive(Arrivals *arrivals, unsigned last,
                             unsigned blocks = gridDim.x * gridDim.y * gridDim.z) {
    constexpr unsigned ROUND = 1u << 31;
    __shared__ int index;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();                    /* the writes of the whole block precede its arrival */
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
    float *partial;                     /* (slices, columns) */
    int    slices, columns, width;
    float *to[3];                       /* the sums of width columns each */
    bool   add;
};

/* Memory for the sums of the slices, at most PARTIAL_COUNT in all, to be written by the next kernel; c, or b and c, may
   be absent. */
PartialSums partial_sums(int64_t slices, Tensor a, Tensor b, Tensor c, Into into);

/* After that kernel: adds up the slices w, w + warps, w + 2 warps, ... for each w < warps <= 12, and these sums in
   their order. */
void partial_sums_add(const PartialSums &sums, int warps);

/* For a kernel whose block (tile, slice) has 8 warps and 32 WIDTH columns: a lane has WIDTH neighbours of them, and in
   sum what its warp has added up of the slice. */
template <int WIDTH> __device__ inline void partial_sums_write_tile(const PartialSums &s, const float (&sum)[WIDTH]) {
    constexpr int WARPS = 8, STEP = 36;     /* 32 lanes + 4: the 8 values of a lane are in different banks */
    static_assert(WIDTH <= WARPS, "a block has a thread for every column");
    __shared__ float warp_total[WARPS][WIDTH * STEP];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int column = blockIdx.x * 32 * WIDTH + threadIdx.x, at = threadIdx.x % WIDTH * STEP + threadIdx.x / WIDTH;
    for (int i = 0; i < WIDTH; i++) warp_total[warp][i * STEP + lane] = sum[i];
    __syncthreads();
    if (threadIdx.x >= 32 * WIDTH || column >= s.columns) return;
    float total = 0;
    for (int i = 0; i < WARPS; i++) total += warp_total[i][at];
    s.partial[(int64_t)blockIdx.y * s.columns + column] = total;
}
