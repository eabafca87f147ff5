/* kernels/cuda/gemm.h - Matrix product by cuBLASLt: c = or += a b + bias, added up in f32 (no TF32). The same bits
   every time. And the sum of columns, its companion in every linear layer. */
#ifndef KERNELS_CUDA_GEMM_H
#define KERNELS_CUDA_GEMM_H
#include "../tensor.h"

typedef enum { BY_ROWS, TRANSPOSED } Layout;   /* memory holds the matrix row after row, or its transpose */

typedef struct {
    const void *data;
    int64_t     pitch;      /* elements from one row in memory to the next */
    Layout      layout;
} Operand;

typedef struct {
    int64_t     M, N, K;    /* all >= 1 */
    DType       dtype;      /* of a, b and bias: F32, BF16 */
    Operand     a, b;       /* (M,K), (K,N) */
    const void *bias;       /* (N), added to every row; NULL = none, as it must be where c_dtype is not dtype */
    void       *c;          /* (M,N) */
    DType       c_dtype;    /* F32, or what a and b are */
    int64_t     c_pitch;
    Into        into;
} Gemm;

void gemm(Gemm g);

/* sum (columns) F32 = or += the sums of t's columns; t F32 or BF16, rows may lie apart. */
void column_sums(Tensor sum, Tensor t, Into into);

#endif
