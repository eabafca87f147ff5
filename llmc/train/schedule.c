#include "schedule.h"
#include <math.h>
#include "../../kernels/check.h"

/* Remaining part of peak - final after the part `done` of the decay, 0 .. 1. */
static double cosine(double done) { return 0.5 * (1 + cos(3.14159265358979323846 * done)); }
static double linear(double done) { return 1 - done; }

static const struct { double (*left)(double done); int is_at_end; } kinds[] = {     /* is_at_end: the last steps only */
    [SCHEDULE_COSINE] = { cosine, 0 },
    [SCHEDULE_LINEAR] = { linear, 0 },
    [SCHEDULE_WSD]    = { linear, 1 },
    [SCHEDULE_CONSTANT] = { linear, 0 },                    /* from peak to peak */
};

double schedule_learning_rate(const Schedule *s, int64_t step) {
    if (step >= s->total) return s->final;
    if (step < s->warmup) return s->peak * (double)(step + 1) / (double)(s->warmup + 1);

    int64_t decay_start = s->warmup;
    if (kinds[s->kind].is_at_end && s->decay < s->total - s->warmup) decay_start = s->total - s->decay;
    if (step < decay_start) return s->peak;
    const double done = (double)(step - decay_start) / (double)(s->total - decay_start);
    return s->final + kinds[s->kind].left(done) * (s->peak - s->final);
}

Schedule schedule_of(const Settings *s, Option *table) {
    REQUIRE(s->min_lr <= s->lr, "--min-lr %g: want at most --lr %g", s->min_lr, s->lr);
    const ScheduleKind kind = (ScheduleKind)choice_index(SCHEDULE_NAMES, s->schedule);
    const double final = options_find(table, "min-lr")->given ? s->min_lr : s->lr / 10;
    return (Schedule){ .kind = kind, .peak = s->lr, .warmup = s->warmup, .total = s->steps,
                       .final = kind == SCHEDULE_CONSTANT ? s->lr : final,
                       .decay = s->decay ? s->decay : s->steps / 5 };
}
