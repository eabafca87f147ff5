/* llmc/schedule.c - The learning rate of a step. */
#include "schedule.h"
#include <math.h>

double schedule_learning_rate(const Schedule *s, int64_t step) {
    if (step >= s->total) return s->final;
    if (step < s->warmup) return s->peak * (double)(step + 1) / (double)(s->warmup + 1);

    int64_t fall = s->warmup;       /* the first step of the way down */
    if (s->kind == SCHEDULE_WSD && s->decay < s->total - s->warmup) fall = s->total - s->decay;
    if (step < fall) return s->peak;

    double done = (double)(step - fall) / (double)(s->total - fall);    /* 0 at the peak, 1 at step total */
    double left = s->kind == SCHEDULE_COSINE ? 0.5 * (1 + cos(3.14159265358979323846 * done)) : 1 - done;
    return s->final + left * (s->peak - s->final);
}
