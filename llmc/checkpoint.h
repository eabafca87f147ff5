/* llmc/checkpoint.h - A checkpoint is a folder OUT/step-00001000 that HuggingFace's from_pretrained can load:
   config.json, model.safetensors (HuggingFace's names and layouts), and, to go on training, optimizer.safetensors
   (both moments: exp_avg.NAME and exp_avg_sq.NAME, in the layout of NAME in model.safetensors) and state.json.
   It is written beside as step-00001000.partial, synced and renamed: it is there whole or not at all. */
#ifndef LLMC_CHECKPOINT_H
#define LLMC_CHECKPOINT_H
#include "gpt.h"
#include "optimizer.h"
#include "weights.h"

typedef struct {
    int64_t  step;             /* steps done */
    uint64_t sample;           /* sequences read: the place in the order of the data */
    int64_t  tokens;           /* targets trained on */
    double   val_loss;         /* the last one measured; NaN = none */
} TrainState;

/* settings: key and value pairs (options) that a resume compares, ended by a NULL key. */
typedef struct { const char *key, *value; } Setting;

/* All that a checkpoint is made of. Parts that have a copy on the host are written from it. */
typedef struct {
    GPTConfig      config;
    Part           parameters, moments[2];
    int64_t        optimizer_step;
    TrainState     state;
    const Setting *settings;
} Snapshot;
Snapshot checkpoint_snapshot(const GPT *model, const Optimizer *optimizer, const TrainState *state,
                             const Setting *settings);      /* copies nothing */

/* Makes OUT where it is missing. A checkpoint of the same step is replaced. It is durable when the call returns. On a
   full disk, or a model or moment that holds a NaN or an infinity: a line, and the earlier checkpoints are untouched. */
void checkpoint_write(const char *out, const Snapshot *snapshot);
void checkpoint_save(const char *out, const GPT *model, const Optimizer *optimizer, const TrainState *state,
                     const Setting *settings);

/* Removes all but the newest keep complete checkpoints of OUT and those whose step is a multiple of keep_every; keep 0:
   none, keep_every 0: no multiples. A folder that holds a file or a folder of a name that no checkpoint has is not ours
   alone and stays, like a link; neither counts. What is removed is first renamed to step-N.partial: a crash leaves
   nothing that is taken for a checkpoint. */
void checkpoint_prune(const char *out, int64_t keep, int64_t keep_every);

/* Removes what a crash or a failure left: every step-N.partial, and step-N.old where step-N is complete. For the one
   run that holds OUT's lock. */
void checkpoint_sweep(const char *out);

/* The newest checkpoint of OUT that has all four files, as a new string, or NULL. */
char *checkpoint_latest(const char *out);

/* Any step folder of OUT that holds a model, also without what a resume needs, as a new string, or NULL. */
char *checkpoint_any(const char *out);

/* A CHECKPOINT argument: a step folder, a folder of such folders (the newest is taken) or a model.safetensors; returns
   the folder (a new string), which has config.json and model.safetensors. Fails in a line when it is something else,
   and says what it seems to be. */
char *checkpoint_resolve(const char *path);

GPTConfig checkpoint_config(const char *checkpoint);            /* of config.json, checked */
void checkpoint_load_model(const char *checkpoint, GPT *model);      /* every tensor, of the right shape, or a line */
void checkpoint_load_optimizer(const char *checkpoint, Optimizer *optimizer);   /* both moments and the step count */
TrainState checkpoint_load_state(const char *checkpoint);

/* The value a setting had when the checkpoint was written (a new string), or NULL. */
char *checkpoint_setting(const char *checkpoint, const char *key);

#endif
