/* fp8.h - Operands of matmul_fp8_* (matmul.h). GPUs of compute capability 8.9 and newer; others and the CPU refuse. */
#pragma once
#include "tensor.h"

/* q (B,T,C) E4M3 = x (B,T,C) BF16, rounded to nearest, ties to even; qt (C, B T) E4M3 = its transpose, the same bits.
   Either may be absent. All packed; C and B T are multiples of 16. *q.max and *qt.max, one address, are the largest
   magnitude of x: read where it is x.max as well, else written. A number that is not finite makes all products NaN. */
void quantize(Tensor q, Tensor qt, Tensor x);

/* The same of gelu(x), which is not rounded to bf16. x.max is not read. */
void quantize_gelu(Tensor q, Tensor qt, Tensor x);
