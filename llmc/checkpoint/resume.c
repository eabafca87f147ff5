#include "resume.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../kernels/check.h"
#include "../files.h"
#include "run_dir.h"

/* ---- What is saved */

/* How many tokens there are, and a hash of them. */
static char *data_text(const Tokens *tokens) {
    if (!tokens) return format_string("none");
    return format_string("%lld tokens, %016llx", (long long)tokens_count(tokens),
                     (unsigned long long)tokens_fingerprint(tokens));
}

Setting *resume_settings(const Option *table, const Corpus *corpus, Tokenizer tokenizer, const SpikeDetector *guard,
                         int64_t validated_step) {
    const Setting more[] = {
        { "train tokens",   data_text(corpus->train) },
        { "val tokens",     data_text(corpus->val) },
        { "tokenizer",      format_string("%s", tokenizer_name(tokenizer)) },
        { "guard",          spike_detector_to_text(guard) },
        { "validated step", format_string("%lld", (long long)validated_step) },
        {0}
    };
    size_t most = sizeof more / sizeof *more, count = 0;
    for (const Option *o = table; o->name || o->help; o++) most++;
    Setting *settings = calloc(most, sizeof *settings);
    REQUIRE(settings, "out of memory: %zu settings of a checkpoint", most);
    for (const Option *o = table; o->name || o->help; o++) {
        char text[256];
        if (o->name && o->resume != FREE_ON_RESUME)
            settings[count++] = (Setting){ o->name, format_string("%s", option_text(o, text)) };
    }
    memcpy(settings + count, more, sizeof more);
    return settings;
}

void resume_settings_free(Setting *settings) {
    for (Setting *s = settings; s->key; s++) free((void *)s->value);
    free(settings);
}

/* ---- A damaged checkpoint */

static const char *reading;                 /* the checkpoint, for the hook, which has no argument */
static void (*hook_before)(const char *message);

/* It is not passed over in silence, and not removed: that is for the user to say. */
static void fail_with_a_way_out(const char *message) {
    fail_hook = hook_before;
    char more[FAIL_LENGTH], *out = file_folder(reading), *earlier = steps_earlier(out, reading, more);
    fail("%s; if %s is damaged, move it%s out of %s: --resume then %s%s", message, reading, more, out,
         earlier ? "goes on from " : "begins, no earlier checkpoint is whole", earlier ? earlier : "");
}

/* NULL: done. */
static void reads(const char *checkpoint) {
    reading = checkpoint;
    if (checkpoint) hook_before = fail_hook;
    fail_hook = checkpoint ? fail_with_a_way_out : hook_before;
}

/* ---- What is taken over, and compared */

void resume_adopt_options(Option *table, const char *checkpoint) {
    for (Option *o = table; o->name || o->help; o++) {
        if (!o->name || o->resume == FREE_ON_RESUME) continue;
        char *had = checkpoint_setting(checkpoint, o->name), now[256];
        int kept = had && *had && !o->given;
        if (kept) {
            reads(checkpoint);
            option_set(o, had);
            reads(NULL);
            o->given = 1;
        }
        REQUIRE(!had || o->resume == KEPT_ON_RESUME || strcmp(had, option_text(o, now)) == 0,
                "--resume: --%s is %s, the checkpoint %s was made with %s; a resume goes on as it began", o->name,
                option_text(o, now), checkpoint, *had ? had : "none");
        if (!kept || (o->type != OPTION_TEXT && o->type != OPTION_CHOICE)) free(had);      /* those point into it */
    }
}

static void require_same_tokens(const char *checkpoint, const char *key, const Tokens *tokens, const char *option,
                                const char *path) {
    char *had = checkpoint_setting(checkpoint, key), *now = data_text(tokens);
    REQUIRE(had && !strcmp(had, now), "--resume: --%s %s is other data (%s) than the checkpoint %s was made with (%s); "
            "to train on other data: --init %s --out ANOTHER", option, path, now, checkpoint, had ? had : "unknown",
            checkpoint);
    free(now);
    free(had);
}

void resume_require_same_data(const char *checkpoint, const Corpus *corpus, const char *data, const char *val_data) {
    require_same_tokens(checkpoint, "train tokens", corpus->train, "data", data);
    require_same_tokens(checkpoint, "val tokens", corpus->val, "val-data", val_data ? val_data : data);
}

/* ---- What is found and read */

char *resume_find(const char *out, const char *data) {
    char *checkpoint = steps_latest(out), *highest = steps_highest(out);
    if (checkpoint) {
        reads(checkpoint);
        checkpoint_check(checkpoint);
        reads(NULL);
        if (strcmp(highest, checkpoint))
            printf("--resume: %s lacks %s and is passed over\n", highest, checkpoint_lacks(highest, 1));
        free(highest);
        return checkpoint;
    }
    char *model_there = steps_any(out);
    REQUIRE(!model_there, "--resume: %s holds a model, but not all of the files that a resume needs: it lacks %s; "
            "bring it back, or start from its weights: --init %s --out ANOTHER", model_there,
            checkpoint_lacks(model_there, 1), model_there);
    REQUIRE(!highest, "--resume: %s lacks %s, and there is no other checkpoint; bring it back, or move the folder out "
            "of %s: --resume then begins", highest, checkpoint_lacks(highest, 1), out);
    REQUIRE(data, "--resume: there is no checkpoint in %s: want one, or --data FILE to begin with", out);
    printf("--resume: there is no checkpoint in %s: the run begins\n", out);
    return NULL;
}

Resumed resume_load(const char *checkpoint, GPT *model, Optimizer *optimizer, int64_t sequences) {
    reads(checkpoint);
    checkpoint_load_model(checkpoint, model);
    checkpoint_load_optimizer(checkpoint, model, optimizer);
    Resumed r = { .state = checkpoint_load_state(checkpoint) };
    char *where = format_string("%s/state.json", checkpoint), *window = checkpoint_setting(checkpoint, "guard");
    char *validated = checkpoint_setting(checkpoint, "validated step");
    r.validated_step = validated ? strtoll(validated, NULL, 10) : r.state.step;
    if (window) spike_detector_from_text(&r.guard, window, where);
    const TrainState *s = &r.state;
    uint64_t update = (uint64_t)sequences;
    REQUIRE((uint64_t)s->step == s->sequences_seen / update && s->sequences_seen % update == 0
            && (uint64_t)s->tokens <= s->sequences_seen * (uint64_t)model->config.T && optimizer->step <= s->step,
            "%s: step %lld, sample %llu, tokens %lld and optimizer_step %lld do not belong together", where,
            (long long)s->step, (unsigned long long)s->sequences_seen, (long long)s->tokens, (long
            long)optimizer->step);
    checkpoint_check_sums(checkpoint);      /* last: other checks know more of what is wrong */
    free(where);
    free(window);
    free(validated);
    reads(NULL);
    return r;
}
