/* val_history.h - The val losses of a run: the lowest so far, and whether they rise. */
#ifndef LLMC_VAL_HISTORY_H
#define LLMC_VAL_HISTORY_H
#include <stdint.h>

typedef struct {
    int64_t step;        /* 0 = none */
    double  loss;
    int64_t is_extra;    /* its checkpoint was saved only as the best: the next best replaces it */
    int64_t outdated;    /* step of the extra checkpoint that this best replaces; 0 = none */
} BestLoss;

enum { RISES_MAX = 3 };

/* All zeros: no validation yet. */
typedef struct {
    BestLoss best;
    int64_t  since_best;     /* validations after the best */
    int64_t  rises;          /* in a row; stays at RISES_MAX until the next best */
} ValHistory;

/* Adds the loss of a validation; before: the previous one's. Only a finite loss can be the best. Returns 1 if
   it is the RISES_MAX-th rise in a row, the first time since the best: the caller warns. */
int val_history_add(ValHistory *history, int64_t step, double loss, double before);

#endif
