/* test/test_saver.c - Checkpoints written by the thread: the same bytes as without it, errors survived, old ones
   pruned. */
#include "models.h"
#include "scratch.h"
#include <fcntl.h>
#include <sys/stat.h>
#include "../llmc/checkpoint/saver.h"
#include "../llmc/checkpoint/run_dir.h"

static Trainer trainer;

static void fill_all(uint32_t seed) {
    tiny_fill(&trainer, seed);
    trainer.optimizer.step = seed;
}

static TrainState state_of(int64_t step) { return (TrainState){ step, (uint64_t)step * 3, step * 21, 0.5 }; }

/* The caller's strings are gone when start returns, as those of options on a stack are. */
static double start(Saver *saver, int64_t step) {
    char value[8] = "d4";
    Setting settings[] = { { "model", value }, { "data", "a \"b\"\n\\c" }, { NULL, NULL } };
    TrainState state = state_of(step);
    double waited = saver_start(saver, &state, settings);
    memset(value, '!', sizeof value - 1);
    memset(settings, 0xff, sizeof settings);
    return waited;
}

static void save_plainly(const char *out, int64_t step) {
    Setting settings[] = { { "model", "d4" }, { "data", "a \"b\"\n\\c" }, { NULL, NULL } };
    TrainState state = state_of(step);
    steps_save(out, &trainer.model, &trainer.optimizer, &state, settings);
}

static void expect_same_checkpoint(const char *a, const char *b) {
    static const char *const names[] = { "config.json", "model.safetensors", "optimizer.safetensors", "state.json" };
    for (int i = 0; i < COUNT(names); i++)
        EXPECT(same_files(IN_SCRATCH("%s/%s", a, names[i]), IN_SCRATCH("%s/%s", b, names[i])), "%s of %s and %s differ",
               names[i], a, b);
}

/* The steps of a folder, in order: "5 10 12"; what is no checkpoint by its full name. */
static const char *steps_in(const char *out) {
    static char text[512];
    char *command = format_string("ls '%s' | sed '/^step-[0-9]\\{8\\}$/ s/^step-0*//' | sort -n | tr '\\n' ' '", out);
    FILE *list = popen(command, "r");
    size_t length = list ? fread(text, 1, sizeof text - 1, list) : 0;
    text[length ? length - 1 : 0] = 0;
    if (list) pclose(list);
    free(command);
    return text;
}

#define EXPECT_STEPS(out, want) EXPECT(!strcmp(steps_in(out), want), "steps are %s, want %s", steps_in(out), want)

/* ---- Tests */

static void the_same_bytes_as_without_the_thread(void) {
    Saver saver;
    saver_open(&saver, IN_SCRATCH("new/beside"), &trainer.model, &trainer.optimizer, 0, 0);
    for (uint32_t step = 1; step <= 5; step++) {
        fill_all(step);
        save_plainly(IN_SCRATCH("plain"), step);
        start(&saver, step);
        fill_all(99);                  /* training goes on at once, and changes everything */
    }
    saver_wait(&saver);
    EXPECT(!saver_busy(&saver) && !saver.failed && !saver_error(&saver), "no error");
    for (int step = 1; step <= 5; step++)
        expect_same_checkpoint(IN_SCRATCH("plain/step-%08d", step) + strlen(scratch) + 1,
                               IN_SCRATCH("new/beside/step-%08d", step) + strlen(scratch) + 1);
    saver_close(&saver);
    EXPECT_STEPS(IN_SCRATCH("new/beside"), "1 2 3 4 5");
    size_t planned = saver_host_bytes(&trainer.model.config), copied = 3 * trainer.model.master.table.bytes;
    saver_open(&saver, IN_SCRATCH("new/beside"), &trainer.model, &trainer.optimizer, 0, 0);
    double files = 0, first = saver.seconds;
    static const char *const names[] = { "model.safetensors", "optimizer.safetensors" };
    for (int i = 0; i < COUNT(names); i++) {
        FileMap map = file_map(IN_SCRATCH("new/beside/step-00000001/%s", names[i]));
        files += (double)map.size;
        file_unmap(map);
    }
    double numbers = saver_file_bytes(&trainer.model.config);
    /* without the headers */
    EXPECT(numbers < files && numbers > files - 20000, "%g bytes foreseen, %g written", numbers, files);
    EXPECT(first == numbers / 200e6, "%g s foreseen for %g bytes", first, numbers);
    saver_close(&saver);
    EXPECT(planned >= copied && planned < copied + (3 << 21), "%zu bytes planned, %zu copied", planned, copied);
}

