/* gemv.h - GEMM of a few rows, bound by reading b once: a dot product for each element of c. */
#ifndef KERNELS_CPU_GEMV_H
#define KERNELS_CPU_GEMV_H
#include "../gemm.h"

/* Computes g and returns 1 where M is small and the columns of b are contiguous, as weights in a forward pass; else
   returns 0. */
int gemv(const Gemm *g);

#endif
