#include "saver.h"
#include "../ranks/ranks.h"
#include "../ranks/launch.h"
#include "../../kernels/autotune.h"

enum { PAGE = 1 << 21 };                   /* a huge page */

size_t saver_host_bytes(const GPTConfig *config) {
    return (STATES * gpt_param_bytes(config, F32) + PAGE - 1) / PAGE * PAGE;
}

/* Maps all pages now, huge ones if the system has them, with all cores: mapping 1.5 GB page by page stalled the first
   save for seconds. */
static char *pinned_alloc(size_t bytes) {
    char *memory = aligned_alloc(PAGE, bytes);
    REQUIRE(memory, "out of memory: the host copy from which checkpoints are written takes %.2f GiB",
            (double)bytes / (1 << 30));
    madvise(memory, bytes, MADV_HUGEPAGE);
    #pragma omp parallel for schedule(static)
    for (size_t at = 0; at < bytes; at += PAGE) memset(memory + at, 0, PAGE);
    device_pin(memory, bytes);
    return memory;
}

/* ---- In the thread, which uses only the saver and the files */

static void write_snapshot(void *saver) { run_dir_write(((Saver *)saver)->dir, &((Saver *)saver)->snapshot); }
static void clean(void *saver) {
    const Saver *s = saver;
    run_dir_clean(s->dir, s->failed ? NULL : &s->snapshot.state, s->keep);
}

/* Then OUT/best names the best, and older checkpoints are removed. */
static void *save(void *saver) {
    Saver *s = saver;
    const double start = seconds_now();
    char why[FAIL_LENGTH] = "", ignored[FAIL_LENGTH];
    s->failed = fails(write_snapshot, s, why);
    fails(clean, s, s->failed ? ignored : why);
    s->message[0] = 0;
    if (*why) snprintf(s->message, sizeof s->message, "step %lld is %s %.1900s", (long long)s->snapshot.state.step,
                       s->failed ? "not saved:" : "saved, but", why);
    s->seconds = seconds_now() - start;
    return NULL;
}

/* ---- In the main thread */

void saver_open(Saver *s, const TrainState *state) {
    char ignored[FAIL_LENGTH];              /* the next save tries again and reports the error */
    const GPT *model = s->snapshot.model;
    if (!s->dir) return;
    s->saved_best = state->best;
    s->snapshot.state = *state;
    char *memory = pinned_alloc(saver_host_bytes(&model->config));
    for (int i = 0; i < STATES; i++) s->snapshot.host[i] = memory + (size_t)i * model->master.table.bytes;
    fails(clean, s, ignored);
}

/* Called after the thread has ended. */
static void report_result(Saver *s) {
    const int64_t step = s->snapshot.state.step;
    s->running = 0;
    if (*s->message) report_warning(s->report, "%s", s->message);
    s->saved_best.since = s->best->since;       /* --early-stop: all ranks have counted, rank 0 alone is here */
    if (s->failed && s->best->step == step) *s->best = s->saved_best;
    if (s->failed) return;
    s->saved_best = s->snapshot.state.best;
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
    s->snapshot.state.best = *s->best;
    s->snapshot.state.optimizer_step = s->optimizer->step;
    for (OptimizerState i = STATE_PARAM; i < STATES; i++) {
        const void *memory = optimizer_gather(s->optimizer, i);
        if (s->dir) device_download(s->snapshot.host[i], memory, s->snapshot.model->master.table.bytes);
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
    saver_finish(s);
    REQUIRE(!s->failed, "the last checkpoint could not be written (see above): correct the cause; --resume %s then "
            "continues from an earlier one, if there is one", shell_word(s->dir->path));
}

/* ---- The end of a run */

void report_skipped_step(Saver *saver, const Settings *s, const TrainState *before, const TrainState *state,
                         const StepStats *stats, StepResult result) {
    const int skip = !strcmp(s->on_nan, "skip");
    char *text = skipped_step_text(&state->spikes, state->step, result, stats, saver->snapshot.model);
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

int run_end(Saver *saver, const Settings *s, const TrainState *state, const char *stop) {
    const RunDir *dir = saver->dir;
    const long long step = state->step, steps = s->steps;
    const BestLoss *best = &state->best;    /* after saver_close that of the last complete save */
    char early[256] = "", page[sizeof(Path) + 16] = "", other[sizeof(Path) + 64] = "", options[128] = "";
    saver_close(saver);                     /* fails where the last checkpoint could not be written */
    if (!stop && step < steps)
        snprintf(early, sizeof early, "--early-stop %lld: ended at step %lld of %lld, the best val loss is %.4f at "
                 "step %lld%s", (long long)s->early_stop, step, steps, best->loss, (long long)best->step,
                 dir ? "; --resume with --early-stop 0 continues" : "");
    const int has_page = report_close(saver->report, stop ? stop : *early ? early : "done");
    if (*early) puts(early);
    if (dir && best->step && best->step != step)
        snprintf(other, sizeof other, ", best %s (val loss %.4f)", run_dir_checkpoint(dir, best->step).text,
                 best->loss);
    if (dir && has_page) snprintf(page, sizeof page, ", curves %s", path_of(dir->path, "report.html").text);
    if (dir) print_line(stdout, "log %s%s, checkpoint %s%s", path_of(dir->path, "log.csv").text, page,
                        run_dir_checkpoint(dir, step).text, other);
    if (!stop) return 0;
    if (strcmp(s->gpus, "1")) snprintf(options, sizeof options, " --gpus %.60s", s->gpus);
    if (s->context_parallel > 1)
        snprintf(strchr(options, 0), 40, " --context-parallel %lld", (long long)s->context_parallel);
    if (dir) print_line(stdout, "%s: saved at step %lld of %lld; --resume %s%s continues", stop, step, steps,
                        shell_word(dir->path), options);
    else     print_line(stdout, "%s: stopped at step %lld of %lld; --out none: nothing is saved", stop, step, steps);
    return EXIT_TRY_AGAIN;
}
