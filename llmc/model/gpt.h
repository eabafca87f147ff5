/* gpt.h - The network: loss, gradients and the next token of a batch. */
#pragma once
#include "../../kernels/sample.h"
#include "../../kernels/update.h"
#include "gpt_tensors.h"

/* Uploads a batch of the size that is set, as device_upload_async does; targets may be NULL. first, the number of its
   first sequence: computed with dropout, by the masks of sequences *first, *first + 1, ..., and products in E4M3, in a
   model created to TRAIN with them; NULL: without, and with matmul_dtype E4M3 not for gpt_backward. */
void gpt_load(GPT *m, const int32_t *tokens, const int32_t *targets, const uint64_t *first);

void gpt_forward(GPT *m);                                  /* tokens -> lnf */
void gpt_loss(GPT *m);                                     /* lnf, targets -> losses, from f32 logits */

/* The same for some tokens only, range after range: their targets and losses are the first elements. Token t of
   sequence b is b T + t. Once after each gpt_forward, without gpt_backward: takes the memory of res. */
typedef struct { int64_t first, count; } TokenRange;
void gpt_loss_of(GPT *m, const TokenRange *range, int ranges);

/* lnf, targets -> losses, from logits in config.dtype, and all gradients of dloss * sum(losses), written or added.
   ready, NULL = none, is called when the last operation on the gradients of a group has been issued, so that their
   reduction can overlap the rest of the pass: L, L-1, ..., 0, FIRST_GROUP. Once after each gpt_forward: gradients
   replace activations in memory. */
void gpt_backward(GPT *m, float dloss, Into into, GroupHook *ready, void *context);

/* Logits (B,Vp) F32, on the device, after the last of the T tokens of each sequence; columns >= V are padding. */
Tensor gpt_last_logits(GPT *m);

/* With a cache: gpt_forward, and the tokens (B) that follow the last ones, chosen as kernels/sample.h says with uniform
   (B); both on the host. sampling is the same until gpt_set_cache: the work of a token is recorded as a CUDA graph. */
void gpt_next(GPT *m, Sampling sampling, const double *uniform, int32_t *next);

/* Logits (V) after one token of the batch, on the host; after gpt_forward. Token t of sequence b is b T + t. */
void gpt_logits(GPT *m, int64_t token, float *logits);

/* Sets the name of the first tensor with a NaN or an infinity: parameters, then the activations with memory of their
   own in the order of the forward pass, then gradients in the order of the backward pass; 0 = all are finite. */
int gpt_find_nonfinite(const GPT *m, char name[96]);
