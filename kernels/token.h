/* token.h - One token of one sequence through all blocks of a GPT-2, for generation. */
#ifndef KERNELS_TOKEN_H
#define KERNELS_TOKEN_H
#include "tensor.h"

typedef struct {
    Tensor token, position;                     /* I32 (1), on the device; a token below 0 counts as 0 */
    int ahead;                                  /* the token is at *position + ahead; if not 0 and weights are frozen,
                                                   the op before is the sample_tokens that chose it */
    Tensor wte, wpe, lnfw, lnfb;
    Tensor ln1w, ln1b, qkvw, qkvb, projw, projb, ln2w, ln2b, fcw, fcb, fcprojw, fcprojb;    /* first block's */
    Tensor cache;                               /* first block's: k and v of earlier tokens, (1,T,2C) */
    int64_t block_bytes, cache_bytes;           /* from one block's tensors, and cache, to the next one's */
    int L, NH;
    float scale;                                /* multiplies the scores */
} TokenNetwork;

/* lnf (1,1,C) = output of the last LayerNorm; the token's row of each cache = its k and v. All but token and position
   have lnf's type; operands of GEMMs are rounded to it, the residual stream is not. A token or position out of range
   stops the device. Returns 0, having done nothing, where the backend has no kernel for the shape. */
int token_forward(Tensor lnf, const TokenNetwork *n);

#endif
