/* train_step.h - A training step: batches, forward and backward pass of every micro-batch, and the update, issued
   without waiting for the device. */
#pragma once
#include "../tokens/dataloader.h"
#include "optimizer.h"

typedef struct {
    GPT          *model;
    Optimizer    *optimizer;
    const Tokens *tokens;
    const Settings *settings;
    int           B;                /* sequences of a micro-batch */
    int64_t       sequences;        /* sequences of an update, all ranks */
    int32_t      *window;           /* inputs and targets of a whole sequence */
    int32_t      *batch[2];         /* inputs and targets of a micro-batch and the number of its first sequence (64
                                       bits), page-locked: one is written while the other is being copied */
    DeviceMark    copied[2];
    int           slot;             /* the buffer written last */
    uint64_t      loaded_first;     /* first sequence of the batch that was uploaded last */
    DeviceGraph   graph[2][2];      /* a micro-step, by Into and whether it reduces the gradients */
} TrainStep;

/* To be called with the fields above `window` set. */
void train_step_create(TrainStep *step);

/* Issues micro-steps of that step without its update: only the choices of algorithms remain. */
void    train_step_measure(TrainStep *step, uint64_t first);

/* Issues the step with the sequences from first on, its update, whose results optimizer_result returns, and the upload
   of the next step's first batch, which a GPU would otherwise wait for. */
void    train_step        (TrainStep *step, uint64_t first, double learning_rate);
int64_t train_step_targets(const TrainStep *step, uint64_t first);      /* number of targets in the step */

/* --profile: trains 5 steps, times `steps` steps as a whole, then every op of `steps` more, and prints both. */
void train_step_profile(TrainStep *step, uint64_t first, double learning_rate, int64_t steps);
