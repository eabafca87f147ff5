/* test/test_saver.c - Checkpoints written by the thread: the state at the call, errors survived, old ones removed; the
   lock of a run directory. */
#include "checkpoints.h"
#include <fcntl.h>

static Trainer trainer;

static void fill_all(uint32_t seed) {
    tiny_fill(&trainer, seed);
    trainer.optimizer.step = seed;
}

static void start(Saver *saver, int64_t step) {
    TrainState state = state_of(step);
    saver_save(saver, &state);
}

/* The steps in a directory, in order: "5 10 12"; other entries with their full names. */
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

static void what_is_saved_is_the_state_at_the_call(void) {
    Saver saver;
    RunDir dir;
    Trainer loaded;
    tiny_create(&loaded, 98);
    open_saver(&saver, &dir, IN_SCRATCH("new/beside"), &trainer, 0, 0);
    double first = saver.seconds, numbers = saver_file_bytes(&trainer.model.config), files = 0;
    EXPECT(saver.saved_step == -1, "nothing saved");
    for (uint32_t step = 1; step <= 5; step++) {
        fill_all(step);
        start(&saver, step);
        EXPECT(saver.saved_step == step, "saved step %lld", (long long)saver.saved_step);
        fill_all(99);                  /* training continues at once, and changes everything */
    }
    saver_finish(&saver);
    EXPECT(!saver.failed && !*saver.message && saver.seconds > 0, "%s", saver.message);
    for (uint32_t step = 1; step <= 5; step++) {
        char *checkpoint = IN_SCRATCH("new/beside/step-%08d", step);
        fill_all(step);
        checkpoint_load_model(checkpoint, &loaded.model);
        checkpoint_load_optimizer(checkpoint, &loaded.model, &loaded.optimizer);
        expect_equal_rows(&trainer.model.params, &loaded.model.params, "parameters");
        expect_equal_moments(&trainer.optimizer, &loaded.optimizer);
        EXPECT(loaded.optimizer.step == step && checkpoint_load_state(checkpoint).step == step, "step %u", step);
    }
    close_saver(&saver, &dir);
    tiny_free(&loaded);
    EXPECT_STEPS(IN_SCRATCH("new/beside"), "1 2 3 4 5");
    size_t planned = saver_host_bytes(&trainer.model.config), copied = 3 * trainer.model.master.table.bytes;
    static const char *const names[] = { "model.safetensors", "optimizer.safetensors" };
    for (int i = 0; i < COUNT(names); i++) {
        FileMap map = file_map(IN_SCRATCH("new/beside/step-00000001/%s", names[i]));
        files += (double)map.size;
        file_unmap(map);
    }
    /* without the headers */
    EXPECT(numbers < files && numbers > files - 20000, "%g bytes foreseen, %g written", numbers, files);
    EXPECT(first == numbers / 200e6, "%g s foreseen for %g bytes", first, numbers);
    EXPECT(planned >= copied && planned < copied + (3 << 21), "%zu bytes planned, %zu copied", planned, copied);
}

static void a_save_waits_for_the_one_before(void) {
    Saver saver;
    RunDir dir;
    open_saver(&saver, &dir, IN_SCRATCH("waits"), &trainer, 0, 0);
    start(&saver, 2);
    start(&saver, 3);
    EXPECT(file_exists(IN_SCRATCH("waits/step-00000002/state.json")), "the one before is complete by then");
    close_saver(&saver, &dir);
    EXPECT_STEPS(IN_SCRATCH("waits"), "2 3");
}

static void without_a_run_directory_nothing_is_written(void) {
    Saver saver;
    saver_open(&saver, NULL, &trainer.model, &trainer.optimizer, NULL, NULL, NULL, TOKENIZER_BYTES, 0, 0, NULL);
    start(&saver, 1);
    saver_poll(&saver);
    saver_finish(&saver);
    EXPECT(saver.saved_step == 1 && !saver.failed && !saver.snapshot.host[0], "it counts as saved");
    saver_close(&saver);
}

