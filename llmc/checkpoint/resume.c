#include "resume.h"
#include "../ranks/ranks.h"
#include "../train/schedule.h"

static void verify(void *checkpoint) { checkpoint_verify(checkpoint, 1); }

static char *find_checkpoint(const char *out, const char *data) {
    char *checkpoint = run_dir_find(out, TO_RESUME, NULL), *newest = run_dir_find(out, ANY_FILES, NULL);
    char why[FAIL_LENGTH];
    const char *missing = newest ? checkpoint_missing_file(newest, 1) : NULL;
    REQUIRE(newest || (data && !checkpoint_has_model(out)), "--resume %s: want the directory of a run, with "
            "checkpoints (or with --data FILE a new one, in which the run starts)", out);
    REQUIRE(checkpoint || !newest, "--resume: %s has no %s, and %s has no complete checkpoint: restore that file, or "
            "start a new run from weights, --init CHECKPOINT --out ANOTHER", newest, missing, out);
    if (missing) print_line(stdout, "--resume: %s has no %s and is ignored", newest, missing);
    free(newest);
    if (!checkpoint || !fails(verify, checkpoint, why)) return checkpoint;
    char *earlier = run_dir_find(out, TO_RESUME, checkpoint);
    if (earlier) fail("%s; move %s out of %s: --resume then continues from %s", why, checkpoint, out, earlier);
    fail("%s; restore it from a copy: %s has no earlier checkpoint, and without one --resume starts over from step 0",
         why, out);
}

typedef struct { Option *option; const char *text; } Saved;
static void set_saved(void *saved) { option_set(((Saved *)saved)->option, ((Saved *)saved)->text); }

char *resume_adopt_options(Option *table, const Json *json, const char *only) {
    const Json *settings = json_member(json, "settings", JSON_OBJECT);
    char *changes = NULL, text[256], why[FAIL_LENGTH];
    for (const Json *had = only ? NULL : settings->child; had; had = had->next) {
        const Option *gone = had->type == JSON_STRING ? options_find_gone(table, had->key, had->text) : NULL;
        REQUIRE(!gone, "--resume: %s sets --%s %.100s, which this version does not have: %s; want the version that "
                "made it, or a new run from its weights, by --init", had->where, had->key, had->text, gone->help);
    }
    for (Option *o = table; o->name || o->help; o++) {
        if (!o->name || o->role != ROLE_KEPT || !json_find(settings, o->name)) continue;
        if (only && choice_index(only, o->name) < 0) continue;
        const char *had = json_string(settings, o->name), *now = option_text(o, text);
        if (o->given && strcmp(had, now)) {
            REQUIRE(choice_index("init|perturb|model", o->name) < 0, "--resume --%s %s: the run began with --%s %s; "
                    "want --resume alone, or a new run", o->name, now, o->name, *had ? had : "none");
            char *before = changes;
            changes = format_string("%s%s--%s %s -> %s", before ? before : "", before ? ", " : "", o->name,
                                    shell_word(*had ? had : "none"), shell_word(*now ? now : "none"));
            free(before);
        } else if (!o->given && *had) {
            if (fails(set_saved, &(Saved){ o, had }, why)) fail("%s: %s", settings->where, why);
            o->given = 1;
        }
    }
    return changes;
}

/* Two texts, NULL = none. */
static int are_same(const char *a, const char *b) { return !strcmp(a ? a : "", b ? b : ""); }

