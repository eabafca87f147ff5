/* resume.h - --resume: finds a checkpoint, adopts its options, and loads it. */
#ifndef LLMC_RESUME_H
#define LLMC_RESUME_H
#include "../tokens/dataloader.h"
#include "../options/settings.h"
#include "checkpoint.h"
#include "run_dir.h"

/* Chooses the run directory and returns its newest checkpoint (a new string), verified. NULL if it has none yet: a job
   script may always pass --resume. Fails if there are only incomplete checkpoints, none and no --data, or a damaged
   one; the message then names the one before it. */
char *resume_find(const Settings *settings, RunDir *dir);

/* Options that are not given take the checkpoint's value. Returns those given with another value, a new string such as
   "--steps 200 -> 300, --lr 0.001 -> 0.0005"; NULL = none. Fails on another --init or --perturb, and where the data of
   the run are not found. */
char *resume_adopt_options(Option *table, const char *checkpoint);

/* Fails if a model of bytes gets token ids or reversed, and if the data differ although the options that name them
   (data, val-data, val-fraction) are the checkpoint's. is_default_out: the run was found by the name of the data, which
   another file may share: fails if the data differ. */
void resume_require_same_data(const char *checkpoint, const Corpus *corpus, Option *table, int is_default_out);

/* Clears the history of validations, and prints that, if its best checkpoint is gone, or if other data or another
   --val-tokens make losses that cannot be compared with it. */
void resume_check_best(const char *checkpoint, TrainState *state, const Corpus *corpus, Option *table);

/* Loads weights, moments and state. */
TrainState resume_load(const char *checkpoint, GPT *model, Optimizer *optimizer);

#endif
