/* schedule.h - The learning rate of a step. */
#pragma once
#include "../options/settings.h"

/* By the options lr, min_lr, schedule, warmup, decay and steps. step counts from 0. Warm-up: lr (step+1) / (warmup+1),
   as in nanoGPT; from `steps` on: min_lr, or lr for constant. wsd: lr until the last `decay` steps, then linear. */
double schedule_learning_rate(const Settings *settings, int64_t step);
