/* llmc/spike_detector.h - Whether a step looks like the ones before it. The loss and the logarithm of the gradient
   norm of the
   last applied updates are kept; from them come, before the next step, the limits beyond which an update is not
   applied. They go to the device in StepStats, so that the decision needs no word from the host. */
#ifndef LLMC_GUARD_H
#define LLMC_GUARD_H
#include "../kernels/update.h"

enum {
    SPIKE_WINDOW = 128,     /* updates looked back on */
    SPIKE_WINDOW_MIN = 32,       /* nothing is judged before so many are there */
    NONFINITE_STEPS_MAX = 10,  /* so many non-finite steps without an update between them are no accident */
    SPIKE_STEPS_MAX = 10  /* after so many spikes in a row one update is applied */
};

typedef struct {
    int    count;                           /* of the window, oldest first */
    double loss[SPIKE_WINDOW], log_norm[SPIKE_WINDOW];
    int    sick, spikes;                    /* steps since the last applied update, by why they were not */
} SpikeDetector;

typedef enum { APPLIED, NONFINITE, SPIKE } Verdict;

typedef struct {
    Verdict verdict;                        /* NONFINITE: loss or norm was not finite; SPIKE: above a limit */
    double  loss_z, norm_z;                 /* standard deviations above what was expected; NaN = not judged */
} StepOutcome;

/* The largest loss and norm that lie at most z standard deviations above what the window lets expect; +inf for z = 0,
   while fewer than SPIKE_WINDOW_MIN updates are there, and after SPIKE_STEPS_MAX spikes in a row. */
void spike_detector_limits(const SpikeDetector *guard, double z, double *loss_limit, double *norm_limit);

/* After a step: an applied update enters the window, another is counted. */
StepOutcome spike_detector_update(SpikeDetector *guard, const StepStats *stats);

/* In words, after spike_detector_update: "loss 3.1 is 7.2 and gradient norm 9 is 6.5 sigma above the last 128: not
   applied",
   and "loss nan, gradient norm nan: nothing was applied. First sick tensor: ...", with the name and health given. */
const char *spike_detector_text(const SpikeDetector *guard, const StepStats *stats, const StepOutcome *j, char
                                text[256]);
const char *nonfinite_text(const StepStats *stats, const char *tensor, const TensorStats *health, char text[512]);

#endif
