/* optimizer.h - AdamW with decay on matrices only, gradient norm and clipping, over one rank or several, with its
   state on each or sharded (ZeRO-1: Rajbhandari et al. 2020, arXiv 1910.02054). */
#ifndef LLMC_OPTIMIZER_H
#define LLMC_OPTIMIZER_H
#include "../../kernels/comm.h"
#include "../../kernels/device.h"
#include "../../kernels/update.h"
#include "../model/gpt.h"
#include "../options/settings.h"

typedef struct { float beta1, beta2, eps, weight_decay, max_norm; } AdamW;
AdamW adamw_of(const Settings *settings);

/* Elements of the flat parameter memory that this rank updates: with ZeRO-1 its slice of a group, otherwise all. */
typedef struct {
    int64_t first, count;
    int64_t state_first;        /* where its moments and master parameters begin in m, v and master */
    int     first_row, rows;    /* range of Optimizer.rows, relative to first */
} Slice;

typedef struct {
    AdamW        adamw;
    double       loss_limit, norm_limit;    /* next update's (kernels/update.h); +inf until set */
    GPT         *model;
    Tensor       m, v;          /* first and second moments, flat F32: this rank's slices, one after the other */
    Tensor       master;        /* parameters in f32, likewise; absent where model->master has them */
    Slice       *slice;
    int          slices;
    CommOp       reduced[2];    /* gradients of block 0 and all before it; of FIRST_GROUP, the last */
    CommOp      *gathered;      /* parameters of a group; index 0 = FIRST_GROUP */
    int64_t      step;          /* updates that have been applied */
    UpdateRow   *rows;          /* device */
    StepStats   *stats;         /* device */
    StepStats   *result;        /* page-locked: the inputs of an update, then its results */
    DeviceMark   done;          /* after the download of result */
    double       waited_ms;     /* comm_waited_ms before it */
    DeviceGraph  graph;         /* an update */
} Optimizer;

/* Several ranks have ZeRO-1. The model's address must not change. */
void optimizer_create(Optimizer *o, GPT *model, AdamW adamw);
void optimizer_free(Optimizer *o);

/* Writes the inputs of the next update, with what this rank's signals and time limit request; sums = 0. Call before the
   step's work, and after optimizer_result of the step before. */
void optimizer_begin(Optimizer *o, double learning_rate);

/* The `ready` of gpt_backward in the last micro-step: starts the sum of a group's gradients over the ranks. */
void optimizer_reduce(void *optimizer, int group);

/* Issues norm, clip and update; step grows by one. */
void optimizer_update(Optimizer *o);

/* Waits for the update. Returns the results of the device, the same on all ranks; step is one less when the update was
   not applied. */
typedef struct {
    StepStats stats;
    double    comm_wait_ms;     /* time that the step waited in comm_wait */
} UpdateResult;
UpdateResult optimizer_result(Optimizer *o);

/* All parameters in f32 or all moments, in the layout of model->master, for files. Sharded ones exist only between
   these calls, in the memory of the gradients, one at a time. memory: where a load writes them. scatter: keeps this
   rank's slices of them. gather: collects the slices of all ranks, which all call it, and returns memory. */
typedef enum { STATE_PARAM, STATE_M, STATE_V, STATES } OptimizerState;
void *optimizer_memory (Optimizer *o, OptimizerState which);
void  optimizer_scatter(Optimizer *o, OptimizerState which);
void *optimizer_gather (Optimizer *o, OptimizerState which);

#endif
