#include "spike_detector.h"
#include <float.h>

/* The rule of OLMo-core's SkipStepOptimizer (last 128 losses and norms, 6 standard deviations) with three changes:
   - The deviation is measured from a straight line: early in training the loss falls within 128 steps by many times its
     noise. A rising line is extrapolated, so that a slow rise is no spike; for a falling one the mean is expected.
   - The norm's logarithm is used: norms are skewed to the right and change by factors.
   - Only values above the limit count, and only applied updates enter the window: 4 spikes in a window of 128 would
     raise its standard deviation to a sixth of their height.
   One step in SPIKE_STEPS_MAX + 1 is applied anyway: the last update may have led to a steep place. In a small model
   the norm stayed at 15 times its level for 27 skipped steps; one clipped update ended it. A permanent change of level
   is accepted after 4 such updates.
   min_sigma leaves room for rounding noise in a loss that does not change (learning rate 0, memorised data). */
static double limit(const double *value, int n, double z, double min_sigma) {
    double mean = 0, slope = 0, squares = 0, middle = 0.5 * (n - 1), spread = n * ((double)n * n - 1) / 12;
    for (int i = 0; i < n; i++) mean += value[i] / n;
    for (int i = 0; i < n; i++) slope += (i - middle) * (value[i] - mean);
    slope /= spread;
    for (int i = 0; i < n; i++) {
        double rest = value[i] - mean - slope * (i - middle);
        squares += rest * rest;
    }
    /* prediction variance of a line with two fitted parameters */
    double ahead = n - middle, variance = squares / (n - 2) * (1 + 1.0 / n + ahead * ahead / spread);
    return mean + fmax(slope, 0) * ahead + z * fmax(sqrt(variance), min_sigma);
}

void spike_detector_limits(const SpikeDetector *d, double z, StepStats *limits) {
    limits->loss_limit = limits->norm_limit = INFINITY;
    if (z <= 0 || d->count < SPIKE_WINDOW_MIN || d->spikes >= SPIKE_STEPS_MAX) return;
    /* a thousandth of the loss: even batches of a million tokens differ by more */
    limits->loss_limit = limit(d->loss, d->count, z, 1e-3 * fabs(d->loss[d->count - 1]));
    limits->norm_limit = exp(limit(d->log_norm, d->count, z, 1e-2));
}

static void push(double window[SPIKE_WINDOW], int count, double newest) {
    if (count == SPIKE_WINDOW) memmove(window, window + 1, --count * sizeof *window);
    window[count] = newest;
}

StepResult spike_detector_update(SpikeDetector *d, const StepStats *stats) {
    int spike = isfinite(stats->loss) && isfinite(stats->norm) &&
                (stats->loss > stats->loss_limit || stats->norm > stats->norm_limit);
    if (stats->apply) {
        push(d->loss, d->count, stats->loss);
        push(d->log_norm, d->count, log(fmax(stats->norm, DBL_MIN)));
        d->count += d->count < SPIKE_WINDOW;
        d->nonfinite = d->spikes = 0;
        return APPLIED;
    }
    d->spikes += spike;
    d->nonfinite += !spike;
    return spike ? SPIKE : NONFINITE;
}

char *skipped_step_text(const SpikeDetector *d, int64_t step, StepResult result, const StepStats *stats,
                        const GPT *model) {
    if (result == SPIKE)
        return format_string("step %lld: loss %.4g (limit %.4g), gradient norm %.4g (limit %.4g): not applied%s",
                             (long long)step, stats->loss, stats->loss_limit, stats->norm, stats->norm_limit,
                             d->spikes < SPIKE_STEPS_MAX ? "" : "; the next update is applied after so many in a row");
    char name[96];
    return format_string("step %lld: loss %g, gradient norm %g: not applied. First non-finite tensor: %s",
                         (long long)step, stats->loss, stats->norm,
                         gpt_find_nonfinite(model, name) ? name : "none, the square of the norm overflows");
}
