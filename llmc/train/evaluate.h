/* evaluate.h - The loss of a model on a token stream. */
#ifndef LLMC_EVALUATE_H
#define LLMC_EVALUATE_H
#include "../tokens/dataloader.h"
#include "../model/gpt.h"
#include "../report/report.h"
#include "../text/tokenizer.h"

/* Mean loss in nats per target over the first max_tokens targets of a stream, rounded up to whole sequences of
   model->config.T; 0 = all. *first = their number, or 0 for the whole stream. B sequences are computed at a time, at
   most as many as the model was created for; gpt_set_batch must be called again before the next batch. Progress goes to
   report. A stop request (llmc/base/os.h) ends it with NaN and *first = -1. All ranks call it: each computes a part. */
double evaluate(GPT *model, const Tokens *tokens, int64_t max_tokens, int B, Report *report, int64_t *first);

/* Targets per byte of text, over the targets that evaluate takes with sequences of T; special tokens have no bytes. NaN
   for tokens that are neither bytes nor of a BPE, for ids that the BPE does not have, and where all are special. */
double targets_per_byte(const Tokens *tokens, Tokenizer tokenizer, int64_t max_tokens, int T);

/* Prints the loss of a checkpoint's model on corpus->val, of the file `path`, with a BPE also per byte of its text, and
   the floor. Fails if the model was trained on the other kind of tokens, if the loss is not finite, and if it is below
   the floor. */
void evaluate_file(GPT *model, Tokenizer tokenizer, const char *checkpoint, const Corpus *corpus, const char *path,
                   int64_t max_tokens, int B);

#endif
