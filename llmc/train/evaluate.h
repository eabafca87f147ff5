/* evaluate.h - The loss of a model on a token stream, and the lowest val loss of a run. */
#pragma once
#include "../tokens/dataloader.h"
#include "../report/report.h"

/* The loss over the first max_tokens targets of a stream, rounded up to whole sequences of model->config.T; 0 = all. B
   sequences are computed at a time, as many as the model was created for; the last ones may be padding. All ranks call
   it: each computes a part. */
Evaluation evaluate(GPT *model, const Tokens *tokens, Tokenizer *tokenizer, int64_t max_tokens, int B);

/* The lowest val loss of a run. All zeros: no validation yet. */
typedef struct {
    int64_t step;        /* 0 = none */
    double  loss;
    int64_t is_extra;    /* its checkpoint was saved only as the best: the next best replaces it */
    int64_t outdated;    /* step of the extra checkpoint that this best replaces; 0 = none */
    int64_t since;       /* validations after it */
} BestLoss;

/* Adds the loss of a validation. Only a finite loss can be the best. */
void best_loss_add(BestLoss *best, int64_t step, double loss);
