/* llmc/checkpoint/resume.h - --resume: finds a checkpoint, compares the run with it, and loads it. */
#ifndef LLMC_RESUME_H
#define LLMC_RESUME_H
#include "../dataloader.h"
#include "checkpoint.h"

/* Newest checkpoint of OUT (a new string), verified. NULL, with a line on stdout, if OUT has no checkpoint yet: a job
   script may always pass --resume. Fails if OUT has only incomplete checkpoints, if it has none and data is NULL, and
   at a damaged checkpoint; the message then names the one before it. */
char *resume_find(const char *out, const char *data);

/* Options that are not given take the checkpoint's value. */
void resume_adopt_options(Option *table, const char *checkpoint);

/* data, val_data: the options the streams were opened with, for the message. */
void resume_require_same_data(const char *checkpoint, const Corpus *corpus, const char *data, const char *val_data);

/* Loads weights, moments and state. */
TrainState resume_load(const char *checkpoint, GPT *model, Optimizer *optimizer, int64_t sequences_per_update);

#endif
