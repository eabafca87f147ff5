/* model_config.h - The model's sizes, from the options or a checkpoint, and the device memory it needs. */
#pragma once
#include "gpt.h"
#include "../options/settings.h"

/* The model of the options, with a vocabulary of V unless --vocab is given; or the sizes of a checkpoint. Data types,
   --recompute, --deterministic, --dropout and the split over ranks come from the options; --dtype auto is replaced.
   from: the checkpoint, NULL = none; config: its sizes. Fails when an option contradicts the checkpoint, and on sizes
   that make no model. */
GPTConfig model_config(Settings *settings, const char *from, const GPTConfig *config, int V);

/* For random weights of --model d12 or larger: sets --lr, --warmup and --total-batch where they are not given, to the
   usual ones of its size. Returns them, a new string for the banner; NULL = another model. Precedes batch_choose and
   update_sequences. */
char *recipe_choose(Settings *settings, Option *options, const GPTConfig *config);

/* Fails on a rank whose sizes or options differ from those of rank 0: another host's checkpoint may have another
   config.json, or other options in its state.json. from: as above; sequences: of an update. */
void model_require_same(const GPTConfig *config, const Settings *settings, const Option *options, const char *from,
                        int64_t sequences);

typedef struct {
    size_t parameters, gradients, optimizer, activations, workspace;   /* bytes on the device */
    size_t checkpoint;          /* bytes on the host: part of the total where the device is the host */
    size_t total;
    const char *attention;      /* "flash", ...: what "auto" resolves to */
} MemoryPlan;

/* The plan for batches of B sequences of config->T tokens. memory_plan_check fails when it needs more than is free, and
   names the options that lower it. */
MemoryPlan memory_plan(const GPTConfig *config, const char *attention, int B, Purpose purpose);
void memory_plan_check(const MemoryPlan *plan, int B, Purpose purpose);

void memory_plan_print(const MemoryPlan *plan);         /* every part */
/* The total of every --recompute, and the GPUs of common sizes that have as much. */
void recompute_plan_print(const GPTConfig *config, const char *attention, int B);

/* The largest batch whose plan takes at most 19/20 of free_bytes (the rest is for cuBLASLt, NCCL and the kernels), on
   all ranks (in a dry run: on this one): a divisor of sequences, or with sequences = 0 a power of two, up to max; 0
   where none fits. */
int64_t batch_largest(const GPTConfig *config, const char *attention, Purpose purpose, int64_t free_bytes,
                      int64_t sequences, int64_t max, int is_dry_run);

/* Replaces --batch auto by a number, and prints it. With --total-batch: a divisor of a rank's sequences; without it,
   the batch of all ranks is the update, at most 64Ki tokens on each. On a CPU at most 16 sequences. */
void batch_choose(Settings *settings, const GPTConfig *config, Purpose purpose);

/* Sequences of T tokens in an update of all ranks; call it after a resume has adopted its checkpoint's options. Fails
   if --total-batch is not a multiple of the micro-batches of all groups of --context-parallel ranks. With several ranks
   it sets --total-batch, which a resume on another number of ranks keeps, with a smaller --batch if needed. */
int64_t update_sequences(Settings *settings, int T, int is_resume);
