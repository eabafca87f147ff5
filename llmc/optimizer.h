/* llmc/optimizer.h - AdamW with decay on matrices only, gradient norm and clipping, and the learning rate. */
#ifndef LLMC_OPTIMIZER_H
#define LLMC_OPTIMIZER_H
#include "../kernels/update.h"
#include "gpt.h"

typedef struct { float beta1, beta2, eps, weight_decay, max_norm; } AdamW;

typedef struct {
    AdamW        adamw;
    double       loss_limit, norm_limit;    /* of the next update (kernels/update.h); +inf until set */
    Tensor       m, v;          /* first and second moments: flat F32, laid out as the parameters in f32 */
    int64_t      step;          /* updates that have been applied */
    UpdateRow   *rows;          /* device */
    StepStats   *stats;         /* device */
} Optimizer;

void optimizer_create(Optimizer *o, const GPT *model, AdamW adamw);
void optimizer_free(Optimizer *o);

void optimizer_begin(Optimizer *o, double learning_rate);   /* writes the inputs of the next update; sums = 0 */

/* Norm, clip, update; returns the results of the device. step grows by one when the update was applied. */
StepStats optimizer_update(Optimizer *o, GPT *model);

/* ---- The learning rate of a step */

typedef enum { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_WSD } ScheduleKind;
#define SCHEDULE_NAMES "cosine|linear|wsd"      /* in the order of the kinds */

typedef struct {
    ScheduleKind kind;
    double  peak, final;      /* after the warm-up; at the end */
    int64_t warmup, total;    /* steps */
    int64_t decay;            /* wsd: the last steps, linear from peak to final; at most those after the warm-up */
} Schedule;

ScheduleKind schedule_named(const char *name);      /* one of SCHEDULE_NAMES */

/* step counts from 0. Warm-up: peak (step+1) / (warmup+1) as in nanoGPT; from step total on: final. */
double schedule_learning_rate(const Schedule *schedule, int64_t step);

#endif
