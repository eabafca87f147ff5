/* kernels/matmul.h - Linear layer. out, dout (B,T,N); x, dx (B,T,K); weight, dweight (N,K); bias, dbias (N).
   Rows may lie apart (any pitch). */
#ifndef KERNELS_MATMUL_H
#define KERNELS_MATMUL_H
#include "tensor.h"

/* out = x weight^T + bias; an absent bias is zero. */
void matmul_forward(Tensor out, Tensor x, Tensor weight, Tensor bias);

/* dx = dout weight; dweight = or += dout^T x; dbias = or += column sums of dout. Absent dx or dbias: not computed. */
void matmul_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dout, Tensor x, Tensor weight, Into dweight_into);

#endif
