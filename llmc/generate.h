/* llmc/generate.h - Text from a model, token by token. */
#ifndef LLMC_GENERATE_H
#define LLMC_GENERATE_H
#include "report.h"
#include "settings.h"
#include "tokenizer.h"

typedef struct {
    const char *prompt;         /* "" starts from tokenizer_start, which is not written */
    int      count;             /* tokens to generate */
    double   temperature;       /* 0 = always the most likely */
    int      top_k;             /* 0 = all; of equal logits, those with lower ids are kept */
    uint64_t seed;
    FILE    *copy;              /* also receives the text, unescaped; NULL = none */
} Sample;

/* Samples a token from V logits, with uniform in [0,1). Fails on a non-finite logit. */
int32_t sample_token(const float *logits, int V, double temperature, int top_k, double uniform);

/* Writes prompt, continuation and a newline to file, token by token. Uses the model's activation memory: gpt_set_batch
   must be called again before the next batch. The model sees the last T tokens of a longer prompt; when the context is
   full, its older half is dropped. step: of training, so that each sample differs. Ends early when a stop is requested
   (llmc/os.h). */
void sample_text(GPT *model, Tokenizer tokenizer, const Sample *sample, int64_t step, FILE *file);

/* The sample that the settings describe: to stdout and as an event, by rank 0 alone. */
void print_sample(GPT *model, Tokenizer tokenizer, const Settings *settings, Report *report, int64_t step);

#endif
