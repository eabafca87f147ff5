/* llmc/schedule.c - The learning rate of a step. */
#include "schedule.h"
#include <math.h>
#include <string.h>
#include "../kernels/check.h"

ScheduleKind schedule_named(const char *name) {
    static const char *const names[] = { "cosine", "linear", "wsd" };       /* in the order of the kinds */
    for (int kind = SCHEDULE_COSINE; kind <= SCHEDULE_WSD; kind++)
        if (!strcmp(name, names[kind])) return (ScheduleKind)kind;
    fail("--schedule %s: want cosine, linear or wsd", name);
}

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
