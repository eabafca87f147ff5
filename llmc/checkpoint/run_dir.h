/* llmc/checkpoint/run_dir.h - The checkpoints of a run, folders OUT/step-00001000: written beside as
   step-00001000.partial, synced
   and renamed, so that each is there whole or not at all; found; removed when they are old. */
#ifndef LLMC_STEPS_H
#define LLMC_STEPS_H
#include "../../kernels/check.h"
#include "checkpoint.h"

/* Makes OUT where it is missing. A checkpoint of the same step is replaced; what is in its folder and no part of
   a checkpoint moves into the new one. It is durable when the call returns. On a full disk, or a model or moment that
   holds a NaN or an infinity: a line, and the earlier checkpoints are untouched. */
void steps_write(const char *out, const Snapshot *snapshot);
void steps_save(const char *out, const GPT *model, const Optimizer *optimizer, const TrainState *state,
                const Setting *settings);

/* Of OUT's complete checkpoints of steps up to `step` removes all but the newest keep and those whose step is a
   multiple of keep_every; keep 0: none, keep_every 0: no multiples. Later ones are not this run's. A folder that holds
   a file or a folder of a name that no checkpoint has is not ours alone and stays, like a link; neither counts. What is
   removed is first renamed to step-N.partial: a crash leaves nothing that is taken for a checkpoint. */
void steps_prune(const char *out, int64_t step, int64_t keep, int64_t keep_every);

/* Removes what a crash or a failure left: every step-N.partial, and step-N.old where step-N is complete, which gets
   what is no part of a checkpoint in it; where there is no step-N, a complete .old takes the name back. For the one run
   that holds OUT's lock. */
void steps_sweep(const char *out);

/* The newest checkpoint of OUT that has all four files, as a new string, or NULL. */
char *steps_latest(const char *out);

/* The newest checkpoint of OUT that a resume would find without this one and that passes both checks, as a new string,
   or NULL. damaged: those between that do not, " and step-00000800 and step-00000600". */
char *steps_earlier(const char *out, const char *checkpoint, char damaged[FAIL_LENGTH]);

/* The step folder of OUT of the highest step, whole or not, as a new string, or NULL. */
char *steps_highest(const char *out);

/* The newest step folder of OUT that holds config.json and a model, also without what a resume needs, as a new string,
   or NULL. */
char *steps_any(const char *out);

/* A CHECKPOINT argument: a folder with a model, a folder of step folders (the newest is taken), or model.safetensors or
   model.safetensors.index.json itself; returns the folder (a new string). Fails in a line when it is something else,
   and says what it seems to be. The model may be any GPT-2 of HuggingFace's: see weights_read. */
char *steps_resolve(const char *path);

#endif
