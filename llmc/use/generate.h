/* generate.h - Text from a model, token by token. */
#pragma once
#include "../report/report.h"
#include "../text/tokenizer.h"

/* The text of --prompt, a new string. Sets config->cache_tokens: those of a sample with it, at most T. Warns of one
   longer than T. Fails where it cannot be read or tokenized, and where there is a --stop for token ids. */
char *sample_prompt(const Settings *settings, Tokenizer *tokenizer, GPTConfig *config);

/* Writes prompt, continuation and a newline to file, token by token; --num-samples of them, with a line --- between
   two, or with --interactive one for each line of stdin. A prompt "" starts from tokenizer_start, which is not
   written; a text ends after --sample-tokens, at tokenizer_end_of_text, and before --stop. Uses the model's activation
   memory, as gpt_set_cache does. The model was created to GENERATE one sequence of its whole context T, or to TRAIN,
   with config.cache_tokens for this one. It sees the last T tokens of a longer prompt; when the context is full, its
   older half is dropped. step: the training step, so that samples differ. report: that of the run, which gets an event,
   or NULL. A stop request (llmc/base/os.h) ends it early. Fails where a logit is not finite. */
void sample_text(GPT *model, Tokenizer *tokenizer, const Settings *settings, const char *prompt, Report *report,
                 int64_t step, FILE *file);

/* The sample that the settings of a training run describe, with its sample_prompt: to stdout and as an event, by rank 0
   alone, with the whole context also where ranks share sequences. */
void print_sample(GPT *model, Tokenizer *tokenizer, const Settings *settings, const char *prompt, Report *report,
                  int64_t step);
