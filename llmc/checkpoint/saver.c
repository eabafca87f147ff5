#include "saver.h"
#include "../base/os.h"
#include "../ranks/ranks.h"
#include "../ranks/launch.h"
#include "../../kernels/autotune.h"
#include "../../kernels/device.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 1 << 21 };                   /* a huge page */
static size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }
size_t saver_host_bytes(const GPTConfig *config) { return STATES * whole_pages(gpt_param_bytes(config, F32)); }

/* Maps all pages now, huge ones if the system has them, with all cores: mapping 1.5 GB page by page stalled the first
   save for seconds. */
static void *pinned_alloc(size_t bytes) {
    size_t whole = whole_pages(bytes);
    void *memory = aligned_alloc(PAGE, whole);
    REQUIRE(memory, "out of memory: the host copy from which checkpoints are written takes %d times %.2f GiB",
            STATES, (double)bytes / (1 << 30));
    madvise(memory, whole, MADV_HUGEPAGE);
    #pragma omp parallel for schedule(static)
    for (size_t at = 0; at < whole; at += PAGE) memset((char *)memory + at, 0, PAGE);
    device_pin(memory, whole);
    return memory;
}

/* ---- In the thread, which uses only the saver and the files */

static void write_snapshot(void *saver) { run_dir_write(((Saver *)saver)->dir, &((Saver *)saver)->snapshot); }
static void clean(void *saver) {
    run_dir_clean(((Saver *)saver)->dir, &((Saver *)saver)->snapshot.state, ((Saver *)saver)->keep);
}
static void remove_partial(void *saver) { run_dir_clean(((Saver *)saver)->dir, NULL, 0); }

/* Then OUT/best names the best, and older checkpoints are removed. */
static void *save(void *saver) {
    Saver *s = saver;
    const double start = seconds_now();
    char why[FAIL_LENGTH] = "", ignored[FAIL_LENGTH];
    s->failed = fails(write_snapshot, s, why);
    if (s->failed) fails(remove_partial, s, ignored);
    else           fails(clean, s, why);
    s->message[0] = 0;
    if (*why) snprintf(s->message, sizeof s->message, "step %lld is %s %.1900s", (long long)s->snapshot.state.step,
                       s->failed ? "not saved:" : "saved, but", why);
    s->seconds = seconds_now() - start;
    return NULL;
}

/* ---- In the main thread */

void saver_open(Saver *s, const TrainState *state) {
    char ignored[FAIL_LENGTH];              /* the next save tries again and reports the error */
    if (!s->dir) return;
    s->best = state->val.best;
    s->snapshot.state = *state;
    s->snapshot.model = s->model;
    for (int i = 0; i < STATES; i++) s->snapshot.host[i] = pinned_alloc(s->model->master.table.bytes);
    fails(clean, s, ignored);
}

/* Called after the thread has ended. */
static void report_result(Saver *s) {
    const int64_t step = s->snapshot.state.step;
    s->running = 0;
    if (*s->message) report_warning(s->report, "%s", s->message);
    if (s->failed && s->val->best.step == step) s->val->best = s->best;
    if (s->failed) return;
    s->best = s->snapshot.state.val.best;
    report_checkpoint(s->report, step, run_dir_checkpoint(s->dir, step).text, s->seconds);
}

void saver_poll(Saver *s) {
    if (s->running && !pthread_tryjoin_np(s->thread, NULL)) report_result(s);
}

void saver_finish(Saver *s) {
    if (!s->running) return;
    heartbeat_busy(1);
    pthread_join(s->thread, NULL);
    heartbeat_busy(0);
    report_result(s);
}

void saver_save(Saver *s, const TrainState *state) {
    saver_finish(s);
    if (s->dir) report_flush(s->report, 1);
    s->saved = state->step;
    s->snapshot.state = *state;
    s->snapshot.state.val = *s->val;
    s->snapshot.state.optimizer_step = s->optimizer->step;
    for (OptimizerState i = STATE_PARAM; i < STATES; i++) {
        const void *memory = optimizer_gather(s->optimizer, i);
        if (s->dir) device_download(s->snapshot.host[i], memory, s->model->master.table.bytes);
    }
    if (!s->dir) return;
    free(s->snapshot.choices);
    s->snapshot.choices = format_string("%s", autotune_text());

    sigset_t all, before;                  /* signals are for the main thread */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    s->running = pthread_create(&s->thread, NULL, save, s) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (s->running) return;
    save(s);                               /* no thread can be started */
    report_result(s);
}

void saver_close(Saver *s) {
    if (!s->dir) return;
    saver_finish(s);
    REQUIRE(!s->failed, "the last checkpoint could not be written (see above): correct the cause; --resume %s then "
            "continues from an earlier one, if there is one", shell_word(s->dir->path));
    for (int i = 0; i < STATES; i++) {
        device_unpin(s->snapshot.host[i]);
        free(s->snapshot.host[i]);
    }
    free(s->snapshot.choices);
    *s = (Saver){0};
}

/* ---- The end of a run */

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
    if (saver->saved != before->step) saver_save(saver, before);
    ranks_leave_to_first();
    saver_finish(saver);
    char *last = saver->dir ? run_dir_find(saver->dir->path, TO_RESUME, NULL) : NULL;
    char *steps = skip ? format_string(" %d such steps without an update between them.", NONFINITE_STEPS_MAX) : "";
    fail("%s.%s Last good checkpoint: %s. A lower --lr or --clip may help%s", text, steps, last ? last : "none",
         last && !skip ? "; --resume --on-nan skip continues without this step" : "");
}

static void print_files(const RunDir *dir, int64_t step, const BestLoss *best) {
    char text[sizeof(Path) + 64] = "";
    if (best->step && best->step != step)
        snprintf(text, sizeof text, ", best %s (val loss %.4f)", run_dir_checkpoint(dir, best->step).text, best->loss);
    print_line(stdout, "log %s, curves %s, checkpoint %s%s", path_of(dir->path, "log.csv").text,
               path_of(dir->path, "report.html").text, run_dir_checkpoint(dir, step).text, text);
}

int run_end(Saver *saver, const Settings *s, const TrainState *state, const char *stop) {
    const RunDir dir = saver->dir ? *saver->dir : (RunDir){0};
    const long long step = state->step, steps = s->steps;
    const BestLoss *best = &state->val.best;    /* after saver_finish that of the last complete save */
    Report *report = saver->report;
    char early[256] = "", options[128] = "";
    saver_finish(saver);
    if (!stop && step < steps)
        snprintf(early, sizeof early, "--early-stop %lld: ended at step %lld of %lld, the best val loss is %.4f at "
                 "step %lld%s", (long long)s->early_stop, step, steps, best->loss, (long long)best->step,
                 dir.path ? "; --resume with --early-stop 0 continues" : "");
    saver_close(saver);                     /* fails where the last checkpoint could not be written */
    report_close(report, stop ? stop : *early ? early : "done");
    if (*early) puts(early);
    if (dir.path) print_files(&dir, step, best);
    if (!stop) return 0;
    if (strcmp(s->gpus, "1")) snprintf(options, sizeof options, " --gpus %.60s", s->gpus);
    if (s->context_parallel > 1)
        snprintf(strchr(options, 0), 40, " --context-parallel %lld", (long long)s->context_parallel);
    if (dir.path) print_line(stdout, "%s: saved at step %lld of %lld; --resume %s%s continues", stop, step, steps,
                             shell_word(dir.path), options);
    else          print_line(stdout, "%s: stopped at step %lld of %lld; --out none: nothing is saved", stop, step,
                             steps);
    return EXIT_TRY_AGAIN;
}
