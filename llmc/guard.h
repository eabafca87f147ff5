/* llmc/guard.h - Whether a step looks like the ones before it. The loss and the logarithm of the gradient norm of the
   last applied updates are kept; from them come, before the next step, the limits beyond which an update is not
   applied. They go to the device in StepNumbers, so that the decision needs no word from the host. */
#ifndef LLMC_GUARD_H
#define LLMC_GUARD_H
#include "../kernels/update.h"

enum {
    GUARD_WINDOW = 128,     /* updates looked back on */
    GUARD_LEAST = 32,       /* nothing is judged before so many are there */
    GUARD_SICK_STEPS = 10,  /* so many non-finite steps without an update between them are no accident */
    GUARD_SPIKE_STEPS = 10  /* after so many spikes in a row one update is applied */
};

typedef struct {
    int    count;                           /* of the window, oldest first */
    double loss[GUARD_WINDOW], log_norm[GUARD_WINDOW];
    int    sick, spikes;                    /* steps since the last applied update, by why they were not */
} Guard;

typedef enum { APPLIED, SICK, SPIKE } Verdict;

typedef struct {
    Verdict verdict;                        /* SICK: loss or norm was not finite; SPIKE: above a limit */
    double  loss_z, norm_z;                 /* standard deviations above what was expected; NaN = not judged */
} Judgement;

/* The largest loss and norm that lie at most z standard deviations above what the window lets expect; +inf for z = 0,
   while fewer than GUARD_LEAST updates are there, and after GUARD_SPIKE_STEPS spikes in a row. */
void guard_limits(const Guard *guard, double z, double *loss_limit, double *norm_limit);

/* After a step: an applied update enters the window, another is counted. */
Judgement guard_judge(Guard *guard, const StepNumbers *numbers);

/* In words, after guard_judge: "loss 3.1 is 7.2 and gradient norm 9 is 6.5 sigma above the last 128: not applied",
   and "loss nan, gradient norm nan: nothing was applied. First sick tensor: ...", with the name and health given. */
const char *guard_spike_text(const Guard *guard, const StepNumbers *numbers, const Judgement *j, char text[256]);
const char *guard_sick_text(const StepNumbers *numbers, const char *tensor, const TensorHealth *health, char text[512]);

/* All of it as text (a new string) and back, every bit; fails in a line that begins with where. */
char *guard_to_text(const Guard *guard);
void  guard_from_text(Guard *guard, const char *text, const char *where);

#endif
