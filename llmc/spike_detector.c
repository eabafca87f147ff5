#include "spike_detector.h"
#include <float.h>
#include <math.h>
#include "files.h"

/* Mean and standard deviation as in OLMo-core's SkipStepOptimizer (the last 128 losses and norms, 6 standard
   deviations), with three changes:
   - The deviation is that from a straight line through the window. Early in training the loss falls within 128 steps by
     many times its noise, which a deviation from the mean would count as noise. A rising line is extrapolated to the
     next step, so that a slow rise is no spike; of a falling one the mean is expected, so that neither is a loss that
     stops falling. A parabola that rises without noise ends 2.2 deviations above its line, far below 6.
   - The norm's logarithm is used: norms are skewed to the right and change by factors.
   - Only values above the limit count, and only applied updates enter the window. A window with 4 spikes in 128 has a
     standard deviation of a sixth of their height, and would accept the rest of a bad stretch of data.
   A run of spikes need not come from the data: the last update may have led to a steep place, where a run that applies
   nothing would stay. Seen in a small model at the end of its warm-up: the norm at 15 times its level for 27 steps, all
   skipped, where the next update, clipped, led out of it at once. So one in SPIKE_STEPS_MAX + 1 is applied: a steep
   place is left, a level that has changed for good is accepted after 4 such updates (as above), and of a bad stretch of
   data, of which PaLM left out 200 to 500 batches by hand (arXiv 2204.02311, section 5.1), 10 of 11 steps are skipped.
   A median would be more robust, but this window has next to nothing beyond its limits; a spike before there are limits
   (SPIKE_WINDOW_MIN) widens the deviation for 128 steps, in which another may pass, but no good step is skipped. */
typedef struct { double expected, sigma; } Forecast;

/* min_sigma leaves room for rounding noise in a loss that does not change (learning rate 0, memorised data). */
static Forecast forecast(const double *value, int n, double min_sigma) {
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
    return (Forecast){ mean + fmax(slope, 0) * ahead, fmax(sqrt(variance), min_sigma) };
}

/* A thousandth of the loss: even batches of a million tokens differ by more. */
static Forecast loss_forecast(const SpikeDetector *d) {
    return forecast(d->loss, d->count, 1e-3 * fabs(d->loss[d->count - 1]));
}
static Forecast norm_forecast(const SpikeDetector *d) { return forecast(d->log_norm, d->count, 1e-2); }
static double   log_of(double norm)                   { return log(fmax(norm, DBL_MIN)); }

void spike_detector_limits(const SpikeDetector *d, double z, double *loss_limit, double *norm_limit) {
    *loss_limit = *norm_limit = INFINITY;
    if (z <= 0 || d->count < SPIKE_WINDOW_MIN || d->spikes >= SPIKE_STEPS_MAX) return;
    Forecast loss = loss_forecast(d), norm = norm_forecast(d);
    *loss_limit = loss.expected + z * loss.sigma;
    *norm_limit = exp(norm.expected + z * norm.sigma);
}

static void push(double *value, int count, double newest) {
    if (count == SPIKE_WINDOW)
        for (int i = 1; i < SPIKE_WINDOW; i++) value[i - 1] = value[i];
    value[count < SPIKE_WINDOW ? count : SPIKE_WINDOW - 1] = newest;
}

StepOutcome spike_detector_update(SpikeDetector *d, const StepStats *stats) {
    int finite = isfinite(stats->loss) && isfinite(stats->norm);
    int spike = finite && (stats->loss > stats->loss_limit || stats->norm > stats->norm_limit);
    StepOutcome outcome = { stats->apply ? APPLIED : spike ? SPIKE : NONFINITE, NAN, NAN };
    if (finite && d->count >= SPIKE_WINDOW_MIN) {
        Forecast loss = loss_forecast(d), norm = norm_forecast(d);
        outcome.loss_z = (stats->loss - loss.expected) / loss.sigma;
        outcome.norm_z = (log_of(stats->norm) - norm.expected) / norm.sigma;
    }
    if (outcome.result == APPLIED) {
        push(d->loss, d->count, stats->loss);
        push(d->log_norm, d->count, log_of(stats->norm));
        d->count += d->count < SPIKE_WINDOW;
        d->nonfinite = d->spikes = 0;
    }
    d->nonfinite += outcome.result == NONFINITE;
    d->spikes += outcome.result == SPIKE;
    return outcome;
}

static char *spike_text(const SpikeDetector *d, const StepStats *stats, const StepOutcome *outcome) {
    char loss[64] = "", norm[64] = "";
    if (stats->loss > stats->loss_limit) snprintf(loss, sizeof loss, "loss %.4g is %.1f", stats->loss, outcome->loss_z);
    if (stats->norm > stats->norm_limit)
        snprintf(norm, sizeof norm, "%sgradient norm %.4g is %.1f", *loss ? " and " : "", stats->norm, outcome->norm_z);
    return format_string("%s%s sigma above the last %d: not applied%s", loss, norm, d->count,
                         d->spikes == SPIKE_STEPS_MAX ? "; the next update is applied after so many in a row" : "");
}

static char *nonfinite_text(const StepStats *stats, const GPT *model) {
    char name[96] = "none found";
    Tensor tensor;
    TensorStats t = {0};
    if (gpt_find_nonfinite(model, name, &tensor)) t = tensor_stats(tensor);
    return format_string("loss %g, gradient norm %g: not applied. First non-finite tensor: %s (%lld NaN, %lld "
                         "infinite, the rest in %.3g .. %.3g)", stats->loss, stats->norm, name, (long long)t.nan_count,
                         (long long)t.inf_count, t.min, t.max);
}

char *step_outcome_text(const SpikeDetector *d, const StepStats *stats, const StepOutcome *outcome, const GPT *model) {
    return outcome->result == SPIKE ? spike_text(d, stats, outcome) : nonfinite_text(stats, model);
}
