/* kernels/cuda/partial_sums.cuh - Column sums over all blocks of a kernel, in a fixed order and in the same kernel:
   every block writes its part, the last blocks to arrive wait for the rest and add the parts up, 32 columns at a time.
   For kernels on one stream, one after the other. */
#ifndef KERNELS_CUDA_PARTIAL_SUMS_CUH
#define KERNELS_CUDA_PARTIAL_SUMS_CUH
#include "common.cuh"

/* How many blocks have arrived, and how often all have. Zero at first; count is zero again after each launch. */
struct Arrivals { unsigned count, round; };

/* Called once by all threads of a block whose part is written. Returns 0 .. last - 1 in the blocks that arrive last,
   when every block has arrived and __ldcg reads their parts, and -1 in the others. last: at most the blocks of the
   grid, and fewer than the GPU holds at a time, for waiting blocks keep their places. */
__device__ inline int arrive(Arrivals *arrivals, unsigned last) {
    __shared__ int index;
    const unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
    const bool first_thread = threadIdx.x == 0;
    volatile unsigned *round = &arrivals->round;
    const unsigned before = first_thread ? *round : 0;      /* it can advance once this block has arrived */
    __threadfence();
    __syncthreads();
    if (first_thread) {
        const unsigned arrival = atomicInc(&arrivals->count, blocks - 1);
        index = (int)arrival - (int)(blocks - last);
        __threadfence();
        if (arrival == blocks - 1) *round = before + 1;
        else if (index >= 0) while (*round == before) { }
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
};

/* Of at most PARTIAL_COUNT / columns slices; c, or b and c, may be absent. The memory is shared by all kernels. */
PartialSums partial_sums(int64_t slices, Tensor a, Tensor b, Tensor c, Into into);

/* The end of the kernel, called by all threads of every block: at most 12 warps. */
__device__ inline void partial_sums_finish(const PartialSums &s) {
    constexpr int AHEAD = 12;       /* loads in flight: 264 slices are 22 for each of 12 warps */
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

/* The same for a kernel whose block (tile, slice) has 8 warps and 32 WIDTH columns: a lane has WIDTH neighbours of
   them, and in sum what its warp has added up of the slice. */
template <int WIDTH> __device__ inline void partial_sums_finish_tile(const PartialSums &s, const float (&sum)[WIDTH]) {
    constexpr int WARPS = 8, STEP = 36;     /* 32 lanes + 4: the 8 values of a lane are in different banks */
    static_assert(WIDTH <= WARPS, "a block has a thread for every column");
    __shared__ float warp_total[WARPS][WIDTH * STEP];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    #pragma unroll
    for (int i = 0; i < WIDTH; i++) warp_total[warp][i * STEP + lane] = sum[i];
    __syncthreads();
    const int column = blockIdx.x * 32 * WIDTH + threadIdx.x, at = threadIdx.x % WIDTH * STEP + threadIdx.x / WIDTH;
    if (threadIdx.x < 32 * WIDTH && column < s.columns) {
        float total = 0;
        #pragma unroll
        for (int i = 0; i < WARPS; i++) total += warp_total[i][at];
        s.partial[(int64_t)blockIdx.y * s.columns + column] = total;
    }
    partial_sums_finish(s);
}

#endif
