/* embedding.h - Token and position embedding.
   tokens (B,T) I32 in [0, Vp); wte (Vp,C); wpe (at least T, C); x, dx (B,T,C); position I32, of each token of a
   sequence (T), or of the first (1); absent: of the first, 0. A token out of range fails on the CPU, and ends the
   program by an assertion on a GPU; that positions are rows of wpe is not checked. */
#pragma once
#include "tensor.h"

/* x = wte[token] + wpe[position] */
void embedding_forward(Tensor x, Tensor tokens, Tensor wte, Tensor wpe, Tensor position);

/* Prepares embedding_backward with these tokens, of a table of Vp rows: a GPU sorts them, a part beside the stream
   (device_side_begin). */
void embedding_sort(Tensor tokens, int64_t Vp);

/* After embedding_sort. dwte F32 += (the head has written it before), in the order of the tokens: the same bits every
   time; dwpe F32 = or += : rows without a position become 0 with OVERWRITE. position is absent, or (T) with distinct
   elements; dwpe is then packed. */
void embedding_backward(Tensor dwte, Tensor dwpe, Tensor dx, Tensor tokens, Tensor position, Into dwpe_into);
