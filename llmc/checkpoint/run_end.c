#include "run_end.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../kernels/check.h"
#include "../base/os.h"
#include "../base/terminal.h"
#include "../ranks/ranks.h"

void report_skipped_step(Saver *saver, const Settings *s, const TrainState *before, const TrainState *state,
                         const StepStats *stats, StepResult result) {
    const int skip = !strcmp(s->on_nan, "skip");
    char *text = skipped_step_text(&state->spikes, state->step, result, stats, saver->model);
    if (result == SPIKE || (skip && state->spikes.nonfinite < NONFINITE_STEPS_MAX)) {
        print_line(stdout, "%s", text);
        free(text);
        return;
    }
    saver->keep = 0;
    if (saver->state.step != before->step) saver_save(saver, before);
    ranks_leave_to_first();
    saver_finish(saver);
    char *last = saver->dir ? run_dir_find(saver->dir->path, TO_RESUME, NULL) : NULL;
    REQUIRE(!skip, "%s. %d such steps without an update between them. Last good checkpoint: %s. A lower --lr or --clip "
            "may help", text, NONFINITE_STEPS_MAX, last ? last : "none");
    fail("%s. Last good checkpoint: %s. A lower --lr or --clip may help%s", text, last ? last : "none",
         last ? "; --resume --on-nan skip continues without this step" : "");
}

static void print_files(const RunDir *dir, int64_t step, const BestLoss *best) {
    char *text = best->step && best->step != step ? format_string(", best %s (val loss %.4f)",
                 run_dir_checkpoint(dir, best->step).text, best->loss) : format_string("%s", "");
    print_line(stdout, "log %s, curves %s, checkpoint %s%s", path_of(dir->path, "log.csv").text,
               path_of(dir->path, "report.html").text, run_dir_checkpoint(dir, step).text, text);
    free(text);
}

int run_end(Saver *saver, const Settings *s, const TrainState *state, const char *stop) {
    const RunDir dir = saver->dir ? *saver->dir : (RunDir){0};
    const long long step = state->step, steps = s->steps;
    Report *report = saver->report;
    saver_finish(saver);
    const BestLoss best = saver_best(saver, state->val.best);
    char *early = stop || step == steps ? NULL : format_string("--early-stop %lld: ended at step %lld of %lld, the "
                  "best val loss is %.4f at step %lld%s", (long long)s->early_stop, step, steps, best.loss,
                  (long long)best.step, dir.path ? "; --resume with --early-stop 0 continues" : "");
    saver_close(saver);                     /* fails where the last checkpoint could not be written */
    report_close(report, stop ? stop : early ? early : "done");
    if (early) puts(early);
    free(early);
    if (dir.path) print_files(&dir, step, &best);
    if (!stop) return 0;
    char gpus[64] = "", context[64] = "";
    if (strcmp(s->gpus, "1"))    snprintf(gpus, sizeof gpus, " --gpus %s", s->gpus);
    if (s->context_parallel > 1) snprintf(context, sizeof context, " --context-parallel %lld",
                                          (long long)s->context_parallel);
    if (dir.path) print_line(stdout, "%s: saved at step %lld of %lld; --resume %s%s%s continues", stop, step, steps,
                             shell_word(dir.path), gpus, context);
    else          print_line(stdout, "%s: stopped at step %lld of %lld; --out none: nothing is saved", stop, step,
                             steps);
    return EXIT_TRY_AGAIN;
}
