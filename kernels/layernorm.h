/* layernorm.h - Layer normalisation (Ba et al. 2016, arXiv 1607.06450), eps = 1e-5, fused with the addition of
   a residual branch. sum, normed, x, branch, dx, dnormed (B,T,C); mean, rstd (B,T) F32; weight, bias (C). */
#pragma once
#include "tensor.h"

/* sum = x + branch; normed = (sum - mean) * rstd * weight + bias, with rstd = 1 / sqrt(variance + 1e-5).
   An absent branch is zero; sum is then x itself and may be absent or the same memory as x. Writes normed.max. */
void residual_layernorm_forward(Tensor sum, Tensor normed, Tensor mean, Tensor rstd,
                                Tensor x, Tensor branch, Tensor weight, Tensor bias);

/* dx = or += ; dweight, dbias, dx_sum (C) F32 = or += . x is the input of the normalisation (sum in the forward pass).
   dx_sum gets the column sums of dx as the call leaves it: the bias gradient of the linear layer before, whose dout
   dx is. Absent dx_sum: not computed. The end of the column sums is a part beside the stream (device_side_begin).
   Writes dx.max. */
void layernorm_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dx_sum, Tensor dnormed,
                        Tensor x, Tensor mean, Tensor rstd, Tensor weight, Into dx_into, Into into);
