/* kernels/cuda/gemv.h - GEMM of a few rows, as in generation, bound by reading b once. */
#ifndef KERNELS_CUDA_GEMV_H
#define KERNELS_CUDA_GEMV_H
#ifdef __cplusplus
extern "C" {
#endif
#include "../gemm.h"

/* Computes g and returns 1 where M is at most 8, the columns of b are contiguous (weights in a forward pass) and rows
   begin on 16 bytes; else returns 0. */
int gemv(const Gemm *g);

#ifdef __cplusplus
}
#endif
#endif
