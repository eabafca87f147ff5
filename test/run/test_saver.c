/* test_saver.c - Checkpoints written by the thread: the state at the call, errors survived, old ones removed, the
   best kept; the lock of a run directory. */
#include "checkpoints.h"

static Trainer *trainer;

static void fill_all(uint32_t seed) {
    tiny_fill(trainer, seed);
    trainer->optimizer.step = seed;
}

static void start(Saver *saver, int64_t step) {
    TrainState state = state_of(step);
    saver_save(saver, &state);
}

/* The steps in a directory, in order, after the step that best links to: "best=5 5 10"; other entries with their full
   names. */
static const char *steps_in(const char *out) {
    static char text[512];
    FILE *list = popen(STRING("find '%s' -mindepth 1 -maxdepth 1 -printf '%%f=%%l\\n' | sed -e '/^best=/!s/=.*//' "
                              "-e 's/=step-0*/=/' -e '/^step-[0-9]\\{8\\}$/s/^step-0*//' | sort -n | tr '\\n' ' '",
                              out), "r");
    size_t length = list ? fread(text, 1, sizeof text - 1, list) : 0;
    text[length ? length - 1 : 0] = 0;
    if (list) pclose(list);
    return text;
}

#define EXPECT_STEPS(out, want) EXPECT(!strcmp(steps_in(out), want), "steps are %s, want %s", steps_in(out), want)

/* What saver_finish writes to stderr. */
static const char *finish(Saver *saver) { return PRINTED_ON(STDERR_FILENO, saver_finish(saver)); }

static void expect_saved(Saver *saver, const char *want) {
    const char *error = finish(saver);
    EXPECT(!*error && !saver->failed, "%s", error);
    EXPECT_STEPS(saver->dir->path, want);
}

/* ---- Tests */

TEST(what_is_saved_is_the_state_at_the_call) {
    Saver saver = open_saver(IN_SCRATCH("new/beside"), trainer, 0);
    EXPECT(saver.saved == -1, "nothing saved");
    for (uint32_t step = 1; step <= 5; step++) {
        fill_all(step);
        start(&saver, step);
        EXPECT(saver.saved == step, "saved step %lld", (long long)saver.saved);
        EXPECT(step == 1 || file_exists(IN_SCRATCH("new/beside/step-%08d/state.json", step - 1)), "the one before is "
               "complete by then");
        fill_all(99);                  /* training continues at once, and changes everything */
    }
    saver_finish(&saver);
    EXPECT(!saver.failed && !*saver.message && saver.seconds > 0, "%s", saver.message);
    for (uint32_t step = 1; step <= 5; step++) {
        fill_all(step);
        const TrainState state = expect_checkpoint(IN_SCRATCH("new/beside/step-%08d", step), trainer, "the state");
        EXPECT(state.step == step, "step %u", step);
    }
    close_saver(&saver);
    EXPECT_STEPS(IN_SCRATCH("new/beside"), "1 2 3 4 5");
    size_t planned = saver_host_bytes(&trainer->model.config), copied = 3 * trainer->model.master.table.bytes;
    EXPECT(planned >= copied && planned < copied + (3 << 21), "%zu bytes planned, %zu copied", planned, copied);
}

