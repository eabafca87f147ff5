#include "resume.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../kernels/check.h"
#include "run_dir.h"

static void verify(void *checkpoint) { checkpoint_verify(checkpoint, 1); }

char *resume_find(const char *out, const char *data) {
    char *checkpoint = run_dir_latest(out, NULL), *newest = run_dir_newest(out), why[FAIL_LENGTH];
    const char *missing = newest ? checkpoint_missing_file(newest, 1) : NULL;
    REQUIRE(newest || data, "--resume: no checkpoint in %s: want one, or --data FILE to start a run", out);
    if (!newest) printf("--resume: no checkpoint in %s: the run starts from step 0\n", out);
    REQUIRE(checkpoint || !newest, "--resume: %s has no %s, and %s has no complete checkpoint: restore that file, or "
            "start a new run from weights, --init CHECKPOINT --out ANOTHER", newest, missing, out);
    if (missing) printf("--resume: %s has no %s and is ignored\n", newest, missing);
    free(newest);
    if (!checkpoint || !fails(verify, checkpoint, why)) return checkpoint;
    char *earlier = run_dir_latest(out, checkpoint);
    if (earlier) fail("%s; move %s out of %s: --resume then continues from %s", why, checkpoint, out, earlier);
    fail("%s; restore it from a copy: %s has no earlier checkpoint, and without one --resume starts over from step 0",
         why, out);
}

void resume_adopt_options(Option *table, const char *checkpoint) {
    static Json *state;                     /* not freed: text options point into it */
    state = checkpoint_open_state(checkpoint);
    const Json *settings = json_member(state, "settings", JSON_OBJECT);
    for (Option *o = table; o->name || o->help; o++) {
        if (!o->name || o->role != ROLE_KEPT || !json_find(settings, o->name)) continue;
        const char *had = json_string(settings, o->name);
        if (*had && !o->given) {
            option_set(o, had);
            o->given = 1;
        }
    }
}

void resume_require_same_data(const char *checkpoint, const Corpus *corpus, const char *data, const char *val_data) {
    Json *state = checkpoint_open_state(checkpoint);
    for (int val = 0; val < 2; val++) {
        const char *had = json_string(state, val ? "val" : "train"), *path = val && val_data ? val_data : data;
        DataId now = data_id(val ? corpus->val : corpus->train);
        REQUIRE(!strcmp(had, now.text), "--resume: --%s %s is other data (%s) than %s was made with (%s); to train on "
                "other data: --init %s --out ANOTHER", val ? "val-data" : "data", path, now.text, checkpoint, had,
                checkpoint);
    }
    json_free(state);
}

TrainState resume_load(const char *checkpoint, GPT *model, Optimizer *optimizer, int64_t sequences_per_update) {
    checkpoint_load_model(checkpoint, model);
    checkpoint_load_optimizer(checkpoint, model, optimizer);
    TrainState s = checkpoint_load_state(checkpoint);
    uint64_t steps = s.sequences_seen / (uint64_t)sequences_per_update;
    REQUIRE((uint64_t)s.step == steps && s.sequences_seen == steps * (uint64_t)sequences_per_update
            && (uint64_t)s.tokens <= s.sequences_seen * (uint64_t)model->config.T && s.optimizer_step <= s.step
            && s.val_step <= s.step, "%s/state.json: step, sequences_seen, tokens, optimizer_step and val_step "
            "contradict each other", checkpoint);
    return s;
}
