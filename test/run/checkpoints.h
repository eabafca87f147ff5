/* checkpoints.h - Saves as train_gpt does, with a Saver, for tests of checkpoints. */
#ifndef TEST_CHECKPOINTS_H
#define TEST_CHECKPOINTS_H
#include "../model/models.h"
#include "../scratch.h"
#include "../../llmc/checkpoint/saver.h"

/* A save that fails leaves its paths behind, some 200 bytes (fails, kernels/check.h). */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:vasprintf\nleak:open_tokenizer"; }

static const char  *test_model = "d4", *test_data = "a \"b\"\n\\c\xc3\xa9", *test_none;
static const Option test_options[] = {
    { .help = "a group" },
    { .name = "model", .type = OPTION_TEXT, .value = &test_model, .fallback = "d4", .role = ROLE_KEPT },
    { .name = "data",  .type = OPTION_TEXT, .value = &test_data,  .role = ROLE_KEPT },
    { .name = "val",   .type = OPTION_TEXT, .value = &test_none,  .role = ROLE_KEPT },
    { .name = "out",   .type = OPTION_TEXT, .value = &test_data,  .role = ROLE_COMMAND },
    {0}
};
static TokenizerFiles saved_tokenizer_files;
static Report test_report;

/* Locks out and opens a saver, one at a time. The corpus is 200 bytes, the last 20 of them for validation. */
static inline Saver open_saver(const char *out, Trainer *t, int64_t keep, int64_t keep_every) {
    static RunDir dir;
    static char bytes[201], *path;
    memset(bytes, 'x', 200);
    if (!path) put_text(path = IN_SCRATCH("corpus.txt"), bytes);
    Corpus corpus = corpus_open(path, NULL, 0.1, &(TextFormat){ 0 });
    dir = (RunDir){ .path = out };
    directory_make(out);
    run_dir_lock(&dir);
    run_dir_open(&dir);
    Saver saver = { .dir = &dir, .model = &t->model, .optimizer = &t->optimizer, .report = &test_report, .keep = keep,
                    .keep_every = keep_every,
                    .snapshot = { .options = test_options, .tokenizer = TOKENIZER_BYTES,
                                  .tokenizer_files = &saved_tokenizer_files, .train = data_id(corpus.train),
                                  .val = data_id(corpus.val) } };
    saver_open(&saver);
    tokens_close(corpus.val);
    tokens_close(corpus.train);
    return saver;
}

static inline void close_saver(Saver *saver) {
    const int lock = saver->dir->lock;
    saver->failed = 0;                     /* else the test would end here */
    saver_close(saver);
    close(lock);
}

static inline TrainState state_of(int64_t step) {
    return (TrainState){ .step = step, .sequences_seen = (uint64_t)step * 3, .tokens = step * 21, .val_loss = 0.5,
                         .val_step = step };
}

/* Writes OUT/step-N and waits; returns the error, "" = none. */
static inline const char *save_state(const char *out, Trainer *t, const TrainState *state) {
    static char message[FAIL_LENGTH];
    Saver saver = open_saver(out, t, 0, 0);
    saver_save(&saver, state);
    saver_finish(&saver);
    EXPECT(saver.failed == (strstr(saver.message, " is not saved: ") != NULL), "failed %d: %s", saver.failed,
           saver.message);
    memcpy(message, saver.message, sizeof message);
    close_saver(&saver);
    return message;
}

static inline const char *save_step(const char *out, Trainer *t, int64_t step) {
    TrainState state = state_of(step);
    return save_state(out, t, &state);
}

#define SAVE_STEP(out, t, step) do { const char *error = save_step(out, t, step); \
    EXPECT(!*error, "%s", error); } while (0)
#define SAVE_FAILS(part, out, t, step) do { const char *error = save_step(out, t, step); \
    EXPECT(strstr(error, part), "want \"%s\", got: %s", part, error); } while (0)

#endif
