/* sample.h - The choice of the next token. */
#pragma once
#include "tensor.h"

typedef struct {
    double temperature;     /* divides the logits; 0 = always the most likely token, the lowest of equal ones */
    int    top_k;           /* only the k most likely tokens; 0 = all */
    double top_p;           /* the fewest most likely of these whose share reaches p (Holtzman et al. 2020, arXiv
                               1904.09751); 1 = all */
} Sampling;

/* tokens (B) I32 = a token of each row of logits (B, at least V), F32, whose columns >= V are ignored; logits becomes
   scratch. uniform (B) F64 in [0,1) inverts the cumulative probability in the order of the tokens. Tokens that are
   equally likely in f32 are kept or left out together. -1 - i: logit i is the first that is not finite. */
void sample_tokens(Tensor tokens, Tensor logits, Tensor uniform, int V, Sampling sampling);
