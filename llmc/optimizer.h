/* llmc/optimizer.h - AdamW over all rows of the parameters, with decay on matrices only, gradient norm and clipping. */
#ifndef LLMC_OPTIMIZER_H
#define LLMC_OPTIMIZER_H
#include "../kernels/update.h"
#include "gpt.h"

typedef struct { float beta1, beta2, eps, weight_decay, max_norm; } AdamW;

typedef struct {
    AdamW        adamw;
    double       loss_limit, norm_limit;    /* of the next update (kernels/update.h); +inf until they are set */
    Params       m, v;          /* first and second moments, tables like the parameters' */
    int64_t      step;          /* updates that have been applied */
    UpdateRow   *rows;          /* device */
    StepStats *stats;       /* device */
} Optimizer;

size_t optimizer_bytes(const GPTConfig *config);
void optimizer_create(Optimizer *o, const GPT *model, AdamW adamw);
void optimizer_free(Optimizer *o);

void optimizer_begin(Optimizer *o, double learning_rate);         /* the inputs of the next update; loss = 0 */
StepStats optimizer_update(Optimizer *o, GPT *model);            /* norm, clip, update; returns what the device found.
                                                                     step grows when the update was applied. */
#endif
