/* resume.h - --resume: finds a checkpoint, adopts its options, and loads it. */
#pragma once
#include "run_dir.h"

/* The checkpoint that a run continues from, and its state.json. */
typedef struct {
    char       *checkpoint;     /* NULL = none yet: the run starts; job scripts may always pass --resume */
    Json       *json;           /* not freed: text options point into it */
    Settings    settings;       /* its options, those that it lacks with their defaults */
    TrainState  state;
    char       *changes;        /* options with another value: "--lr 1e-3 -> 5e-4, --seed 1 -> 2"; NULL = none */
} Resume;

/* Chooses the run directory, verifies its newest checkpoint, and adopts its options. Fails if there are only incomplete
   checkpoints, none and no --data, a damaged one (the message then names the one before it), or fewer --steps. */
Resume resume_find(const Settings *settings, Option *table, RunDir *dir);

/* Options that are not given, only those of "data|val-data" or NULL = all, take the checkpoint's value. Returns the
   changes, as above, a new string. Fails on another --init or --perturb. */
char *resume_adopt_options(Option *table, const Json *json, const char *only);

/* Fails if a model of bytes gets token ids or reversed, and if the data differ although the options that name them
   (data, val-data, val-fraction) are the checkpoint's. Clears state.best, and prints that, if its checkpoint is gone,
   or validation data or --val-tokens are others. */
void resume_check_data(Resume *resume, const Corpus *corpus, const Settings *settings);

/* Loads weights and moments. Fails on an inconsistent state, and on ranks with other files. */
void resume_load(const Resume *resume, GPT *model, Optimizer *optimizer);
