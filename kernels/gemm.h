/* gemm.h - Matrix multiplication c = or += a b + bias, and column sums: the parts of a linear layer.
   Implemented by kernels/cpu/gemm.c and by kernels/cuda/gemm.c (cuBLASLt), a few rows by a dot product per element in
   both. Sums are made in f32, without TF32. The same operands give the same bits, whatever the number of threads; on a
   GPU with the same choice of an algorithm for the shape (autotune.h). Called from one host thread at a time. */
#pragma once
#include "tensor.h"

typedef enum { ROW_MAJOR, COLUMN_MAJOR } Layout;    /* COLUMN_MAJOR: memory holds the transpose, row after row */

typedef struct {
    const void *data;
    int64_t     pitch;      /* elements from one row in memory to the next */
    Layout      layout;
} Operand;

typedef struct Gemm {
    int64_t     M, N, K;    /* all >= 1 */
    DType       dtype;      /* a, b and bias: F32, on the GPU also BF16; or a and b E4M3, with K contiguous and sizes
                               that are multiples of 16, and bias BF16 */
    Operand     a, b;       /* (M,K), (K,N) */
    const void *bias;       /* (N), added to every row; NULL = none; not where c_dtype alone is F32 */
    void       *c;          /* (M,N), row-major */
    DType       c_dtype;    /* F32 or dtype; of E4M3, BF16 */
    int64_t     c_pitch;
    Into        into;
    const float *a_max, *b_max;     /* E4M3: Tensor.max */
} Gemm;

void gemm(Gemm g);

/* And out (M,N) = gelu(c) (gelu.h), in one kernel where that is measured to be faster. Both are packed, of dtype. The
   values between GEMM and GELU may be rounded to dtype. */
void gemm_gelu(Gemm g, void *out);

const char *gemm_name(void);    /* "train_gpt", "cuBLASLt 13.1.0" */

/* sum (columns) F32 = or += the sums of t's columns. Writes t.max. */
void column_sums(Tensor sum, Tensor t, Into into);
