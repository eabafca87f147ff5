/* checkpoints.h - Saves as train_gpt does, with a Saver, for tests of checkpoints. */
#pragma once
#include "../model/models.h"
#include "../scratch.h"
#include "../../llmc/checkpoint/saver.h"

/* A save that fails leaves its paths behind, some 200 bytes (fails, kernels/check.h). */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:vasprintf\nleak:open_found"; }

static const char  *test_model = "d4", *test_data = "a \"b\"\n\\c\xc3\xa9", *test_none, *test_optimizer = "adamw";
static const Option test_options[] = {
    { .help = "a group" },
    { .name = "model", .type = OPTION_TEXT, .value = &test_model, .fallback = "d4", .role = ROLE_KEPT },
    { .name = "data",  .type = OPTION_TEXT, .value = &test_data,  .role = ROLE_KEPT },
    { .name = "val",   .type = OPTION_TEXT, .value = &test_none,  .role = ROLE_KEPT },
    { .name = "optimizer", .type = OPTION_TEXT, .value = &test_optimizer, .role = ROLE_KEPT },
    { .name = "out",   .type = OPTION_TEXT, .value = &test_data,  .role = ROLE_COMMAND },
    {0}
};
static Tokenizer *saved_tokenizer = TOKENIZER_BYTES;
static Report test_report;

/* Locks out and opens a saver, one at a time. The corpus is 200 bytes, the last 20 of them for validation. */
static inline Saver resume_saver(const char *out, Trainer *t, int64_t keep, const TrainState *saved) {
    static RunDir dir;
    static BestLoss best;
    const char *path = IN_SCRATCH("corpus.txt");
    if (!file_exists(path)) put_text(path, STRING("%0200d", 0));
    const Settings s = { .data = path, .val_fraction = 0.1, .documents = "file", .field = "text" };
    Corpus corpus = corpus_open(&s, NULL);
    directory_make(out);
    dir = run_dir_choose(out, NULL, 1, 0);
    Saver saver = { .dir = &dir, .optimizer = &t->optimizer, .report = &test_report, .keep = keep, .best = &best,
                    .saved = saved ? saved->step : -1,
                    .snapshot = { .model = &t->model, .options = test_options, .tokenizer = saved_tokenizer,
                                  .train = data_id(corpus.train), .val = data_id(corpus.val) } };
    best = saved ? saved->best : (BestLoss){0};
    saver_open(&saver, saved ? saved : &(TrainState){0});
    tokens_close(corpus.val);
    tokens_close(corpus.train);
    return saver;
}

static inline Saver open_saver(const char *out, Trainer *t, int64_t keep) { return resume_saver(out, t, keep, NULL); }

static inline void close_saver(Saver *saver) {
    saver_finish(saver);
    device_unpin(saver->snapshot.host[0]);
    free(saver->snapshot.host[0]);
    free(saver->snapshot.choices);
    close(saver->dir->lock);
}

static inline TrainState state_of(int64_t step) {
    return (TrainState){ .step = step, .sequences_seen = (uint64_t)step * 3, .tokens = step * 21,
                         .val_step = step };
}

/* Writes OUT/step-N and waits; returns the error, "" = none. */
static inline const char *save_state(const char *out, Trainer *t, const TrainState *state) {
    static Saver saver;
    checkpoint_remove(STRING("%s/step-%08d", out, (int)state->step));       /* one that is complete is not replaced */
    saver = open_saver(out, t, 0);
    *saver.best = state->best;
    saver_save(&saver, state);
    saver_finish(&saver);
    EXPECT(saver.failed == (strstr(saver.message, " is not saved: ") != NULL), "failed %d: %s", saver.failed,
           saver.message);
    close_saver(&saver);
    return saver.message;
}

/* Returns OUT/step-N. */
static inline char *save_step(const char *out, Trainer *t, int64_t step) {
    TrainState state = state_of(step);
    const char *error = save_state(out, t, &state);
    EXPECT(!*error, "%s", error);
    return STRING("%s/step-%08d", out, (int)step);
}

/* Loads a checkpoint, which has the bits of this trainer, and returns its state. */
static inline TrainState expect_checkpoint(const char *dir, const Trainer *want, const char *what) {
    Trainer *loaded = new_tiny(99);
    uint32_t ones[20 * 16];
    memset(ones, 0xff, sizeof ones);       /* in the padding: loading has to clear it */
    device_upload((char *)loaded->model.params.wte.data + 66 * 64, ones, sizeof ones);
    checkpoint_load_model(dir, &loaded->model);
    const TrainState state = checkpoint_load_state(dir);
    checkpoint_load_optimizer(dir, &state, OPTIMIZER_ADAMW, &loaded->optimizer);
    EXPECT(same_params(&want->model.params, &loaded->model.params), "%s: gaps or padding", what);
    expect_equal_rows(&want->model.params, &loaded->model.params, what);
    expect_equal_moments(&want->optimizer, &loaded->optimizer);
    EXPECT(loaded->optimizer.step == want->optimizer.step, "%s: %lld updates", what, (long long)loaded->optimizer.step);
    return state;
}

/* ---- Copies with a flaw */

/* The file at from again at to, with every old in its header replaced, both quoted. */
static inline void rewrite(const char *from, const char *to, const char *old, const char *new) {
    FileMap map = file_map(from);
    size_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | map.bytes[i];
    char *header = STRING("%.*s", (int)length, (const char *)map.bytes + 8), *next = header;
    EXPECT(strstr(header, quoted(old)), "%s has no %s", from, old);
    for (int at; (next = strstr(next, quoted(old))); next = header + at + strlen(new)) {
        at = (int)(next - header);
        header = STRING("%.*s%s%s", at, header, new, next + strlen(old));
    }
    put_safetensors(to, header, map.bytes + 8 + length, (size_t)map.size - 8 - length);
    file_unmap(map);
}

/* Replaces the first old in a file of a directory. */
static inline void change(const char *dir, const char *file, const char *old, const char *new) {
    char *path = STRING("%s/%s", dir, file), *changed = IN_SCRATCH("changed");
    edit(path, changed, old, new);
    EXPECT(rename(changed, path) == 0, "%s", path);
}

/* For each row, quoted: the file with old replaced is refused with a part of a message; then it is as it was. */
typedef struct { const char *file, *old, *new; void (*read)(const char *dir); const char *part; } Damage;

static inline void expect_damage_refused(const char *dir, const Damage *damage, int count) {
    for (int i = 0; i < count; i++) {
        char *path = STRING("%s/%s", dir, damage[i].file), *good = IN_SCRATCH("good");
        EXPECT(rename(path, good) == 0, "%s", path);
        if (ends_with(path, ".safetensors")) rewrite(good, path, damage[i].old, damage[i].new);
        else edit(good, path, quoted(damage[i].old), quoted(damage[i].new));
        EXPECT_FAILS(quoted(damage[i].part), damage[i].read(dir));
        EXPECT(rename(good, path) == 0, "%s", path);
    }
}
