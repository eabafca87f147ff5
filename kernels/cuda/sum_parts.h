/* sum_parts.h - For comm_nccl.c: a sum on a stream of its own. */
#ifndef KERNELS_CUDA_SUM_PARTS_H
#define KERNELS_CUDA_SUM_PARTS_H
#include "cuda.h"

/* sum (count) = parts (part_count, count) added up in their order. Device memory. */
void sum_parts(float *sum, const float *parts, int64_t count, int part_count, cudaStream_t stream);

#endif
