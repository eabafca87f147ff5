/* optimizer.h - AdamW, or Muon for matrices of the blocks and AdamW for the rest; gradient norm, clipping, decay of
   matrices; with several ranks each has a slice of the state (ZeRO-1: Rajbhandari et al. 2020, arXiv 1910.02054). */
#pragma once
#include "../model/gpt.h"
#include "../options/settings.h"

/* What this rank updates of a group of parameters, or of all, where AdamW is alone and there is one rank: views. */
typedef struct {
    Tensor param, param_bf16;   /* in f32; what the ops read, absent where that is param */
    Tensor m, v, grad;
    int    first_row, rows;     /* range of Optimizer.rows, the tensors that AdamW updates */
} Slice;

typedef struct {
    GPT         *model;
    Tensor       m;             /* first moments, Muon's momentum, flat F32: this rank's slices one after the other */
    Tensor       v;             /* second moments, likewise; with a batch AdamW's rows one after the other */
    Tensor       master;        /* parameters in f32, as m; absent where model->master has them */
    void        *scratch;       /* for the matrices of `batch` blocks */
    int          batch;         /* blocks at a time; 0: AdamW updates the matrices, too */
    Slice       *slice;
    int          slices;
    CommOp       reduced[2];    /* gradients of block 0 and all before it; of FIRST_GROUP, the last */
    CommOp      *gathered;      /* parameters of a slice's group */
    int64_t      step;          /* updates that have been applied */
    UpdateRow   *rows, *host_rows;      /* on the device, and the same on the host */
    StepStats   *stats;         /* device */
    StepStats   *result;        /* page-locked: inputs of an update, then its results; limits stay, +inf at first */
    DeviceMark   done;          /* after the download of result */
    double       comm_wait_ms;  /* after optimizer_result: time that the step waited in comm_wait */
    DeviceGraph  graph;         /* an update */
} Optimizer;

/* Several ranks have ZeRO-1. The model's address must not change. */
void optimizer_create(Optimizer *o, GPT *model);

/* Writes the inputs of the next update, with what this rank's signals request; sums = 0. Call before the step's work,
   and after optimizer_result of the step before. */
void optimizer_begin(Optimizer *o, const Settings *settings, double learning_rate);

/* The `ready` of gpt_backward in the last micro-step: starts the sum of a group's gradients over the ranks. */
void optimizer_reduce(void *optimizer, int group);

/* Issues norm, clip and update; step grows by one. */
void optimizer_update(Optimizer *o);

/* Waits for the update. Returns the results of the device, the same on all ranks; step is one less when the update was
   not applied. */
StepStats optimizer_result(Optimizer *o);

/* All parameters in f32 or all moments, in the layout of model->master, for files. Sharded ones exist only between
   these calls, in the memory of the gradients, one at a time. memory: where a load writes them. scatter: keeps this
   rank's slices of them. gather: collects the slices of all ranks, which all call it, and returns memory. */
typedef enum { STATE_PARAM, STATE_M, STATE_V, STATES } OptimizerState;
void *optimizer_memory (Optimizer *o, OptimizerState which);
void  optimizer_scatter(Optimizer *o, OptimizerState which);
void *optimizer_gather (Optimizer *o, OptimizerState which);
