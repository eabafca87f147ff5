#include "spike_detector.h"
#include <float.h>
#include <math.h>
#include <stdio.h>

/* Mean and standard deviation as OLMo-core's SkipStepOptimizer takes them (the last 128 losses and norms, 6 standard
   deviations), with three changes:
   - the spread is that around a straight line through the window. Early in training 128 steps hold a fall of the loss
     of many times its noise, which a spread around the mean would take for noise. The line is drawn on to the next
     step where it rises, so that a slow rise is no spike; where it falls its mean is expected, for a loss that stops
     falling is none either. A parabola that rises without noise ends 2.2 deviations above its line: far from 6.
   - of the norm's logarithm: norms are skewed to the right and change by factors.
   - only upwards, and only of applied updates: a window that takes in what it refuses has refused all it will after 4
     spikes in 128 (their standard deviation is then a sixth of their height), in the middle of a bad stretch of data.
   A run of spikes need not be the data's fault: the last update may have led to a steep place, and to apply nothing is
   to stay there. Seen in a small model at the end of its warm-up: the norm at 15 times its level for 27 steps, each
   refused, where the next update, clipped, led out of it at once. So one in SPIKE_STEPS_MAX + 1 is applied: a steep
   place is left, a level that has changed for good is known after 4 such updates (as above), and of a bad stretch of
   data, of which PaLM left out 200 to 500 batches by hand (arXiv 2204.02311, section 5.1), 10 of 11 steps do nothing.
   A median would be more robust, but this window holds next to nothing beyond its limits, and what comes in before
   there are any (SPIKE_WINDOW_MIN) widens the spread for 128 steps: a spike more may pass, no good step is refused. */
typedef struct { double expected, sigma; } Forecast;

/* least: of sigma, so that a loss that does not move (learning rate 0, tokens known by heart) may still jitter. */
static Forecast forecast(const double *value, int n, double least) {
    double mean = 0, slope = 0, squares = 0, middle = 0.5 * (n - 1), spread = n * ((double)n * n - 1) / 12;
    for (int i = 0; i < n; i++) mean += value[i] / n;
    for (int i = 0; i < n; i++) slope += (i - middle) * (value[i] - mean);
    slope /= spread;
    for (int i = 0; i < n; i++) {
        double rest = value[i] - mean - slope * (i - middle);
        squares += rest * rest;
    }
    /* two numbers were fitted, and the line itself is uncertain where it is drawn on */
    double ahead = n - middle, variance = squares / (n - 2) * (1 + 1.0 / n + ahead * ahead / spread);
    return (Forecast){ mean + fmax(slope, 0) * ahead, fmax(sqrt(variance), least) };
}

/* A thousandth of a loss: even batches of a million tokens differ by more. */
static Forecast loss_forecast(const SpikeDetector *g) {
    return forecast(g->loss, g->count, 1e-3 * fabs(g->loss[g->count - 1]));
}
static Forecast norm_forecast(const SpikeDetector *g) { return forecast(g->log_norm, g->count, 1e-2); }
static double   log_of(double norm)           { return log(fmax(norm, DBL_MIN)); }

void spike_detector_limits(const SpikeDetector *g, double z, double *loss_limit, double *norm_limit) {
    *loss_limit = *norm_limit = INFINITY;
    if (z <= 0 || g->count < SPIKE_WINDOW_MIN || g->spikes >= SPIKE_STEPS_MAX) return;
    Forecast loss = loss_forecast(g), norm = norm_forecast(g);
    *loss_limit = loss.expected + z * loss.sigma;
    *norm_limit = exp(norm.expected + z * norm.sigma);
}

static void push(double *value, int count, double newest) {
    if (count == SPIKE_WINDOW)
        for (int i = 1; i < SPIKE_WINDOW; i++) value[i - 1] = value[i];
    value[count < SPIKE_WINDOW ? count : SPIKE_WINDOW - 1] = newest;
}

StepOutcome spike_detector_update(SpikeDetector *g, const StepStats *n) {
    int finite = isfinite(n->loss) && isfinite(n->norm), spike = n->loss > n->loss_limit || n->norm > n->norm_limit;
    StepOutcome j = { n->apply ? APPLIED : finite && spike ? SPIKE : NONFINITE, NAN, NAN };
    if (finite && g->count >= SPIKE_WINDOW_MIN) {
        Forecast loss = loss_forecast(g), norm = norm_forecast(g);
        j.loss_z = (n->loss - loss.expected) / loss.sigma;
        j.norm_z = (log_of(n->norm) - norm.expected) / norm.sigma;
    }
    if (j.verdict == APPLIED) {
        push(g->loss, g->count, n->loss);
        push(g->log_norm, g->count, log_of(n->norm));
        g->count += g->count < SPIKE_WINDOW;
        g->sick = g->spikes = 0;
    }
    g->sick += j.verdict == NONFINITE;
    g->spikes += j.verdict == SPIKE;
    return j;
}

/* ---- In words */

const char *spike_detector_text(const SpikeDetector *g, const StepStats *n, const StepOutcome *j, char text[256]) {
    char loss[64] = "", norm[64] = "";
    if (n->loss > n->loss_limit) snprintf(loss, sizeof loss, "loss %.4g is %.1f", n->loss, j->loss_z);
    if (n->norm > n->norm_limit)
        snprintf(norm, sizeof norm, "%sgradient norm %.4g is %.1f", *loss ? " and " : "", n->norm, j->norm_z);
    snprintf(text, 256, "%s%s sigma above the last %d: not applied%s", loss, norm, g->count,
             g->spikes == SPIKE_STEPS_MAX ? "; the next one will be, after so many in a row" : "");
    return text;
}

const char *nonfinite_text(const StepStats *n, const char *tensor, const TensorStats *health, char text[512]) {
    snprintf(text, 512, "loss %g, gradient norm %g: nothing was applied. First sick tensor: %s (%lld NaN, %lld "
             "infinite, the rest in %.3g .. %.3g)", n->loss, n->norm, tensor, (long long)health->nan_count,
             (long long)health->inf_count, health->min, health->max);
    return text;
}
