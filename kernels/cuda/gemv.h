/* gemv.h - GEMM of a few rows, as in generation, bound by reading b once. */
#ifndef KERNELS_CUDA_GEMV_H
#define KERNELS_CUDA_GEMV_H
#ifdef __cplusplus
extern "C" {
#endif
#include "../gemm.h"

/* Computes g, and where gelu is present gelu = the GELU of c, of the same shape and type; returns 1. Returns 0 unless M
   is at most 4, or 2 for many columns, the columns of b are contiguous (weights in a forward pass) and rows begin on 16
   bytes. */
int gemv(const Gemm *g, Tensor gelu);

#ifdef __cplusplus
}
#endif
#endif
