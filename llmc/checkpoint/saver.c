#include "saver.h"
#include "../files.h"
#include "../os.h"
#include "../../kernels/device.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 1 << 21 };                   /* a huge page */
static size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }
size_t saver_host_bytes(const GPTConfig *config) { return 3 * whole_pages(gpt_param_bytes(config, F32)); }

double saver_file_bytes(const GPTConfig *config) {
    double moments = 8, parameters = config->save_dtype == BF16 ? 2 + 4 : 4;     /* bytes per parameter */
    return (moments + parameters) * (double)gpt_parameter_count(config);
}

/* All pages are mapped when it returns, huge ones if the system has them: mapping 1.5 GB page by page stalled the first
   save for seconds. */
static void *pinned_alloc(size_t bytes) {
    size_t whole = whole_pages(bytes);
    void *memory = aligned_alloc(PAGE, whole);
    REQUIRE(memory, "out of memory: the host copy from which checkpoints are written takes 3 times %.2f GiB",
            (double)bytes / (1 << 30));
    madvise(memory, whole, MADV_HUGEPAGE);
    memset(memory, 0, whole);
    device_pin(memory, whole);
    return memory;
}

/* ---- In the thread, which touches nothing but the saver and the files */

static void write_snapshot(void *saver) { run_dir_write(((Saver *)saver)->dir, &((Saver *)saver)->snapshot); }
static void remove_partial(void *saver) { run_dir_clean(((Saver *)saver)->dir, 0, 0, 0); }
static void prune(void *saver) {
    Saver *s = saver;
    run_dir_clean(s->dir, s->snapshot.state.step, s->keep, s->keep_every);
}

static void *save(void *saver) {
    Saver *s = saver;
    char why[FAIL_LENGTH], why_not_removed[FAIL_LENGTH] = "";
    long long step = (long long)s->snapshot.state.step;
    double start = seconds_now();
    s->failed = fails(write_snapshot, s, why);
    fails(s->failed ? remove_partial : prune, s, why_not_removed);
    if (s->failed) snprintf(s->message, sizeof s->message, "step %lld is not saved: %.1900s", step, why);
    else if (*why_not_removed)
        snprintf(s->message, sizeof s->message, "step %lld is saved, but %.1900s", step, why_not_removed);
    s->thread_seconds = seconds_now() - start;
    return NULL;
}

/* ---- In the main thread */

void saver_open(Saver *s, RunDir *dir, const GPT *model, const Optimizer *optimizer,
                const TokenizerFiles *tokenizer_files, const Option *options, const Corpus *corpus, Tokenizer tokenizer,
                int64_t keep, int64_t keep_every, Report *report) {
    *s = (Saver){ .dir = dir, .model = model, .optimizer = optimizer, .report = report, .keep = keep,
                  .keep_every = keep_every, .saved_step = -1, .reported = 1 };
    if (!dir) return;
    const TensorTable *table = &model->master.table;
    s->seconds = saver_file_bytes(&model->config) / 200e6;
    for (int i = 0; i < 3; i++) s->host[i] = pinned_alloc(model->master.table.bytes);
    s->snapshot = (Snapshot){
        .config = model->config, .options = options, .tokenizer = tokenizer, .tokenizer_files = tokenizer_files,
        .train = data_id(corpus->train), .val = data_id(corpus->val),
        .parameters = { "", table, s->host[0], model->config.save_dtype },
        .moments = { { "exp_avg.", table, s->host[1], F32 }, { "exp_avg_sq.", table, s->host[2], F32 },
                     { "param.", table, s->host[0], F32 } },
    };
    char why[FAIL_LENGTH];
    fails(remove_partial, s, why);         /* the next save tries again and reports the error */
}

static void wait_for_thread(Saver *s) {
    if (!s->running) return;
    pthread_join(s->thread, NULL);
    s->running = 0;
}

static void report_error(Saver *s, int more_to_come) {
    if (s->reported) return;
    s->reported = 1;
    s->seconds = s->thread_seconds;
    if (*s->message)
        report_line(stderr, "%s%s", s->message, s->failed && more_to_come ? "; the next save tries again" : "");
}

void saver_poll(Saver *s, int more_to_come) {
    if (s->reported || (s->running && pthread_tryjoin_np(s->thread, NULL))) return;
    s->running = 0;
    report_error(s, more_to_come);
}

void saver_finish(Saver *s) {
    wait_for_thread(s);
    report_error(s, 0);
}

void saver_save(Saver *s, const TrainState *state) {
    if (!s->dir) return;
    saver_poll(s, 1);
    if (s->running) {
        double start = seconds_now();
        wait_for_thread(s);
        double waited = seconds_now() - start;
        if (waited > 0.1)
            report_line(stdout, "step %lld: waited %.1f s for the checkpoint before: the disk is slower than "
                        "--save-every", (long long)state->step, waited);
        report_error(s, 1);
    }
    report_sync(s->report);
    s->saved_step = state->step;
    s->snapshot.state = *state;
    s->snapshot.optimizer_step = s->optimizer->step;
    const TensorTable *table = &s->model->master.table;
    const void *memory[3] = { table->memory, s->optimizer->m.data, s->optimizer->v.data };
    for (int i = 0; i < 3; i++) device_download(s->host[i], memory[i], table->bytes);
    s->message[0] = 0;
    s->reported = 0;

    sigset_t all, before;                  /* signals are for the main thread */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    s->running = pthread_create(&s->thread, NULL, save, s) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!s->running) save(s);              /* no thread can be started: without one */
}

void saver_close(Saver *s) {
    if (!s->dir) return;
    saver_finish(s);
    char *latest = s->failed ? run_dir_latest(s->dir->path) : NULL;
    REQUIRE(!s->failed || latest, "the last checkpoint could not be written (see above), and %s has no other",
            s->dir->path);
    REQUIRE(!s->failed, "the last checkpoint could not be written (see above): correct the cause and --resume from %s",
            latest);
    for (int i = 0; i < 3; i++) {
        device_unpin(s->host[i]);
        free(s->host[i]);
    }
    *s = (Saver){0};
}
