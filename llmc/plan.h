/* llmc/plan.h - What a run needs of the device's memory, before any of it is allocated. */
#ifndef LLMC_PLAN_H
#define LLMC_PLAN_H
#include <stdio.h>
#include "gpt.h"

typedef struct {
    size_t parameters, gradients, optimizer, activations, workspace;   /* bytes */
    size_t total;
} Plan;

Plan plan_make(const GPTConfig *config, const char *attention, int B, int T, Purpose purpose);
void plan_print(FILE *file, const Plan *plan, int64_t free_bytes, int64_t total_bytes);

/* Fails in a line when the plan is larger than what is free, naming what would fit: flash in place of naive attention,
   or else the largest batch. */
void plan_require(const Plan *plan, int64_t free_bytes, const GPTConfig *config, const char *attention, int B, int T,
                  Purpose purpose);

#endif
