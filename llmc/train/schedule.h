/* schedule.h - The learning rate of a step. */
#ifndef LLMC_SCHEDULE_H
#define LLMC_SCHEDULE_H
#include "../options/settings.h"

typedef enum { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_WSD, SCHEDULE_CONSTANT } ScheduleKind;

typedef struct {
    ScheduleKind kind;
    double  peak, final;      /* after the warm-up; at the end */
    int64_t warmup, total;    /* steps */
    int64_t decay;            /* wsd: the last steps, linear from peak to final; at most those after the warm-up */
} Schedule;

Schedule schedule_of(const Settings *settings, Option *table);         /* fails if it rises */

/* step counts from 0. Warm-up: peak (step+1) / (warmup+1) as in nanoGPT; from step total on: final. */
double schedule_learning_rate(const Schedule *schedule, int64_t step);

#endif
