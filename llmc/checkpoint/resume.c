#include "resume.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../kernels/check.h"
#include "../files.h"
#include "run_dir.h"

/* Calls f. If it fails, the message also says which checkpoint is left without this one. */
static void attempt(void (*f)(void *), void *argument, const char *checkpoint) {
    char why[FAIL_LENGTH];
    if (!fails(f, argument, why)) return;
    char *out = file_parent(checkpoint), *earlier = run_dir_earlier(checkpoint);
    if (earlier) fail("%s; if %s is damaged, move it out of %s: --resume then continues from %s", why, checkpoint, out,
                      earlier);
    fail("%s; if %s is damaged, restore it from a copy: %s has no earlier checkpoint, and without one --resume starts "
         "over from step 0", why, checkpoint, out);
}

static void check(void *checkpoint) { checkpoint_check(checkpoint); }

char *resume_find(const char *out, const char *data) {
    char *checkpoint = run_dir_latest(out), *newest = run_dir_newest(out);
    if (checkpoint) {
        attempt(check, checkpoint, checkpoint);
        if (strcmp(newest, checkpoint))
            printf("--resume: %s has no %s and is ignored\n", newest, checkpoint_missing_file(newest, 1));
        free(newest);
        return checkpoint;
    }
    REQUIRE(!newest, "--resume: %s has no %s, and %s has no complete checkpoint: restore that file, or start a new run "
            "from weights, --init CHECKPOINT --out ANOTHER", newest, checkpoint_missing_file(newest, 1), out);
    REQUIRE(data, "--resume: no checkpoint in %s: want one, or --data FILE to start a run", out);
    printf("--resume: no checkpoint in %s: the run starts from step 0\n", out);
    return NULL;
}

/* ---- Options */

typedef struct { const Option *option; const char *value; } Assignment;
static void assign(void *assignment) {
    const Assignment *a = assignment;
    option_set(a->option, a->value);
}

void resume_adopt_options(Option *table, const char *checkpoint) {
    static Json *state;                     /* not freed: text options point into it */
    state = checkpoint_open_state(checkpoint);
    const Json *settings = json_member(state, "settings");
    for (Option *o = table; o->name || o->help; o++) {
        if (!o->name || o->resume == FREE_ON_RESUME || !json_find(settings, o->name)) continue;
        const char *had = json_string(settings, o->name);
        char now[256];
        if (*had && !o->given) {
            attempt(assign, &(Assignment){ o, had }, checkpoint);
            o->given = 1;
        }
        REQUIRE(o->resume == KEPT_ON_RESUME || !strcmp(had, option_text(o, now)), "--resume: --%s is %s, the "
                "checkpoint %s was made with %s; a resume must not change it", o->name, option_text(o, now), checkpoint,
                *had ? had : "none");
    }
}

/* ---- Data */

static void require_same(const char *checkpoint, const Json *state, const char *stream, const Tokens *tokens,
                         const char *option, const char *path) {
    DataId had = checkpoint_data_id(state, stream), now = data_id(tokens);
    REQUIRE(had.count == now.count && had.fingerprint == now.fingerprint, "--resume: --%s %s is other data (%lld "
            "tokens, %016llx) than %s was made with (%lld tokens, %016llx); to train on other data: --init %s --out "
            "ANOTHER", option, path, (long long)now.count, (unsigned long long)now.fingerprint, checkpoint,
            (long long)had.count, (unsigned long long)had.fingerprint, checkpoint);
}

void resume_require_same_data(const char *checkpoint, const Corpus *corpus, const char *data, const char *val_data) {
    Json *state = checkpoint_open_state(checkpoint);
    require_same(checkpoint, state, "train", corpus->train, "data", data);
    require_same(checkpoint, state, "val", corpus->val, "val-data", val_data ? val_data : data);
    json_free(state);
}

/* ---- Loading */

typedef struct {
    const char *checkpoint;
    GPT        *model;
    Optimizer  *optimizer;
    uint64_t    sequences;          /* per update */
    TrainState  state;
} Load;

static void load(void *argument) {
    Load *l = argument;
    checkpoint_load_model(l->checkpoint, l->model);
    checkpoint_load_optimizer(l->checkpoint, l->model, l->optimizer);
    TrainState s = l->state = checkpoint_load_state(l->checkpoint);
    REQUIRE((uint64_t)s.step == s.sequences_seen / l->sequences && s.sequences_seen % l->sequences == 0
            && (uint64_t)s.tokens <= s.sequences_seen * (uint64_t)l->model->config.T && l->optimizer->step <= s.step
            && s.val_step <= s.step,
            "%s/state.json: step %lld, sequences_seen %llu, tokens %lld, optimizer_step %lld and val_step %lld "
            "contradict each other", l->checkpoint, (long long)s.step, (unsigned long long)s.sequences_seen,
            (long long)s.tokens, (long long)l->optimizer->step, (long long)s.val_step);
}

TrainState resume_load(const char *checkpoint, GPT *model, Optimizer *optimizer, int64_t sequences_per_update) {
    Load l = { checkpoint, model, optimizer, (uint64_t)sequences_per_update, {0} };
    attempt(load, &l, checkpoint);
    return l.state;
}
