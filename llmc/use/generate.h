/* generate.h - Text from a model, token by token. */
#ifndef LLMC_GENERATE_H
#define LLMC_GENERATE_H
#include "../report/report.h"
#include "../options/settings.h"
#include "../text/tokenizer.h"

typedef struct {
    const char *prompt;         /* "" starts from tokenizer_start, which is not written */
    const char *stop;           /* text before which an answer ends; "" = none */
    int         count;          /* tokens to generate, at most: a text also ends at tokenizer_end_of_text */
    int         samples;        /* generated together, each with other random numbers */
    int         is_interactive; /* continues the lines of stdin */
    Sampling    sampling;
    uint64_t    seed;
    FILE       *copy;           /* also receives the text, unescaped; NULL = none */
} Sample;

/* Writes prompt, continuation and a newline to file, token by token; the second sample follows the first, after a line
   ---. Uses the model's activation memory, as gpt_set_cache does. The model was created to GENERATE that many samples
   of its whole context T, or to TRAIN, with config.cache_tokens for one of this length. It sees the last T tokens of a
   longer prompt; when the context is full, its older half is dropped. step: the training step, so that samples differ.
   A stop request (llmc/base/os.h) ends it early. Fails where a logit is not finite. */
void sample_text(GPT *model, Tokenizer tokenizer, const Sample *sample, int64_t step, FILE *file);

/* The sample that the settings of a training run describe: to stdout and as an event, by rank 0 alone, with the
   whole context also where ranks share sequences. */
void print_sample(GPT *model, Tokenizer tokenizer, const Settings *settings, Report *report, int64_t step);

/* config.cache_tokens for it: prompt and continuation, at most T. Warns of a prompt longer than T. Fails where the
   prompt cannot be tokenized, and where there is a --stop for token ids. */
int sample_cache_tokens(const GPTConfig *config, Tokenizer tokenizer, const Settings *settings);

/* --sample. note: a line for stderr that names the checkpoint; NULL = none. */
void sample_checkpoint(GPT *model, Tokenizer tokenizer, const Settings *settings, const char *note);

#endif
