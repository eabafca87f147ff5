/* softmax_cross_entropy.h - Losses of rows of logits, and their gradient in place of the logits. */
#ifndef KERNELS_SOFTMAX_CROSS_ENTROPY_H
#define KERNELS_SOFTMAX_CROSS_ENTROPY_H
#include "tensor.h"

/* losses (R) F32 = -log softmax(logits)[target], 0 where the target is -1 ("ignore").
   dlogits (R,Vp) = dloss * (softmax(logits) - one at target), 0 where the target is -1.
   targets (R) I32 in [-1, V): another one fails on the CPU, on the GPU its loss is NaN. Columns >= V are padding:
   excluded from the softmax, gradient zero.
   logits (R,Vp) F32 or BF16 are overwritten; exponentials and sums are made in f32. dlogits is logits (the same memory,
   type and pitch), or absent: losses only. */
void softmax_cross_entropy(Tensor losses, Tensor dlogits, Tensor logits, Tensor targets, int V, float dloss);

#endif
