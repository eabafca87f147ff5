#include "saver.h"
#include "../base/os.h"
#include "../base/terminal.h"
#include "../ranks/rendezvous.h"
#include "../../kernels/autotune.h"
#include "../../kernels/device.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 1 << 21 };                   /* a huge page */
static size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }
size_t saver_host_bytes(const GPTConfig *config) { return STATES * whole_pages(gpt_param_bytes(config, F32)); }

double saver_file_bytes(const GPTConfig *config) {      /* two moments; the parameters, in BF16 twice */
    return (4 + 4 + (config->save_dtype == BF16 ? 2 + 4 : 4)) * (double)gpt_parameter_count(config);
}

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

static void write_snapshot(void *saver)   { run_dir_write(((Saver *)saver)->dir, &((Saver *)saver)->snapshot); }
static void write_validation(void *saver) {
    run_dir_write_validation(((Saver *)saver)->dir, &((Saver *)saver)->snapshot.state);
}
static void remove_partial(void *saver)   { run_dir_clean(((Saver *)saver)->dir, NULL, 0); }
static void link_best(void *saver) {
    run_dir_link_best(((Saver *)saver)->dir, ((Saver *)saver)->snapshot.state.val.best.step);
}
static void prune(void *saver) {
    run_dir_clean(((Saver *)saver)->dir, &((Saver *)saver)->snapshot.state, ((Saver *)saver)->keep);
}

/* Writes with `write`; then OUT/best names the best, and older checkpoints are removed. Returns 0 if write fails. */
static int complete(Saver *s, void (*write)(void *)) {
    char why[FAIL_LENGTH] = "", link_error[FAIL_LENGTH] = "";
    const int failed = fails(write, s, why), was_linked = !s->link_failed;
    s->message[0] = 0;
    if (failed) {
        fails(remove_partial, s, link_error);
    } else {
        s->link_failed = fails(link_best, s, link_error);
        fails(prune, s, why);
    }
    if (*why)
        snprintf(s->message, sizeof s->message, "step %lld is %s %.1900s", (long long)s->snapshot.state.step,
                 failed && write == write_snapshot ? "not saved:" : "saved, but", why);
    else if (s->link_failed && was_linked)
        snprintf(s->message, sizeof s->message, "%.1900s; --sample and --eval find the best without it", link_error);
    return !failed;
}

static void *save(void *saver) {
    Saver *s = saver;
    const double start = seconds_now();
    s->failed = !complete(s, write_snapshot);
    s->thread_seconds = seconds_now() - start;
    return NULL;
}

/* ---- In the main thread */

void saver_open(Saver *s, const TrainState *saved) {
    char ignored[FAIL_LENGTH];              /* the next save tries again and reports the error */
    s->state = s->snapshot.state = saved ? *saved : (TrainState){ .step = -1 };
    s->best = s->state.val.best;
    if (!s->dir) return;
    s->seconds = saver_file_bytes(&s->model->config) / 200e6;
    s->snapshot.model = s->model;
    for (int i = 0; i < STATES; i++) s->snapshot.host[i] = pinned_alloc(s->model->master.table.bytes);
    fails(link_best, s, ignored);
    fails(prune, s, ignored);
}

/* The validation of the last save, which is complete. */
static void add_validation(Saver *s) {
    s->snapshot.state = s->state;
    s->best = s->state.val.best;
    complete(s, write_validation);
    if (*s->message) report_warning(s->report, "%s", s->message);
}

void saver_validated(Saver *s, const TrainState *state) {
    if (s->state.step != state->step) return;
    s->state = *state;
    if (s->dir && !s->running && !s->failed) add_validation(s);
}

/* Called after the thread has ended. */
static void report_result(Saver *s) {
    const int64_t step = s->snapshot.state.step;
    s->running = 0;
    s->seconds = s->thread_seconds;
    if (*s->message) report_warning(s->report, "%s", s->message);
    if (s->failed) return;
    s->best = s->snapshot.state.val.best;
    report_checkpoint(s->report, step, run_dir_checkpoint(s->dir, step).text, s->seconds);
    if (s->state.val_step != s->snapshot.state.val_step) add_validation(s);
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

BestLoss saver_best(const Saver *s, BestLoss best) {
    return !s->dir ? best : s->running ? s->state.val.best : s->best;
}

/* Copies everything into the snapshot. */
static void copy_state(Saver *s) {
    for (OptimizerState i = STATE_PARAM; i < STATES; i++) {
        const void *memory = optimizer_gather(s->optimizer, i);
        if (s->dir) device_download(s->snapshot.host[i], memory, s->model->master.table.bytes);
    }
}

void saver_save(Saver *s, const TrainState *state) {
    if (!s->dir) {
        s->state = *state;
        copy_state(s);
        return;
    }
    double start = seconds_now();
    saver_finish(s);
    double waited = seconds_now() - start;
    if (waited > 0.1)
        print_line(stdout, "step %lld: waited %.1f s for the checkpoint before: the disk is slower than "
                   "--save-every, or --val-every while val loss falls", (long long)state->step, waited);
    report_sync(s->report);
    s->snapshot.state = *state;
    if (state->val.best.step != state->step) s->snapshot.state.val.best = s->best;
    s->snapshot.state.optimizer_step = s->optimizer->step;
    s->state = s->snapshot.state;
    free(s->snapshot.choices);
    s->snapshot.choices = format_string("%s", autotune_text());
    copy_state(s);

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
            "continues from the newest, if there is one", shell_word(s->dir->path));
    for (int i = 0; i < STATES; i++) {
        device_unpin(s->snapshot.host[i]);
        free(s->snapshot.host[i]);
    }
    free(s->snapshot.choices);
    *s = (Saver){0};
}
