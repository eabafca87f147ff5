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

/* The files of a run that ends at `step`; nothing without a run directory. */
void print_outputs(const RunDir *dir, int64_t step, const BestLoss *best);

/* The step at which a run stopped, and the command that continues it. stop: why, "SIGTERM". */
void print_stopped(const char *stop, const Settings *settings, const char *out, int64_t step);

/* Why a run of --early-stop ended before its last step, a new string. */
char *stopped_early_text(const Settings *settings, const char *out, int64_t step, const BestLoss *best);

#endif