Resume resume_find(const Settings *s, Option *table, RunDir *dir) {
    REQUIRE(s->out || !s->data, "--resume %s: no such directory: want that of the run, such as runs/book", s->data);
    REQUIRE(s->out, "--resume: want the directory of the run, such as --resume runs/book");
    *dir = run_dir_choose(s->out, s->data, 1, s->dry_run || comm_rank);
    REQUIRE(dir->path, "--resume --out none: want the directory of a run");
    Resume r = { .checkpoint = find_checkpoint(dir->path, s->data) };
    if (!r.checkpoint) return r;
    r.json = checkpoint_open_state(r.checkpoint);
    r.state = checkpoint_load_state(r.checkpoint);
    Option had[SETTINGS_ROWS];
    settings_parse(&r.settings, had, 1, (char *[]){ "" });
    resume_adopt_options(had, r.json, NULL);
    r.changes = resume_adopt_options(table, r.json, NULL);
    REQUIRE(r.state.step <= s->steps, "--steps %lld: %s has more: want --steps N above that, to train longer",
            (long long)s->steps, r.checkpoint);
    const double rate = schedule_learning_rate(s, r.state.step);
    if (!r.changes || r.state.step == s->steps || rate == schedule_learning_rate(&r.settings, r.state.step)) return r;
    char *changes = r.changes;
    r.changes = format_string("%s; the learning rate goes from %.1e to %.1e", changes,
                              schedule_learning_rate(&r.settings, r.state.step - 1), rate);
    free(changes);
    return r;
}

void resume_check_data(Resume *r, const Corpus *corpus, const Settings *s) {
    const Settings *had = &r->settings;
    const char *train = json_string(r->json, "train"), *val = json_string(r->json, "val");
    const int are_bytes = corpus->train->tokenizer == TOKENIZER_BYTES, is_renamed = !are_same(had->data, s->data);
    const int is_train = data_is(corpus->train, train), is_val = data_is(corpus->val, val);
    REQUIRE(are_bytes == !strcmp(json_string(r->json, "tokenizer"), "bytes"), "--data: this is %s, the model %s was "
            "trained on %s", are_bytes ? "a text" : "token shards", r->checkpoint, are_bytes ? "token ids" : "bytes");
    const int keeps_val = are_same(had->val_data, s->val_data) &&
                          (had->val_data || had->val_fraction == s->val_fraction);
    if (!is_renamed && (keeps_val || had->val_data)) {      /* with --val-data all of --data is trained on */
        const int blames_val = is_train && had->val_data;
        REQUIRE(is_train && (is_val || !keeps_val), "--%s %s has changed since %s was made: restore it, or give other "
                "data by another name", blames_val ? "val-data" : "data", blames_val ? had->val_data : had->data,
                r->checkpoint);
        if (strstr(train, "fingerprint"))
            print_line(stdout, "%s: of an earlier version; of the data its length is compared, not its content",
                       r->checkpoint);
    }
    const int64_t step = r->state.best.step;
    const Path out = file_parent(r->checkpoint), best = run_dir_checkpoint(&(RunDir){ .path = out.text }, step);
    const int is_other = !is_val || had->val_tokens != s->val_tokens;
    if (!step || (!is_other && !checkpoint_missing_file(best.text, 1))) return;
    r->state.best = (BestLoss){0};
    print_line(stdout, "the best so far, step %lld, does not count: %s", (long long)step,
               is_other ? "it was validated on other data" : "its checkpoint is gone");
}

void resume_load(const Resume *r, GPT *model, Optimizer *optimizer) {
    const TrainState *s = &r->state;
    const int64_t T = model->config.T, step = strtoll(strrchr(r->checkpoint, '-') + 1, NULL, 10);
    REQUIRE(s->step == step, "%s/state.json: step is %lld, the directory's name has another one", r->checkpoint,
            (long long)s->step);
    REQUIRE((uint64_t)s->step <= s->sequences_seen && s->optimizer_step <= s->step && s->val_step <= s->step &&
            (s->tokens + T - 1) / T <= (int64_t)s->sequences_seen && s->best.step <= s->step,
            "%s/state.json: step, sequences_seen, tokens, optimizer_step, val_step and best contradict each other",
            r->checkpoint);
    checkpoint_load_model(r->checkpoint, model);
    optimizer_scatter(optimizer, STATE_PARAM);
    checkpoint_load_optimizer(r->checkpoint, s, choice_index(OPTIMIZER_NAMES, r->settings.optimizer), optimizer);
}
