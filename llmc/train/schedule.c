#include "schedule.h"

enum { COSINE, LINEAR, WSD, CONSTANT };                     /* the order of SCHEDULE_NAMES */

double schedule_learning_rate(const Settings *s, int64_t step) {
    const int kind = choice_index(SCHEDULE_NAMES, s->schedule);
    const double min_lr = isnan(s->min_lr) ? s->lr / 10 : s->min_lr, final = kind == CONSTANT ? s->lr : min_lr;
    const int64_t decay = s->decay ? s->decay : s->steps / 5;
    if (step >= s->steps) return final;
    if (step < s->warmup) return s->lr * (double)(step + 1) / (double)(s->warmup + 1);

    int64_t decay_start = s->warmup;
    if (kind == WSD && decay < s->steps - s->warmup) decay_start = s->steps - decay;
    if (step < decay_start) return s->lr;
    const double done = (double)(step - decay_start) / (double)(s->steps - decay_start);
    const double rest = kind == COSINE ? 0.5 * (1 + cos(3.14159265358979323846 * done)) : 1 - done;
    return final + rest * (s->lr - final);
}
