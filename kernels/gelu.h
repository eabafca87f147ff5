/* gelu.h - GELU, tanh form (Hendrycks and Gimpel 2016, arXiv 1606.08415):
   y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). All tensors of one shape, packed. */
#pragma once
#include "tensor.h"

void gelu_forward(Tensor y, Tensor x);

/* dx = dy * y'(x); dx may be the same memory as dy. dx_sum (columns) F32 = or += the sums of dx's columns: the gradient
   of a bias that was added to x. Absent: not computed. The end of the sums is a part beside the stream
   (device_side_begin). Writes dx.max. */
void gelu_backward(Tensor dx, Tensor dy, Tensor x, Tensor dx_sum, Into sum_into);
