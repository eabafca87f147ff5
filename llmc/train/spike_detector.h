/* spike_detector.h - Steps whose update is not applied: non-finite ones, and spikes, with a loss or gradient norm
   far above those of the last applied updates. The limits go to the device in StepStats before the step, so the
   decision does not wait for the host. */
#pragma once
#include "../model/gpt.h"

enum {
    SPIKE_WINDOW = 128,         /* maximum number of updates in the window */
    SPIKE_WINDOW_MIN = 32,      /* no limits before the window has this many */
    SPIKE_STEPS_MAX = 10,       /* after so many spikes in a row one update is applied */
    NONFINITE_STEPS_MAX = 10    /* non-finite steps without an update between them that end a run */
};

typedef struct {
    int    count;                           /* updates in the window, oldest first */
    double loss[SPIKE_WINDOW], log_norm[SPIKE_WINDOW];
    int    nonfinite, spikes;               /* steps of each kind since the last applied update */
} SpikeDetector;

typedef enum { APPLIED, NONFINITE, SPIKE } StepResult;

/* Sets both limits: z standard deviations above the values expected from the window; +inf for z = 0, while the window
   has fewer than SPIKE_WINDOW_MIN updates, and after SPIKE_STEPS_MAX spikes in a row. */
void spike_detector_limits(const SpikeDetector *detector, double z, StepStats *limits);

/* Called after a step: an applied update enters the window, another step is counted. */
StepResult spike_detector_update(SpikeDetector *detector, const StepStats *stats);

/* Why the update of this step was not applied, a new string: "step 7: loss 3.1 (limit 2.8), gradient norm 9 (limit
   4.2): not applied", or "step 7: loss nan, gradient norm nan: not applied. First non-finite tensor: ...". */
char *skipped_step_text(const SpikeDetector *detector, int64_t step, StepResult result, const StepStats *stats,
                        const GPT *model);
