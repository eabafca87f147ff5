#include "saver.h"
#include "../files.h"
#include "run_dir.h"
#include "../os.h"
#include "../../kernels/device.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void sweep(void *saver) { steps_sweep(((Saver *)saver)->out); }

enum { PAGE = 1 << 21 };                   /* a large one; a copy takes whole ones */
static size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }
size_t saver_host_bytes(const GPTConfig *config) { return 3 * whole_pages(gpt_param_bytes(config, F32)); }

double saver_file_bytes(const GPTConfig *config) {
    double moments = 8, parameters = config->save_dtype == BF16 ? 2 + 4 : 4;     /* bytes a number; rounded, exact */
    return (moments + parameters) * (double)gpt_parameter_count(config);
}

/* Its pages are there when it returns, large ones where the system has them: those of 1.5 GB, handed out one by one,
   stalled the first save for seconds. */
static void *host_alloc(size_t bytes) {
    size_t whole = whole_pages(bytes);
    void *memory = aligned_alloc(PAGE, whole);
    REQUIRE(memory, "out of memory: the copy on the host from which checkpoints are written needs 3 times %.2f GiB",
            (double)bytes / (1 << 30));
    madvise(memory, whole, MADV_HUGEPAGE);
    memset(memory, 0, whole);
    device_pin(memory, whole);
    return memory;
}

void saver_open(Saver *s, const char *out, const GPT *model, const Optimizer *optimizer, int64_t keep,
                int64_t keep_every) {
    *s = (Saver){ .out = format_string("%s", out), .model = model, .optimizer = optimizer, .keep = keep,
                  .keep_every = keep_every, .seconds = saver_file_bytes(&model->config) / 200e6 };
    for (int i = 0; i < 3; i++) s->host[i] = host_alloc(model->master.table.bytes);
    char ignored[FAIL_LENGTH];             /* the next save tries again, and tells */
    fails(sweep, s, ignored);
}

/* ---- The settings live in the options of the caller, who goes on: a copy */

static void settings_free(Setting *settings) {
    for (Setting *s = settings; s && s->key; s++) {
        free((char *)s->key);
        free((char *)s->value);
    }
    free(settings);
}

static Setting *settings_copy(const Setting *settings) {
    size_t count = 0;
    while (settings[count].key) count++;
    Setting *copy = calloc(count + 1, sizeof *copy);
    REQUIRE(copy, "out of memory: %zu settings of a checkpoint", count);
    for (size_t i = 0; i < count; i++)
        copy[i] = (Setting){ format_string("%s", settings[i].key), format_string("%s", settings[i].value) };
    return copy;
}

/* ---- The thread */

static void write_snapshot(void *saver) { steps_write(((Saver *)saver)->out, &((Saver *)saver)->snapshot); }

static void keep_folder(void *saver) {
    Saver *s = saver;
    if (s->folder) folder_keep(s->folder);
}

static void prune(void *saver) {
    Saver *s = saver;
    steps_prune(s->out, s->snapshot.state.step, s->keep, s->keep_every);
}

static void *save(void *saver) {
    Saver *s = saver;
    char why[FAIL_LENGTH], left[FAIL_LENGTH] = "";
    long long step = (long long)s->snapshot.state.step;
    double start = seconds_now();
    s->failed = fails(keep_folder, s, why);
    if (!s->failed) {                      /* else it is another run's: nothing of it is touched */
        fails(sweep, s, left);             /* first, for the room it makes */
        s->failed = fails(write_snapshot, s, why);
        fails(s->failed ? sweep : prune, s, left);
    }
    if (s->failed)  snprintf(s->message, sizeof s->message, "step %lld is not saved: %.1900s", step, why);
    else if (*left) snprintf(s->message, sizeof s->message, "step %lld is saved, but %.1900s", step, left);
    s->took = seconds_now() - start;
    return NULL;
}

static void ended(Saver *s) {
    s->running = 0;
    s->seconds = s->took;
    settings_free(s->settings);
    s->settings = NULL;
}

/* ---- The door */

double saver_start(Saver *s, const TrainState *state, const Setting *settings) {
    double waited = saver_wait(s);
    s->snapshot = checkpoint_snapshot(s->model, s->optimizer, state, s->settings = settings_copy(settings));
    s->snapshot.tokenizer = s->tokenizer;
    Part *parts[3] = { &s->snapshot.parameters, &s->snapshot.moments[0], &s->snapshot.moments[1] };
    for (int i = 0; i < 3; i++) {
        device_download(s->host[i], parts[i]->table->memory, parts[i]->table->bytes);
        parts[i]->host = s->host[i];
    }
    s->snapshot.moments[2].host = s->host[0];
    s->message[0] = 0;

    sigset_t all, before;                  /* a signal is for the main thread, which knows what to do about it */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    s->running = pthread_create(&s->thread, NULL, save, s) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!s->running) {                     /* no thread to be had: late, but saved */
        save(s);
        ended(s);
    }
    return waited;
}

int saver_busy(Saver *s) {
    if (s->running && pthread_tryjoin_np(s->thread, NULL) == 0) ended(s);
    return s->running;
}

double saver_wait(Saver *s) {
    if (!saver_busy(s)) return 0;
    double start = seconds_now();
    pthread_join(s->thread, NULL);
    ended(s);
    return seconds_now() - start;
}

const char *saver_error(Saver *s) {
    static char told[FAIL_LENGTH];
    if (saver_busy(s) || !*s->message) return NULL;
    memcpy(told, s->message, sizeof told);
    s->message[0] = 0;
    return told;
}

void saver_close(Saver *s) {
    saver_wait(s);
    for (int i = 0; i < 3; i++) {
        device_unpin(s->host[i]);
        free(s->host[i]);
    }
    free(s->out);
    *s = (Saver){0};
}
