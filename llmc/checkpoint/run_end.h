/* run_end.h - What a run prints when it ends: why, where its files are, and how it continues. */
#ifndef LLMC_RUN_END_H
#define LLMC_RUN_END_H
#include "../options/settings.h"
#include "saver.h"

/* Reports the step from `before` to `state`, whose update was not applied. Returns after a spike, and after a
   non-finite step that --on-nan skip allows. Otherwise saves the state before the step, keeps all older checkpoints,
   and fails. */
void report_skipped_step(Saver *saver, const Settings *settings, const TrainState *before, const TrainState *state,
                         const StepStats *stats, StepResult result);

/* Waits for the last save, closes saver and report, and prints why the run ended at state->step, where its files are,
   and the command that continues it. stop: why it was stopped, "SIGTERM", or NULL. Returns the exit code; fails where
   the last checkpoint could not be written. */
int run_end(Saver *saver, const Settings *settings, const TrainState *state, const char *stop);

#endif
