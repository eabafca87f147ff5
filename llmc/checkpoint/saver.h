/* saver.h - Saves checkpoints during training: the loop waits for a copy to host memory, a thread writes the files,
   one checkpoint at a time. A failed write (a full disk) does not end the run: it is reported, earlier checkpoints
   stay, and the next save tries again. A Saver opened without a run directory writes nothing. Also reports why a run
   ends, and how it continues. */
#pragma once
#include <pthread.h>
#include "run_dir.h"

typedef struct {
    RunDir          *dir;                  /* NULL = no --out */
    Optimizer       *optimizer;
    Report          *report;
    _Atomic int64_t  keep;                 /* for run_dir_clean; may be changed during a save */
    BestLoss        *best;                 /* the run's: one whose save has failed is replaced by the one before */
    int64_t          saved;                /* step of the last save, also if it has failed; -1 = none */
    BestLoss         saved_best;           /* best of the complete checkpoints */
    Snapshot         snapshot;             /* the current save's, in pinned memory */
    pthread_t        thread;
    int              running;              /* 1: the members below belong to the thread */
    int              failed;               /* the last save failed */
    char             message[FAIL_LENGTH]; /* error of the last save, "" = none: "step 20 is not saved: ..." */
    double           seconds;              /* duration of the save */
} Saver;

size_t saver_host_bytes(const GPTConfig *config);      /* host memory that saver_open allocates */

/* To be called with the fields above `saved_best` set, and the snapshot's model, options, tokenizer and identities of
   the data. dir: locked, or NULL. Pointers stay in use until saver_close; the options must not change during a save.
   Completes what a kill has left undone: the link OUT/best and the removal of older checkpoints, by the state that the
   run begins with, which may have been validated since its save. */
void saver_open(Saver *saver, const TrainState *state);

/* Waits for the current save and reports its error, syncs the log, copies state, *best and memory, and starts the
   thread, which also moves OUT/best. All ranks call it; those without dir only give their slices. */
void saver_save  (Saver *saver, const TrainState *state);

void saver_poll  (Saver *saver);       /* reports the error of a finished save, without waiting */
void saver_finish(Saver *saver);       /* waits, reports */
void saver_close (Saver *saver);       /* waits, reports; fails if the last save failed */

/* Reports the step from `before` to `state`, whose update was not applied. Returns after a spike, and after a
   non-finite step that --on-nan skip allows. Otherwise saves the state before the step, keeps all older checkpoints,
   and fails. */
void report_skipped_step(Saver *saver, const Settings *settings, const TrainState *before, const TrainState *state,
                         const StepStats *stats, StepResult result);

/* Waits for the last save, closes saver and report, and prints why the run ended at state->step, where its files are,
   and the command that continues it. stop: why it was stopped, "SIGTERM", or NULL. Returns the exit code; fails where
   the last checkpoint could not be written. */
int run_end(Saver *saver, const Settings *settings, const TrainState *state, const char *stop);