static int open_files(void) {
    int count = 0;
    for (int fd = 0; fd < 256; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void close_after_failure(void *saver) {
    limit_file_size(100);
    start(saver, 9);
    saver_finish(saver);
    saver_close(saver);
}

/* What saver_finish writes to stderr. */
static const char *finish(Saver *saver) {
    static char text[FAIL_LENGTH];
    char *path = IN_SCRATCH("stderr");
    int kept = dup(2), file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    fflush(NULL);
    dup2(file, 2);
    saver_finish(saver);
    dup2(kept, 2);
    ssize_t length = pread(file, text, sizeof text - 1, 0);
    text[length > 0 ? length : 0] = 0;
    close(kept);
    close(file);
    return text;
}

static void an_error_then_a_success(void) {
    char *out = IN_SCRATCH("errors");
    Saver saver;
    RunDir dir;
    open_saver(&saver, &dir, out, &trainer, 0, 0);
    start(&saver, 1);
    saver_finish(&saver);
    int files = open_files();
    static const rlim_t limits[] = { 0, 100, 1000, 8000, 30000 };
    for (int i = 0; i < 5; i++) {
        limit_file_size(limits[i]);
        start(&saver, 2);
        if (i == 1) start(&saver, 3);      /* which reports the error of the one before */
        while (saver.running) saver_poll(&saver);
        limit_file_size(RLIM_INFINITY);
        const char *want = i == 1 ? "step 3 is not saved: " : "step 2 is not saved: ";
        EXPECT(saver.failed && !strncmp(saver.message, want, 21) &&
               strstr(saver.message, "cannot write: File too large"), "%s", saver.message);
        EXPECT(!*finish(&saver), "reported once");
        EXPECT_STEPS(out, "1");
        EXPECT(open_files() == files, "%d files were open, now %d", files, open_files());
    }
    float *place = trainer.model.params.wpe.data, kept, nan = NAN;
    device_download(&kept, place, sizeof kept);
    device_upload(place, &nan, sizeof nan);
    start(&saver, 2);
    device_upload(place, &kept, sizeof kept);
    const char *error = finish(&saver);
    EXPECT(saver.failed && strstr(error, "train_gpt: warning: step 2 is not saved: ") &&
           strstr(error, "transformer.wpe.weight holds a NaN"), "%s", error);
    EXPECT_STEPS(out, "1");
    start(&saver, 2);
    EXPECT(!*finish(&saver) && !saver.failed, "the next one is saved");
    EXPECT_STEPS(out, "1 2");
    EXPECT(open_files() == files, "%d files were open, now %d", files, open_files());
    if (!test_in_process) {
        char text[4096];
        int status;
        test_in_child(close_after_failure, &saver, text, sizeof text, &status);
        char *want = STRING("correct the cause and --resume from %s/step-00000002", out);
        EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 1 && strstr(text, want), "status %d: %s", status, text);
    }
    close_saver(&saver, &dir);
}

/* Neither made again, nor written to when another run has taken the name. */
static void a_moved_directory_is_an_error(void) {
    char *out = IN_SCRATCH("moved");
    Saver saver;
    RunDir dir;
    open_saver(&saver, &dir, out, &trainer, 1, 0);
    start(&saver, 1);
    saver_finish(&saver);
    EXPECT(rename(out, IN_SCRATCH("elsewhere-moved")) == 0, "moved");
    for (int other = 0; other < 2; other++) {
        start(&saver, 2);
        const char *error = finish(&saver);
        EXPECT(saver.failed && strstr(error, "moved: the directory was moved or removed during the run"), "%s", error);
        if (!other) EXPECT(!file_exists(out), "it is not made again");
        directory_make(IN_SCRATCH("moved/step-00000001.partial"));
    }
    EXPECT_STEPS(out, "step-00000001.partial");
    close_saver(&saver, &dir);
}

/* Saves steps 1 to last; want: the steps left. */
static void keeps(int64_t keep, int64_t keep_every, int64_t last, const char *want) {
    char *out = IN_SCRATCH("keep-%d-%d", (int)keep, (int)keep_every);
    Saver saver;
    RunDir dir;
    open_saver(&saver, &dir, out, &trainer, keep, keep_every);
    for (int64_t step = 1; step <= last; step++) start(&saver, step);
    saver_finish(&saver);
    close_saver(&saver, &dir);
    EXPECT_STEPS(out, want);
}

static void old_ones_are_removed(void) {
    keeps(0, 0, 5, "1 2 3 4 5");
    keeps(0, 3, 5, "1 2 3 4 5");
    keeps(1, 0, 5, "5");
    keeps(3, 0, 11, "9 10 11");
    keeps(2, 4, 11, "4 8 10 11");
    keeps(2, 1, 5, "1 2 3 4 5");
    keeps(100, 0, 5, "1 2 3 4 5");
}

static void other_files_stay(void) {
    char *out = IN_SCRATCH("others"), *elsewhere = IN_SCRATCH("elsewhere");
    for (int step = 1; step <= 8; step++) SAVE_STEP(out, &trainer, step);
    put_text(IN_SCRATCH("others/step-00000002/notes.txt"), "mine");
    directory_make(IN_SCRATCH("others/step-00000003/eval"));
    unlink(IN_SCRATCH("others/step-00000004/optimizer.safetensors"));         /* a model to load stays, too */
    EXPECT(rename(IN_SCRATCH("others/step-00000005"), elsewhere) == 0 &&
           symlink(elsewhere, IN_SCRATCH("others/step-00000005")) == 0, "a link");
    directory_make(IN_SCRATCH("others/step-7"));
    put_text(IN_SCRATCH("others/step-00000010"), "a file");
    SAVE_STEP(out, &trainer, 12);                                           /* a later one neither goes nor counts */
    Saver saver;
    RunDir dir;
    open_saver(&saver, &dir, out, &trainer, 2, 0);
    start(&saver, 9);
    EXPECT(!*finish(&saver), "no error");
    close_saver(&saver, &dir);
    EXPECT_STEPS(out, "step-7 2 3 4 5 8 9 10 12");
    EXPECT(file_exists(IN_SCRATCH("elsewhere/state.json")), "the target of a link stays");
}

static void what_a_kill_left_is_removed(void) {
    char *out = IN_SCRATCH("swept");
    for (int step = 1; step <= 2; step++) SAVE_STEP(out, &trainer, step);
    EXPECT(rename(IN_SCRATCH("swept/step-00000001"), IN_SCRATCH("swept/step-00000001.partial")) == 0, "renamed");
    directory_make(IN_SCRATCH("swept/step-5.partial"));
    directory_make(IN_SCRATCH("swept/mine.partial"));
    Saver saver;
    RunDir dir;
    open_saver(&saver, &dir, out, &trainer, 0, 0);
    EXPECT_STEPS(out, "mine.partial step-5.partial 2");
    directory_make(IN_SCRATCH("swept/step-00000005.partial/results"));      /* of a user: not removed */
    start(&saver, 7);
    EXPECT(!*finish(&saver), "no error");
    directory_make(IN_SCRATCH("swept/step-00000006.partial/config.json"));      /* cannot be removed */
    start(&saver, 8);
    const char *error = finish(&saver);
    EXPECT(!saver.failed && strstr(error, "step 8 is saved, but ") && strstr(error, "cannot remove"), "%s", error);
    EXPECT_STEPS(out, "mine.partial step-00000005.partial step-00000006.partial step-5.partial 2 7 8");
    close_saver(&saver, &dir);
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

static void lock(void *out) { run_dir_lock(&(RunDir){ .path = out }); }

static void a_directory_has_one_writer(void) {
    char *out = IN_SCRATCH("locked");
    RunDir dir = { .path = out };
    run_dir_open(&dir);
    expect_fails("another train_gpt writes to this directory: wait for it", lock, out);
    close(dir.lock);
    lock(out);
}

int main(void) {
    scratch_open();
    test_device_open((DeviceOptions){ .threads = 1 });
    tiny_create(&trainer, 1);
    fill_all(1);
    RUN(fails_catches_and_gives_back);
    RUN(what_is_saved_is_the_state_at_the_call);
    RUN(a_save_waits_for_the_one_before);
    RUN(without_a_run_directory_nothing_is_written);
    RUN(an_error_then_a_success);
    RUN(a_moved_directory_is_an_error);
    RUN(old_ones_are_removed);
    RUN(other_files_stay);
    RUN(what_a_kill_left_is_removed);
    RUN(a_directory_has_one_writer);
    tiny_free(&trainer);
    return test_close();
}