static int open_files(void) {
    int count = 0;
    for (int fd = 0; fd < 256; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* A limit of file sizes, or a number that is none in a parameter or a moment. */
TEST(an_error_then_a_success) {
    const Params *params = &trainer->model.params;
    const int64_t ln1b = (float *)params->block[0].ln1b.data - (float *)params->table.memory;
    float *qkvw = params->block[1].qkvw.data, *wte = params->wte.data, *v = (float *)trainer->optimizer.v.data + ln1b;
    const struct { rlim_t limit; float *place, bad; const char *part; } cases[] = {
        { 0,             wte,  0,         "config.json: cannot write: File too large" },
        { 100,           wte,  0,         "config.json: cannot write: File too large" },
        { 1000,          wte,  0,         "model.safetensors: cannot write: File too large" },
        { 8000,          wte,  0,         "model.safetensors: cannot write: File too large" },
        { 45000,         wte,  0,         "optimizer.safetensors: cannot write: File too large" },
        { RLIM_INFINITY, qkvw, -INFINITY, "model.safetensors: transformer.h.1.attn.c_attn.weight holds a NaN or an "
                                          "infinity (number 3): not saved" },
        { RLIM_INFINITY, wte,  NAN,       "model.safetensors: transformer.wte.weight holds a NaN" },
        { RLIM_INFINITY, v,    INFINITY,  "optimizer.safetensors: exp_avg_sq.transformer.h.0.ln_1.bias holds a NaN" },
    };
    char *out = IN_SCRATCH("errors");
    Saver saver = open_saver(out, trainer, 0);
    start(&saver, 1);
    saver_finish(&saver);
    const int files = open_files();
    for (int i = 0; i < COUNT(cases); i++) {
        const int step = i == 1 ? 3 : 2;
        float kept;
        device_download(&kept, cases[i].place + 3, sizeof kept);
        if (cases[i].bad != 0) device_upload(cases[i].place + 3, &cases[i].bad, sizeof kept);
        limit_file_size(cases[i].limit);
        start(&saver, 2);
        if (step == 3) start(&saver, 3);        /* which reports the error of the one before */
        device_upload(cases[i].place + 3, &kept, sizeof kept);
        while (saver.running) saver_poll(&saver);
        limit_file_size(RLIM_INFINITY);
        EXPECT(saver.failed && !strncmp(saver.message, STRING("step %d is not saved: ", step), 21) &&
               strstr(saver.message, cases[i].part), "case %d: %s", i, saver.message);
        EXPECT(!*finish(&saver), "reported once");
        EXPECT_STEPS(out, "1");
        EXPECT(open_files() == files, "%d files were open, now %d", files, open_files());
    }
    expect_checkpoint(IN_SCRATCH("errors/step-00000001"), trainer, "the earlier checkpoint");
    start(&saver, 2);
    expect_saved(&saver, "1 2");
    EXPECT(open_files() == files, "%d files were open, now %d", files, open_files());
    limit_file_size(100);
    start(&saver, 9);
    finish(&saver);
    limit_file_size(RLIM_INFINITY);
    EXPECT_FAILS(STRING("correct the cause; --resume %s then continues from an earlier one", out), saver_close(&saver));
    close_saver(&saver);
}

/* ---- The best */

/* A save after a validation; loss 0: without one. */
static void start_validated(Saver *saver, int64_t step, TrainState *state, double loss) {
    BestLoss *best = saver->best;
    if (loss > 0) best_loss_add(best, step, loss);
    if (best->step == step) best->is_extra = step % 10 != 0;
    *state = state_of(step);
    saver_save(saver, state);
}

TEST(the_best_is_linked_and_kept) {
    /* 3 and 5 are replaced, 10 is not an extra one but goes with --keep 1; step 16 would be the best, but its save
       fails, and 18 is compared with 15 */
    static const struct { int step; double loss; const char *want; } cases[] = {
        { 2, 0, "2" },                { 3, 3, "best=3 3" },         { 5, 2.5, "best=5 5" },
        { 7, 0, "best=5 5 7" },       { 10, 2, "best=10 10" },      { 12, 2.5, "best=10 10 12" },
        { 13, NAN, "best=10 10 13" }, { 14, 2, "best=10 10 14" },   { 15, 1.5, "best=15 15" },
        { 16, 1, "best=15 15" },      { 17, 0, "best=15 15 17" },   { 18, 1.2, "best=18 18" },
    };
    char *out = IN_SCRATCH("best");
    TrainState state = {0};
    Saver saver = open_saver(out, trainer, 1);
    for (int i = 0; i < COUNT(cases); i++) {
        const int step = cases[i].step;
        if (step == 16) limit_file_size(100);
        start_validated(&saver, step, &state, cases[i].loss);
        const int64_t best = saver.best->step;
        saver_finish(&saver);
        limit_file_size(RLIM_INFINITY);
        EXPECT(saver.best->step == (step == 16 ? 15 : best), "the best is %d", (int)saver.best->step);
        EXPECT(saver.failed == (step == 16), "step %d: %s", step, saver.message);
        EXPECT_STEPS(out, cases[i].want);
    }
    EXPECT(file_exists(IN_SCRATCH("best/best/model.safetensors")), "the link can be followed");
    unlink(IN_SCRATCH("best/best"));
    start_validated(&saver, 20, &state, 5);
    expect_saved(&saver, "best=18 18 20");
    limit_file_size(100);
    start_validated(&saver, 21, &state, 1);
    saver_finish(&saver);
    limit_file_size(RLIM_INFINITY);
    EXPECT(saver.best->step == 18 && !saver.best->since, "step %d again, %d validations since: the other ranks count "
           "from 21", (int)saver.best->step, (int)saver.best->since);
    start(&saver, 22);                       /* before the next validation */
    expect_saved(&saver, "best=18 18 22");
    EXPECT(checkpoint_load_state(IN_SCRATCH("best/step-00000022")).best.loss == 1.2, "the state has it, too");
    close_saver(&saver);

    /* keep 0: only what was saved for nothing else is removed, but for the files of a user */
    saver = open_saver(IN_SCRATCH("best-all"), trainer, 0);
    for (int step = 1; step <= 10; step++) {
        start_validated(&saver, step, &state, 11 - step);
        saver_finish(&saver);
        if (step == 3) put_text(IN_SCRATCH("best-all/step-00000003/notes.txt"), "mine");
    }
    expect_saved(&saver, "best=10 step-00000003.partial 10");
    EXPECT(file_exists(IN_SCRATCH("best-all/step-00000003.partial/notes.txt")), "the user's file");
    close_saver(&saver);

    /* keep 2: the extra best of step 15 is removed for that of step 20, and does not take the place of step 10; a
       resume validates step 25, whose save a stop had asked for, before it opens the saver */
    saver = open_saver(IN_SCRATCH("best-2"), trainer, 2);
    for (int i = 2; i <= 4; i++) start_validated(&saver, 5 * i, &state, 10 - i);
    expect_saved(&saver, "best=20 10 20");
    start_validated(&saver, 25, &state, 0);
    close_saver(&saver);
    state = checkpoint_load_state(IN_SCRATCH("best-2/step-00000025"));
    best_loss_add(&state.best, 25, 1);
    saver = resume_saver(IN_SCRATCH("best-2"), trainer, 2, &state);
    EXPECT_STEPS(IN_SCRATCH("best-2"), "best=25 20 25");
    close_saver(&saver);
}

/* A kill between two renames; a directory in the place of the link. */
TEST(a_resume_links_the_best) {
    char *out = IN_SCRATCH("best-resumed"), *link = IN_SCRATCH("best-resumed/best");
    TrainState state = {0};
    Saver saver = open_saver(out, trainer, 0);
    start_validated(&saver, 1, &state, 3);
    saver_finish(&saver);
    EXPECT(rename(IN_SCRATCH("best-resumed/step-00000001"), IN_SCRATCH("best-resumed/kept")) == 0, "moved");
    start_validated(&saver, 2, &state, 2);
    close_saver(&saver);
    EXPECT(rename(IN_SCRATCH("best-resumed/kept"), IN_SCRATCH("best-resumed/step-00000001")) == 0 &&
           unlink(link) == 0 && symlink("step-00000001", link) == 0 &&
           symlink("step-00000002", IN_SCRATCH("best-resumed/best.new")) == 0, "as if killed before the link moved");
    state = checkpoint_load_state(IN_SCRATCH("best-resumed/step-00000002"));
    saver = resume_saver(out, trainer, 0, &state);
    EXPECT(saver.saved == 2, "saved step %lld", (long long)saver.saved);
    EXPECT_STEPS(out, "best=2 2");
    EXPECT(unlink(link) == 0, "removed");
    directory_make(link);
    for (int step = 3; step <= 5; step++) {
        start_validated(&saver, step, &state, 0);
        const char *error = finish(&saver);
        EXPECT(!saver.failed && strstr(error, "best is not a link and stays"), "step %d: %s", step, error);
    }
    EXPECT_STEPS(out, "best= 2 3 4 5");
    saver.keep = 1;
    saver.best->is_extra = 0;
    start_validated(&saver, 6, &state, 0);
    finish(&saver);
    EXPECT_STEPS(out, "best= 2 6");         /* the best, to which nothing is linked */
    EXPECT(!rmdir(link) && !symlink("step-00000002", link), "a link again");
    *saver.best = (BestLoss){0};
    start_validated(&saver, 7, &(TrainState){0}, 0);
    expect_saved(&saver, "best=2 2 7");     /* the linked one, which does not count as best: of other data */
    close_saver(&saver);
}

TEST(the_lowest_val_loss_is_the_best) {
    static const struct { double loss; int best, since; } cases[] = {
        { NAN, 0, 1 }, { INFINITY, 0, 2 }, { 5, 3, 0 }, { 6, 3, 1 }, { 5, 3, 2 }, { 4, 6, 0 }, { NAN, 6, 1 },
        { 4.1, 6, 2 }, { 3, 9, 0 },
    };
    BestLoss h = {0};
    for (int i = 0; i < COUNT(cases); i++) {
        best_loss_add(&h, i + 1, cases[i].loss);
        EXPECT(h.step == cases[i].best && h.since == cases[i].since, "validation %d: best %lld, %lld since",
               i + 1, (long long)h.step, (long long)h.since);
    }
}

TEST(other_files_stay) {
    char *out = IN_SCRATCH("others"), *elsewhere = IN_SCRATCH("elsewhere");
    for (int step = 1; step <= 8; step++) save_step(out, trainer, step);
    put_text(IN_SCRATCH("others/step-00000002/notes.txt"), "mine");
    directory_make(IN_SCRATCH("others/step-00000003/eval"));
    directory_make(IN_SCRATCH("others/step-00000001.partial/eval"));   /* left by a removal; step 1 was saved again */
    unlink(IN_SCRATCH("others/step-00000004/optimizer.safetensors"));         /* a model to load stays, too */
    EXPECT(rename(IN_SCRATCH("others/step-00000005"), elsewhere) == 0 &&
           symlink(elsewhere, IN_SCRATCH("others/step-00000005")) == 0, "a link");
    directory_make(IN_SCRATCH("others/step-7"));
    put_text(IN_SCRATCH("others/step-00000010"), "a file");
    save_step(out, trainer, 12);                                           /* a later one neither goes nor counts */
    Saver saver = open_saver(out, trainer, 2);
    start(&saver, 9);
    expect_saved(&saver, "step-00000001.partial step-00000002.partial step-00000003.partial step-7 1 4 8 9 10 12");
    close_saver(&saver);
    EXPECT(file_exists(IN_SCRATCH("others/step-00000002.partial/notes.txt")) &&
           file_is_dir(IN_SCRATCH("others/step-00000003.partial/eval")), "the files of a user");
    EXPECT(file_exists(IN_SCRATCH("elsewhere/state.json")), "the target of a link stays");
}

TEST(what_a_kill_left_is_removed) {
    char *out = IN_SCRATCH("swept");
    for (int step = 1; step <= 2; step++) save_step(out, trainer, step);
    EXPECT(rename(IN_SCRATCH("swept/step-00000001"), IN_SCRATCH("swept/step-00000001.partial")) == 0, "renamed");
    directory_make(IN_SCRATCH("swept/step-5.partial"));
    directory_make(IN_SCRATCH("swept/mine.partial"));
    Saver saver = open_saver(out, trainer, 0);
    EXPECT_STEPS(out, "mine.partial step-5.partial 2");
    directory_make(IN_SCRATCH("swept/step-00000005.partial/results"));      /* a user's: not removed */
    start(&saver, 7);
    EXPECT(!*finish(&saver), "no error");
    directory_make(IN_SCRATCH("swept/step-00000006.partial/config.json"));      /* cannot be removed */
    start(&saver, 8);
    const char *error = finish(&saver);
    EXPECT(!saver.failed && strstr(error, "step 8 is saved, but ") && strstr(error, "cannot remove"), "%s", error);
    EXPECT_STEPS(out, "mine.partial step-00000005.partial step-00000006.partial step-5.partial 2 7 8");
    close_saver(&saver);
}

/* An incomplete checkpoint is replaced, unless a user has a file in it; a complete one is another process'. */
TEST(a_step_is_saved_once) {
    char *out = IN_SCRATCH("once");
    for (int i = 1; i <= 3; i++) save_step(out, trainer, i);
    Saver saver = open_saver(out, trainer, 0);
    for (int i = 1; i <= 2; i++) unlink(IN_SCRATCH("once/step-%08d/state.json", i));
    put_text(IN_SCRATCH("once/step-00000002/notes.txt"), "mine");
    for (int i = 1; i <= 3; i++) {
        start(&saver, i);
        const char *want = i == 1 ? "" : i == 2 ? "step-00000002: Directory not empty" : "step-00000003 exists: want";
        EXPECT(strstr(finish(&saver), want) && saver.failed == (i > 1), "step %d: %s", i, saver.message);
    }
    EXPECT_STEPS(out, "1 2 3");
    EXPECT(file_exists(IN_SCRATCH("once/step-00000001/state.json")) &&
           file_exists(IN_SCRATCH("once/step-00000002/notes.txt")), "one is replaced, the user's file stays");
    start(&saver, 4);
    close_saver(&saver);
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

TEST(fails_catches_and_gives_back) {
    char message[FAIL_LENGTH] = "";
    int depth = 2;
    EXPECT(fails(fail_deep, &depth, message) && !strcmp(message, "at depth 2"), "%s", message);
    EXPECT(!fails(succeed, NULL, message), "no failure");
    depth = 0;
    EXPECT_FAILS("at depth 0", fail_deep(&depth));      /* behind it, a failure ends the process again */
}

TEST(a_directory_with_a_run_is_not_new) {
    save_step(IN_SCRATCH("taken"), trainer, 9);
    EXPECT_FAILS("step-00000009 already exists: want another --out",
                 run_dir_open(&(RunDir){ .path = IN_SCRATCH("taken") }));
    EXPECT_STEPS(IN_SCRATCH("taken"), "9");
}

int main(void) {
    scratch_open();
    test_device_open((DeviceOptions){ .threads = 1 });
    trainer = new_tiny(1);
    fill_all(1);
    return test_all();
}
