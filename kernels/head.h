/* head.h - The head of the model: matmul with the token table, softmax cross-entropy, and both gradients. The
   logits exist for a chunk of rows at a time. */
#pragma once
#include "tensor.h"

/* losses (B,T) F32 = -log softmax(x wte^T)[target], 0 where the target is -1 ("ignore");
   dx (B,T,C) = and dwte (Vp,C) F32 = or += the gradients of dloss * sum(losses); both absent: evaluation only. dx may
   be the same memory as x; where it is not, dwte is a part beside the stream (device_side_begin).
   targets (B,T) I32 in [-1, V). Columns >= V are padding: excluded from the softmax, their gradient is zero;
   wte's rows there must be finite.
   work (R,Vp) is scratch; its number of rows R >= 1 is the size of a chunk and changes results by rounding only. Logits
   have its type: x's with gradients, which take the place of the logits, and F32 in evaluation. A logit rounded to BF16
   is off by up to 2^-9 of itself, its row's loss by up to 2^-8 of the row's largest |logit|. */
void head_loss(Tensor losses, Tensor dx, Tensor dwte, Tensor x, Tensor wte, Tensor targets,
               int V, float dloss, Into dwte_into, Tensor work);

/* The same of rows of logits (R,Vp), F32 or BF16, which are overwritten: losses (R), targets (R); dlogits (R,Vp) =
   dloss * (softmax(logits) - one at target), 0 where the target is -1, is logits (the same memory, type and pitch), or
   absent: losses only. Another target fails on the CPU, on the GPU its loss is NaN. Exponentials and sums are made in
   f32. */
void softmax_cross_entropy(Tensor losses, Tensor dlogits, Tensor logits, Tensor targets, int V, float dloss);
