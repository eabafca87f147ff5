/* kernels/cpu/gemm.h - Matrix product in f32: c = or += a b + bias. Two implementations, one of them linked: gemm_own.c
   and gemm_cblas.c. The bits of the result do not depend on the number of threads. Called from one thread at a time. */
#ifndef KERNELS_CPU_GEMM_H
#define KERNELS_CPU_GEMM_H
#include "../tensor.h"

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

typedef enum { BY_ROWS, TRANSPOSED } Layout;   /* memory holds the matrix row after row, or its transpose */

typedef struct {
    const float *data;
    int64_t      pitch;     /* elements from one row in memory to the next */
    Layout       layout;
} Operand;

typedef struct {
    int64_t      M, N, K;   /* all >= 1 */
    Operand      a, b;      /* (M,K), (K,N) */
    const float *bias;      /* (N), added to every row; NULL = none */
    float       *c;         /* (M,N) */
    int64_t      c_pitch;
    Into         into;
} Gemm;

void gemm(Gemm g);

const char *gemm_name(void);    /* "OpenBLAS 0.3.21", "our own loops" */

#endif
