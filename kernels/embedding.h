/* kernels/embedding.h - Token and position embedding.
   tokens (B,T) I32 in [0, Vp); wte (Vp,C); wpe (at least T, C); x, dx (B,T,C); position: I32 (1), absent = 0. */
#ifndef KERNELS_EMBEDDING_H
#define KERNELS_EMBEDDING_H
#include "tensor.h"

/* x = wte[token] + wpe[position + t]; position + T may not exceed the rows of wpe. */
void embedding_forward(Tensor x, Tensor tokens, Tensor wte, Tensor wpe, Tensor position);

/* dwte F32 += (the head has written it before), in the order of the positions: the same bits every time; dwpe F32
   = or += : its rows T and beyond become 0 with OVERWRITE. */
void embedding_backward(Tensor dwte, Tensor dwpe, Tensor dx, Tensor tokens, Into dwpe_into);

#endif
