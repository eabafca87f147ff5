/* matmul.h - Linear layer, optionally followed or preceded by a GELU. out, pre_gelu, dout (B,T,N);
   x, x_pre_gelu, dx (B,T,K); weight (N,K); bias (N); dweight (N,K), dbias (N), dx_bias (K) F32. Any pitch; operands of
   a GELU are packed. */
#pragma once
#include "tensor.h"

/* out = x weight^T + bias; an absent bias is zero. out may be F32 where x is BF16 and there is no bias.
   Where pre_gelu is present: pre_gelu = x weight^T + bias, out = gelu(pre_gelu). */
void matmul_forward(Tensor out, Tensor pre_gelu, Tensor x, Tensor weight, Tensor bias);

/* dx = dout weight; dweight = or += dout^T x; dbias = or += column sums of dout. Absent dx or dbias: not computed.
   dx may be the same memory as x; where it is not, dweight and dbias are a part beside the stream (device_side_begin).
   Where x_pre_gelu is present (x = gelu(x_pre_gelu)): dx = (dout weight) * gelu'(x_pre_gelu), its gradient, and
   dx_bias = or += column sums of dx, the gradient of the bias that made x_pre_gelu; absent dx_bias: not computed. */
void matmul_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dx_bias, Tensor dout, Tensor x, Tensor x_pre_gelu,
                     Tensor weight, Into into);

/* The products of operands in E4M3 (fp8.h), in f32 sums. x (B,T,K), dout (B,T,N), their transposes xt (K, B T) and
   doutt (N, B T), weight (N,K) and weightt (K,N) are E4M3; out (B,T,N), bias (N), dx (B,T,K) BF16; dweight (N,K) F32.
   out = x weight^T + bias; dx = dout weight; dweight = or += dout^T x. Absent bias: zero; absent dx: not computed. */
void matmul_fp8_forward(Tensor out, Tensor x, Tensor weight, Tensor bias);
void matmul_fp8_backward(Tensor dx, Tensor dweight, Tensor dout, Tensor doutt, Tensor xt, Tensor weightt, Into into);
