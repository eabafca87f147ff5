/* llmc/generate.h - Text from a model, token by token. */
#ifndef LLMC_SAMPLER_H
#define LLMC_SAMPLER_H
#include "gpt.h"
#include "tokenizer.h"

typedef struct {
    const char *prompt;         /* "" starts from a newline (bytes) or from the last id, end of text (ids) */
    int      count;             /* tokens to make */
    double   temperature;       /* 0 = always the most likely */
    int      top_k;             /* 0 = all; of equal logits the lower ids are kept */
    uint64_t seed;
} Sample;

/* Chooses a token from V logits. uniform in [0,1). The same logits and number give the same token. Fails in a line on a
   logit that is not finite. */
int32_t sample_token(const float *logits, int V, double temperature, int top_k, double uniform);

/* Writes prompt, continuation and a newline to file, as they come. Uses the model's activation memory, so it runs
   between steps, and the next batch must be set again (gpt_set_batch). Of a prompt longer than the context, the model
   sees the last part; once the context is full, the oldest half of it is dropped. step: of training, so that each
   sample differs. */
void sample_text(GPT *model, Tokenizer tokenizer, const Sample *sample, int64_t step, FILE *file);

#endif
