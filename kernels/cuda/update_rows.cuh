/* update_rows.cuh - The rows of an optimizer's update (update.h) that a block works on. */
#ifndef KERNELS_CUDA_UPDATE_ROWS_CUH
#define KERNELS_CUDA_UPDATE_ROWS_CUH
#include "common.cuh"
extern "C" {
#include "../update.h"
}

/* A block has SPAN elements of the flat memory, 240 KiB of traffic in AdamW. Row sizes range from 768 to 38.6 million:
   a fixed number of blocks per row would leave most of them without work. */
enum { THREADS = 256, SPAN = 8192 };

struct RowRange { int first, last; };

/* The rows with elements in begin .. end - 1. The threads of the block look at all rows at once, one access to the
   cache where a bisection would need eight. */
__device__ inline RowRange rows_between(const UpdateRow *rows, int row_count, int64_t begin, int64_t end) {
    __shared__ int first_row, last_row;
    if (threadIdx.x == 0) {
        first_row = row_count;
        last_row = -1;
    }
    __syncthreads();
    for (int r = threadIdx.x; r < row_count; r += THREADS)
        if (rows[r].first < end && rows[r].first + rows[r].count > begin) {
            atomicMin(&first_row, r);
            atomicMax(&last_row, r);
        }
    __syncthreads();
    return { first_row, last_row };
}

#endif
