/* llmc/evaluate.h - The loss of a model on a stream of tokens, and what is known of the least it can be. */
#ifndef LLMC_EVALUATE_H
#define LLMC_EVALUATE_H
#include "gpt.h"
#include "dataloader.h"

/* Hears how many of all sequences are done; at the end, also of one that was stopped, done is all. */
typedef void Progress(int64_t done, int64_t all);

/* Mean loss in nats per target over the first max_tokens targets of a stream, rounded up to whole sequences of
   model->config.T; 0 = all. *all says whether it was all of them. B sequences are computed at a time, no more than the
   model was made for; the next batch must be set again (gpt_set_batch). progress is called before each batch and at the
   end. NaN when the run was asked to stop meanwhile (llmc/stop.h). */
double evaluate(GPT *model, const Tokens *tokens, int64_t max_tokens, int B, int *all, Progress *progress);

/* "1.2345 nats per byte (1.7810 bits)" of a text, "3.2800 nats per token (perplexity 26.58)" of shards. */
const char *loss_text(double loss, int are_bytes, char text[96]);

/* The entropy of a text in nats per byte, which data/tales writes into PATH.floor where it knows it; NaN where there is
   no such file. Fails in a line on one that does not begin with a number of 0 or more. */
double text_floor(const char *path);

#endif