static void a_save_waits_for_the_one_before(void) {
    Saver saver;
    saver_open(&saver, IN_SCRATCH("waits"), &trainer.model, &trainer.optimizer, 0, 0);
    EXPECT(start(&saver, 1) == 0, "nothing to wait for");
    saver_wait(&saver);
    EXPECT(saver_wait(&saver) == 0, "nothing more to wait for");
    start(&saver, 2);
    double waited = start(&saver, 3);
    EXPECT(waited >= 0 && waited < 60, "waited %g s", waited);
    EXPECT(file_exists(IN_SCRATCH("waits/step-00000002/state.json")), "the one before is whole by then");
    saver_close(&saver);
    EXPECT_STEPS(IN_SCRATCH("waits"), "1 2 3");
}

static int open_files(void) {
    int count = 0;
    for (int fd = 0; fd < 256; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void an_error_then_a_success(void) {
    char *out = IN_SCRATCH("errors");
    Saver saver;
    saver_open(&saver, out, &trainer.model, &trainer.optimizer, 0, 0);
    start(&saver, 1);
    saver_wait(&saver);
    int files = open_files();
    static const rlim_t limits[] = { 0, 100, 1000, 8000, 30000 };
    for (int i = 0; i < 5; i++) {
        limit_file_size(limits[i]);
        start(&saver, 2);
        saver_wait(&saver);
        limit_file_size(RLIM_INFINITY);
        const char *error = saver_error(&saver);
        EXPECT(saver.failed && error && !strncmp(error, "step 2 is not saved: ", 21) && !strchr(error, '\n') &&
               strstr(error, "cannot write: File too large"), "%s", error ? error : "no error");
        EXPECT(!saver_error(&saver), "told once");
        EXPECT_STEPS(out, "1");
        EXPECT(open_files() == files, "%d files were open, now %d", files, open_files());
    }
    float *place = trainer.model.params.wpe.data, kept, sick = NAN;
    device_download(&kept, place, sizeof kept);
    device_upload(place, &sick, sizeof sick);
    start(&saver, 2);
    device_upload(place, &kept, sizeof kept);
    saver_wait(&saver);
    const char *error = saver_error(&saver);
    EXPECT(saver.failed && error && strstr(error, "transformer.wpe.weight holds a NaN"), "%s", error ? error : "none");
    EXPECT_STEPS(out, "1");
    start(&saver, 2);
    saver_wait(&saver);
    EXPECT(!saver.failed && !saver_error(&saver), "the next one is saved");
    EXPECT_STEPS(out, "1 2");
    EXPECT(open_files() == files, "%d files were open, now %d", files, open_files());
    saver_close(&saver);

    put_text(IN_SCRATCH("occupied"), "");
    saver_open(&saver, IN_SCRATCH("occupied"), &trainer.model, &trainer.optimizer, 0, 0);
    start(&saver, 3);
    saver_wait(&saver);
    error = saver_error(&saver);
    EXPECT(saver.failed && error && strstr(error, "occupied: cannot make the folder"), "%s", error ? error : "none");
    saver_close(&saver);
}

/* Saves steps 1 to last, and says what is there then. */
static void keeps(int64_t keep, int64_t keep_every, int64_t last, const char *want) {
    char *out = IN_SCRATCH("keep-%d-%d", (int)keep, (int)keep_every);
    Saver saver;
    saver_open(&saver, out, &trainer.model, &trainer.optimizer, keep, keep_every);
    for (int64_t step = 1; step <= last; step++) start(&saver, step);
    saver_close(&saver);
    EXPECT_STEPS(out, want);
}

static void old_ones_are_pruned(void) {
    keeps(0, 0, 5, "1 2 3 4 5");
    keeps(0, 3, 5, "1 2 3 4 5");
    keeps(1, 0, 5, "5");
    keeps(3, 0, 11, "9 10 11");
    keeps(2, 4, 11, "4 8 10 11");
    keeps(2, 1, 5, "1 2 3 4 5");
    keeps(100, 0, 5, "1 2 3 4 5");
}

static void a_prune_keeps_what_is_not_ours(void) {
    char *out = IN_SCRATCH("others"), *elsewhere = IN_SCRATCH("elsewhere");
    for (int step = 1; step <= 9; step++) save_plainly(out, step);
    put_text(IN_SCRATCH("others/step-00000002/notes.txt"), "mine");
    directory_make(IN_SCRATCH("others/step-00000003/eval"));
    unlink(IN_SCRATCH("others/step-00000004/optimizer.safetensors"));         /* a model to load stays, too */
    EXPECT(rename(IN_SCRATCH("others/step-00000005"), elsewhere) == 0 &&
           symlink(elsewhere, IN_SCRATCH("others/step-00000005")) == 0, "a link");
    directory_make(IN_SCRATCH("others/step-7"));
    put_text(IN_SCRATCH("others/step-00000010"), "a file");
    unlink(IN_SCRATCH("others/step-00000009/state.json"));                    /* not complete: 8 is the newest */
    save_plainly(out, 12);                                                  /* a later one neither goes nor counts */
    steps_prune(out, 9, 1, 0);
    EXPECT(!strcmp(steps_in(out), "step-7 2 3 4 5 8 9 10 12"), "%s", steps_in(out));
    EXPECT(file_exists(IN_SCRATCH("elsewhere/state.json")), "what a link leads to stays");
    char *latest = steps_latest(out);
    EXPECT(latest && !strcmp(latest, IN_SCRATCH("others/step-00000012")), "%s", latest);
    free(latest);
    steps_prune(IN_SCRATCH("none"), 1, 1, 0);
}

/* What a kill leaves: a partial of any step, an old one beside the one that took its place, an old one alone. */
static void what_a_kill_left_is_swept(void) {
    char *out = IN_SCRATCH("swept");
    for (int step = 1; step <= 4; step++) save_plainly(out, step);
    EXPECT(rename(IN_SCRATCH("swept/step-00000001"), IN_SCRATCH("swept/step-00000001.partial")) == 0 &&
           rename(IN_SCRATCH("swept/step-00000002"), IN_SCRATCH("swept/step-00000002.old")) == 0 &&
           rename(IN_SCRATCH("swept/step-00000003"), IN_SCRATCH("swept/step-00000004.old")) == 0, "renamed");
    directory_make(IN_SCRATCH("swept/step-5.partial"));
    directory_make(IN_SCRATCH("swept/mine.partial"));
    Saver saver;
    saver_open(&saver, out, &trainer.model, &trainer.optimizer, 0, 0);
    start(&saver, 6);
    saver_wait(&saver);
    EXPECT(!saver.failed && !saver_error(&saver), "no error");
    EXPECT(!strcmp(steps_in(out), "mine.partial step-5.partial 2 4 6"), "%s", steps_in(out));

    directory_make(IN_SCRATCH("swept/step-00000005.partial/deep"));      /* which cannot be removed: told, but saved */
    start(&saver, 7);
    saver_wait(&saver);
    const char *error = saver_error(&saver);
    EXPECT(!saver.failed && error && strstr(error, "step 7 is saved, but ") && strstr(error, "cannot remove"), "%s",
           error ? error : "no error");
    EXPECT(file_exists(IN_SCRATCH("swept/step-00000007/state.json")), "saved");
    saver_close(&saver);
}

static void fail_deep(void *depth) {
    char message[FAIL_LENGTH] = "";
    if (*(int *)depth) {
        int less = *(int *)depth - 1;
        EXPECT(fails(fail_deep, &less, message) && strstr(message, "at depth"), "caught inside: %s", message);
    }
    fail("at depth %d", *(int *)depth);
}

static void succeed(void *ignored) { (void)ignored; }

static void fails_catches_and_gives_back(void) {
    char message[FAIL_LENGTH] = "";
    int depth = 2;
    EXPECT(fails(fail_deep, &depth, message) && !strcmp(message, "at depth 2"), "%s", message);
    EXPECT(!fails(succeed, NULL, message), "no failure");
    depth = 0;
    expect_fails("at depth 0", fail_deep, &depth);       /* behind it, a failure ends the process again */
}

static void lock(void *out) { directory_lock(out); }

static void the_lock_names_its_holder(void) {
    char *out = IN_SCRATCH("locked"), host[200] = "", want[300];
    directory_make(out);
    put_text(IN_SCRATCH("locked/.lock"), "process 123456789012345678901234567890 on the host of an earlier run\n");
    directory_lock(out);
    directory_sign(out);
    gethostname(host, sizeof host - 1);
    snprintf(want, sizeof want, "writes to this folder (process %ld on %s): wait for it", (long)getpid(), host);
    expect_fails(want, lock, out);

    /* a link's file stays as it is, a pipe is not waited for */
    put_text(IN_SCRATCH("mine"), "mine");
    EXPECT(!unlink(IN_SCRATCH("locked/.lock")) && !symlink("../mine", IN_SCRATCH("locked/.lock")), "a link");
    directory_sign(out);
    FileMap map = file_map(IN_SCRATCH("mine"));
    EXPECT(map.size == 4 && !memcmp(map.bytes, "mine", 4), "%.*s", (int)map.size, (const char *)map.bytes);
    file_unmap(map);
    EXPECT(!unlink(IN_SCRATCH("locked/.lock")) && !mkfifo(IN_SCRATCH("locked/.lock"), 0600), "a pipe");
    directory_sign(out);
    expect_fails("writes to this folder (just started)", lock, out);
}

int main(void) {
    scratch_open();
    test_device_open((DeviceOptions){ .threads = 1 });
    tiny_create(&trainer, 1);
    fill_all(1);
    RUN(fails_catches_and_gives_back);
    RUN(the_same_bytes_as_without_the_thread);
    RUN(a_save_waits_for_the_one_before);
    RUN(an_error_then_a_success);
    RUN(old_ones_are_pruned);
    RUN(a_prune_keeps_what_is_not_ours);
    RUN(what_a_kill_left_is_swept);
    RUN(the_lock_names_its_holder);
    tiny_free(&trainer);
    return test_close();
}
