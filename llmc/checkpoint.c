#include "checkpoint.h"
#include "files.h"
#include "json.h"
#include "xxh64.h"
#include "../kernels/check.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- config.json */

/* What HuggingFace's GPT2Config can vary and this model does not: written, and demanded wherever a config has it. */
static const struct { const char *key, *value; } fixed[] = {
    { "model_type",                       "\"gpt2\"" },
    { "activation_function",              "\"gelu_new\"" },
    { "layer_norm_epsilon",               "1e-05" },
    { "scale_attn_weights",               "true" },
    { "scale_attn_by_inverse_layer_idx",  "false" },
    { "add_cross_attention",              "false" },
};
enum { FIXED_COUNT = sizeof fixed / sizeof *fixed };

static void config_write(const char *path, const GPTConfig *c) {
    FILE *file = file_create(path);
    fprintf(file, "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n");
    for (int i = 0; i < FIXED_COUNT; i++) fprintf(file, "  \"%s\": %s,\n", fixed[i].key, fixed[i].value);
    fprintf(file, "  \"tie_word_embeddings\": %s,\n", c->untied ? "false" : "true");
    fprintf(file, "  \"n_layer\": %d,\n  \"n_head\": %d,\n  \"n_embd\": %d,\n  \"n_positions\": %d,\n  \"n_ctx\": %d,\n"
            "  \"vocab_size\": %d,\n", c->L, c->NH, c->C, c->T, c->T, c->V);
    const char *end_of_text = c->V == 50257 ? "50256" : "null";      /* GPT-2's vocabulary, whose last token it is */
    fprintf(file, "  \"bos_token_id\": %s,\n  \"eos_token_id\": %s,\n", end_of_text, end_of_text);
    fprintf(file, "  \"initializer_range\": 0.02,\n  \"resid_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n"
            "  \"attn_pdrop\": 0.0,\n  \"torch_dtype\": \"%s\"\n}\n", c->save_dtype == BF16 ? "bfloat16" : "float32");
    file_close_durably(file, path);
}

static int json_equal(const Json *a, const Json *b) {
    if (a->type != b->type) return 0;
    if (a->type == JSON_NUMBER) return strtod(a->text, NULL) == strtod(b->text, NULL);
    return !a->text || !strcmp(a->text, b->text);
}

static int has_file(const char *folder, const char *name) {
    char *path = file_path("%s/%s", folder, name);
    int found = file_exists(path) && !file_is_folder(path);
    free(path);
    return found;
}

static const char MODEL[] = "model.safetensors", INDEX[] = "model.safetensors.index.json";
static const char OPTIMIZER[] = "optimizer.safetensors", STATE[] = "state.json";

static int has_model(const char *folder) { return has_file(folder, MODEL) || has_file(folder, INDEX); }

static char *model_path(const char *folder) {
    return file_path("%s/%s", folder, has_file(folder, INDEX) && !has_file(folder, MODEL) ? INDEX : MODEL);
}

/* A head that config.json ties and the file does not is its own: the file is what was trained. */
static int is_untied(const Json *config, const char *path, const char *weights) {
    const Json *tie = json_find(config, "tie_word_embeddings");
    int untied = tie && tie->type == JSON_FALSE;
    REQUIRE(!tie || tie->type == JSON_TRUE || untied, "%s: \"tie_word_embeddings\" is %.80s, want true or false", path,
            json_text(tie));
    Head head = weights_head(weights);
    REQUIRE(head != NO_HEAD || !untied, "%s: \"tie_word_embeddings\" is false, but there is no lm_head.weight in %s: "
            "want true, or that tensor", path, weights);
    static int told;
    if (head == OWN_HEAD && !untied && !told++)
        printf("%s: lm_head.weight differs from wte, though %s ties them: the head is trained untied\n", weights, path);
    return untied || head == OWN_HEAD;
}

static GPTConfig inferred_config(const char *weights) {
    GPTConfig config = weights_config(weights);
    REQUIRE(config.C % 64 == 0, "%s: has %d channels and no config.json beside it: want one, as the shapes do not tell "
            "the number of heads, and heads of 64 channels do not divide them", weights, config.C);
    config.NH = config.C / 64;
    gpt_check(&config);
    config.untied = weights_head(weights) == OWN_HEAD;
    static int told;
    if (!told++)
        printf("%s: no config.json beside it: layers %d, channels %d, context %d, vocabulary %d by its shapes; heads "
               "%d, of 64 channels as in GPT-2, which shapes do not tell\n", weights, config.L, config.C, config.T,
               config.V, config.NH);
    return config;
}

GPTConfig checkpoint_config(const char *checkpoint) {
    char *path = file_path("%s/config.json", checkpoint), *weights = model_path(checkpoint);
    if (!file_exists(path)) {
        GPTConfig config = inferred_config(weights);
        free(path);
        free(weights);
        return config;
    }
    Json *json = json_open(path);
    json_string(json, "model_type", path);
    for (int i = 0; i < FIXED_COUNT; i++) {
        const Json *got = json_find(json, fixed[i].key);
        Json *want = json_parse(fixed[i].value, strlen(fixed[i].value), fixed[i].key);
        REQUIRE(!got || json_equal(got, want), "%s: \"%s\" is %.80s, want %s: no other GPT-2 is supported", path,
                fixed[i].key, json_text(got), fixed[i].value);
        json_free(want);
    }
    GPTConfig config = {
        .L = (int)json_integer(json, "n_layer", 1, 1000, path),
        .NH = (int)json_integer(json, "n_head", 1, 65536, path),
        .C = (int)json_integer(json, "n_embd", 1, 65536, path),
        .T = (int)json_integer(json, "n_positions", 1, 1 << 24, path),
        .V = (int)json_integer(json, "vocab_size", 1, 1 << 24, path),
    };
    const Json *inner = json_find(json, "n_inner");
    if (inner && inner->type != JSON_NULL) json_integer(json, "n_inner", 4 * config.C, 4 * config.C, path);
    REQUIRE(config.C % config.NH == 0, "%s: \"n_embd\" is %d, want a multiple of \"n_head\", %d", path, config.C,
            config.NH);
    gpt_check(&config);
    config.untied = is_untied(json, path, weights);
    json_free(json);
    free(path);
    free(weights);
    return config;
}

/* ---- state.json */

static uint64_t sum_of(const void *bytes, size_t size) {
    XXH64 sum = xxh64_begin();
    xxh64_add(&sum, bytes, size);
    return xxh64_end(&sum);
}

static void state_write(const char *path, const TrainState *state, int64_t optimizer_step, int heads,
                        const uint64_t sums[2], const Setting *settings) {
    char *text;                 /* all that stands behind the sums, which have one of it, too */
    size_t size;
    FILE *file = file_create(path), *rest = open_memstream(&text, &size);
    REQUIRE(rest, "%s: out of memory", path);
    fprintf(rest, ",\n  \"step\": %" PRId64 ",\n  \"sample\": %" PRIu64 ",\n  \"tokens\": %" PRId64 ",\n", state->step,
            state->sample, state->tokens);
    if (isfinite(state->val_loss)) fprintf(rest, "  \"val_loss\": %.17g,\n", state->val_loss);
    else                           fprintf(rest, "  \"val_loss\": null,\n");
    fprintf(rest, "  \"optimizer_step\": %" PRId64 ",\n  \"n_head\": %d,\n", optimizer_step, heads);
    fprintf(rest, "  \"settings\": {");
    for (const Setting *s = settings; s->key; s++) {
        fputs(s == settings ? "\n    " : ",\n    ", rest);
        json_write_string(rest, s->key);
        fputs(": ", rest);
        json_write_string(rest, s->value);
    }
    fputs("\n  }\n}\n", rest);
    REQUIRE(!fclose(rest), "%s: out of memory", path);

    const char *const names[] = { MODEL, OPTIMIZER, STATE };
    const uint64_t all[] = { sums[0], sums[1], sum_of(text, size) };
    fputs("{\n  \"xxh64\": {\n", file);
    for (int i = 0; i < 3; i++)
        fprintf(file, "    \"%s\": \"%016" PRIx64 "\"%s\n", names[i], all[i], i < 2 ? "," : "");
    fputs("  }", file);
    file_write(file, text, size);
    free(text);
    file_close_durably(file, path);
}

TrainState checkpoint_load_state(const char *checkpoint) {
    char *path = file_path("%s/state.json", checkpoint);
    Json *json = json_open(path);
    const Json *val_loss = json_find(json, "val_loss");
    TrainState state = {
        .step = json_integer(json, "step", 0, INT64_MAX, path),
        .sample = (uint64_t)json_integer(json, "sample", 0, INT64_MAX, path),
        .tokens = json_integer(json, "tokens", 0, INT64_MAX, path),
        .val_loss = val_loss && val_loss->type == JSON_NULL ? NAN : json_real(json, "val_loss", path),
    };
    json_free(json);
    free(path);
    return state;
}

char *checkpoint_setting(const char *checkpoint, const char *key) {
    char *path = file_path("%s/state.json", checkpoint), *value = NULL;
    Json *json = json_open(path);
    const Json *settings = json_find(json, "settings");
    REQUIRE(settings && settings->type == JSON_OBJECT, "%s: \"settings\" is missing or no object", path);
    if (json_find(settings, key)) value = file_path("%s", json_string(settings, key, path));
    json_free(json);
    free(path);
    return value;
}

/* ---- The tokenizer's files */

static const char *const tokenizer_names[TOKENIZER_FILES] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",
};

TokenizerFiles checkpoint_load_tokenizer(const char *checkpoint) {
    TokenizerFiles files = {0};
    for (int i = 0; i < TOKENIZER_FILES; i++) {
        if (!has_file(checkpoint, tokenizer_names[i])) continue;
        char *path = file_path("%s/%s", checkpoint, tokenizer_names[i]);
        FileMap map = file_map(path);
        REQUIRE(map.size <= TOKENIZER_FILE_BYTES, "%s: %lld bytes, want a tokenizer's file of at most %d: every "
                "checkpoint would hold it; move it away", path, (long long)map.size, TOKENIZER_FILE_BYTES);
        files.file[i].size = map.size;
        files.file[i].bytes = malloc((size_t)map.size + 1);
        REQUIRE(files.file[i].bytes, "%s: out of memory: %lld bytes", path, (long long)map.size);
        memcpy(files.file[i].bytes, map.bytes, (size_t)map.size);
        file_unmap(map);
        free(path);
    }
    return files;
}

/* ---- The folder */

Snapshot checkpoint_snapshot(const GPT *model, const Optimizer *optimizer, const TrainState *state,
                             const Setting *settings) {
    return (Snapshot){
        .config = model->config,
        .parameters = { .prefix = "", .table = &model->master.table, .dtype = model->config.save_dtype },
        .moments = { { .prefix = "exp_avg.", .table = &optimizer->m.table },
                     { .prefix = "exp_avg_sq.", .table = &optimizer->v.table },
                     { .prefix = "param.", .table = &model->master.table } },
        .optimizer_step = optimizer->step, .state = *state, .settings = settings,
    };
}

/* A path that nobody has to free: a failure that is caught leaves no memory behind. */
typedef struct { char text[4096]; } Path;

static Path path_at(const char *format, ...) __attribute__((format(printf, 1, 2)));
static Path path_at(const char *format, ...) {
    Path path;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(path.text, sizeof path.text, format, arguments);
    va_end(arguments);
    REQUIRE(length >= 0 && length < (int)sizeof path.text, "%s: the name is too long", path.text);
    return path;
}

static Path step_path(const char *out, int64_t step, const char *tail) {
    return path_at("%s/step-%08" PRId64 "%s", out, step, tail);
}

static void tokenizer_write(const char *folder, const TokenizerFiles *files) {
    for (int i = 0; files && i < TOKENIZER_FILES; i++) {
        if (!files->file[i].bytes) continue;
        Path path = path_at("%s/%s", folder, tokenizer_names[i]);
        FILE *file = file_create(path.text);
        file_write(file, files->file[i].bytes, (size_t)files->file[i].size);
        file_close_durably(file, path.text);
    }
}

/* All names that a checkpoint may hold, the tokenizer's among them. */
static int is_our_file(const char *name) {
    static const char *const names[] = {
        "config.json", MODEL, OPTIMIZER, "state.json", "generation_config.json",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return 1;
    for (int i = 0; i < TOKENIZER_FILES; i++)
        if (!strcmp(name, tokenizer_names[i])) return 1;
    return 0;
}

/* What somebody else has put into a checkpoint that another has replaced, notes or results, goes into the new one,
   unless that has something of the same name. */
static void move_foreign_files(const char *old, const char *step) {
    struct stat info;
    DIR *directory = lstat(old, &info) == 0 && S_ISDIR(info.st_mode) ? opendir(old) : NULL;
    if (!directory) return;
    int error = 0, moved = 0;
    for (struct dirent *entry; !error && (errno = 0, (entry = readdir(directory))); ) {
        const char *name = entry->d_name;
        if (!strcmp(name, ".") || !strcmp(name, "..") || is_our_file(name)) continue;
        Path from = path_at("%s/%s", old, name), to = path_at("%s/%s", step, name);
        if (file_exists(to.text)) continue;
        error = rename(from.text, to.text) ? errno : 0;
        moved++;
    }
    if (!error) error = errno;
    closedir(directory);
    REQUIRE(!error, "%s: cannot move its files to %s: %s", old, step, strerror(error));
    if (moved) directory_sync(step);
}

typedef struct { const char *out, *tail; int64_t step; } Removal;

static void remove_step(void *removal) {
    const Removal *r = removal;
    Path from = step_path(r->out, r->step, r->tail), gone = step_path(r->out, r->step, *r->tail ? r->tail : ".partial");
    if (!strcmp(r->tail, ".old")) move_foreign_files(gone.text, step_path(r->out, r->step, "").text);
    if (!*r->tail) {
        directory_remove(gone.text);
        file_rename(from.text, gone.text);
    }
    directory_remove(gone.text);
}

void checkpoint_write(const char *out, const Snapshot *s) {
    Path step = step_path(out, s->state.step, ""), partial = step_path(out, s->state.step, ".partial");
    Path old = step_path(out, s->state.step, ".old");
    Removal replaced = { out, ".old", s->state.step };

    directory_make(out);
    directory_remove(partial.text);
    directory_make(partial.text);
    config_write(path_at("%s/config.json", partial.text).text, &s->config);
    uint64_t sums[2];
    weights_write(path_at("%s/%s", partial.text, MODEL).text, &s->parameters, 1, s->config.V);
    sums[0] = file_written_sum();
    weights_write(path_at("%s/%s", partial.text, OPTIMIZER).text, s->moments,
                  s->config.save_dtype == F32 ? 2 : 3, s->config.V);       /* the exact ones too */
    sums[1] = file_written_sum();
    state_write(path_at("%s/state.json", partial.text).text, &s->state, s->optimizer_step, s->config.NH, sums,
                s->settings);
    tokenizer_write(partial.text, s->tokenizer);
    directory_sync(partial.text);

    /* A folder cannot be renamed over another: between the two renames the old one still counts (see newest). */
    if (file_exists(step.text)) {
        remove_step(&replaced);
        file_rename(step.text, old.text);
    }
    file_rename(partial.text, step.text);
    char left[FAIL_LENGTH];                 /* the new one is there: what stays of the old is for checkpoint_sweep */
    if (file_exists(old.text)) fails(remove_step, &replaced, left);
}

void checkpoint_save(const char *out, const GPT *model, const Optimizer *optimizer, const TrainState *state,
                     const Setting *settings) {
    Snapshot snapshot = checkpoint_snapshot(model, optimizer, state, settings);
    checkpoint_write(out, &snapshot);
}

void checkpoint_load_model(const char *checkpoint, GPT *model) {
    char *path = model_path(checkpoint);
    params_read(path, &model->master, model->config.V);
    gpt_refresh(model);
    free(path);
}

void checkpoint_load_optimizer(const char *checkpoint, GPT *model, Optimizer *optimizer) {
    char *state_path = file_path("%s/state.json", checkpoint);
    char *path = file_path("%s/%s", checkpoint, OPTIMIZER), *weights = model_path(checkpoint);
    Json *json = json_open(state_path);
    int64_t step = json_integer(json, "optimizer_step", 0, INT64_MAX, state_path);
    Part moments[] = { { .prefix = "exp_avg.", .table = &optimizer->m.table },
                       { .prefix = "exp_avg_sq.", .table = &optimizer->v.table },
                       { .prefix = "param.", .table = &model->master.table } };
    int has_params = weights_has(path, "param.transformer.wte.weight", F32);
    REQUIRE(has_params || weights_has(weights, "transformer.wte.weight", F32), "%s: has no param.NAME, want them: the "
            "parameters in %s are rounded, and a resume is exact; --init starts from them", path, weights);
    weights_read(path, moments, has_params ? 3 : 2, checkpoint_config(checkpoint).V);
    gpt_refresh(model);
    optimizer->step = step;
    json_free(json);
    free(weights);
    free(path);
    free(state_path);
}

/* ---- Finding one */

typedef enum { TO_LOOK_AT, TO_LOAD, TO_RESUME } Need;

static const char *missing_file(const char *folder, Need need) {
    static const char *const to_resume[] = { OPTIMIZER, "state.json" };
    if (!has_file(folder, "config.json")) return "config.json";
    if (!has_model(folder)) return MODEL;
    for (int i = 0; need == TO_RESUME && i < 2; i++)
        if (!has_file(folder, to_resume[i])) return to_resume[i];
    return NULL;
}

static int is_complete(const char *folder, Need need) {
    return need == TO_LOOK_AT ? file_is_folder(folder) : !missing_file(folder, need);
}

const char *checkpoint_lacks(const char *folder) { return missing_file(folder, TO_RESUME); }

/* The number of a name like step-00000020 and tail: the name must be the one that its number would be given. -1 for any
   other. */
static int64_t step_of(const char *name, const char *tail) {
    char same[80];
    if (strncmp(name, "step-", 5) || name[5] < '0' || name[5] > '9') return -1;
    int64_t step = strtoll(name + 5, NULL, 10);
    snprintf(same, sizeof same, "step-%08" PRId64 "%s", step, tail);
    return strcmp(name, same) ? -1 : step;
}

static int from_the_highest(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* The steps whose names in OUT have this tail, highest first, to be freed. A folder that is not there has none. */
static int64_t *list_steps(const char *out, const char *tail, int *count) {
    *count = 0;
    DIR *directory = opendir(out);
    if (!directory && (errno == ENOENT || errno == ENOTDIR)) return NULL;
    REQUIRE(directory, "%s: cannot open the folder: %s", out, strerror(errno));
    int64_t *steps = NULL;
    for (struct dirent *entry; errno = 0, (entry = readdir(directory)); ) {
        int64_t step = step_of(entry->d_name, tail);
        if (step < 0) continue;
        if ((*count & (*count - 1)) == 0) {              /* full at 0, 1, 2, 4, 8, ... */
            steps = realloc(steps, (*count ? 2 * (size_t)*count : 1) * sizeof *steps);
            REQUIRE(steps, "%s: out of memory for the names of %d checkpoints", out, *count);
        }
        steps[(*count)++] = step;
    }
    int error = errno;
    closedir(directory);
    REQUIRE(!error, "%s: cannot read the folder: %s", out, strerror(error));
    if (steps) qsort(steps, (size_t)*count, sizeof *steps, from_the_highest);
    return steps;
}

typedef struct { int64_t step; int is_old; } Place;

static const char *const tails[] = { "", ".old" };
static Path place_path(const char *out, Place p) { return step_path(out, p.step, tails[p.is_old]); }

/* The highest step of OUT that is complete and stands below another, step-N.old below step-N; step -1 = none. */
static Place newest_before(const char *out, Need need, Place before) {
    Place best = { -1, 0 };
    for (int old = 0; old < 2; old++) {
        int count;
        int64_t *steps = list_steps(out, tails[old], &count);
        for (int i = 0; i < count && steps[i] > best.step; i++) {
            Place p = { steps[i], old };
            if (p.step > before.step || (p.step == before.step && p.is_old <= before.is_old)) continue;
            if (is_complete(place_path(out, p).text, need)) best = p;
        }
        free(steps);
    }
    return best;
}

static char *newest(const char *out, Need need) {
    Place best = newest_before(out, need, (Place){ INT64_MAX, -1 });
    return best.step < 0 ? NULL : file_path("%s", place_path(out, best).text);
}

char *checkpoint_latest(const char *out)  { return newest(out, TO_RESUME); }
char *checkpoint_any(const char *out)     { return newest(out, TO_LOAD); }
char *checkpoint_highest(const char *out) { return newest(out, TO_LOOK_AT); }

/* ---- One that is damaged */

/* What no shape tells; state.json of an older version does not, either. */
static void check_heads(const char *checkpoint, int heads) {
    char *state = file_path("%s/state.json", checkpoint);
    Json *json = json_open(state);
    int64_t want = json_find(json, "n_head") ? json_integer(json, "n_head", 1, 65536, state) : heads;
    REQUIRE(heads == want, "%s/config.json: \"n_head\" is %d, want %d by state.json", checkpoint, heads, (int)want);
    json_free(json);
    free(state);
}

static const char *written_sum(const Json *sums, const char *name, const char *state) {
    static const char digits[] = "0123456789abcdef";
    const Json *sum = json_find(sums, name);
    int is_sum = sum && sum->type == JSON_STRING && strlen(sum->text) == 16 && strspn(sum->text, digits) == 16;
    REQUIRE(is_sum, "%s: the \"xxh64\" of %s is %.40s, want 16 digits of 0-9 and a-f (without any \"xxh64\" no byte is "
            "verified)", state, name, sum ? json_text(sum) : "missing");
    return sum->text;
}

static void check_sum(const char *path, const void *bytes, size_t size, const char *want) {
    char got[20];
    snprintf(got, sizeof got, "%016" PRIx64, sum_of(bytes, size));
    REQUIRE(!strcmp(got, want), "%s: XXH64 is %s, want %s: its bytes have changed since they were written (where that "
            "was meant, take \"xxh64\" out of state.json)", path, got, want);
}

/* Its own bytes: all behind the sums. */
static void check_state(const char *checkpoint) {
    char *path = file_path("%s/%s", checkpoint, STATE);
    Json *json = json_open(path);
    const Json *sums = json_find(json, "xxh64");
    FileMap map = file_map(path);
    const char *stop = (const char *)map.bytes + map.size, *at = memmem(map.bytes, (size_t)map.size, "\"xxh64\"", 7);
    if (at) at = memchr(at, '}', (size_t)(stop - at));
    if (json_find(sums, STATE) && at) check_sum(path, at + 1, (size_t)(stop - at - 1), written_sum(sums, STATE, path));
    file_unmap(map);
    json_free(json);
    free(path);
}

void checkpoint_check(const char *checkpoint) {
    char *optimizer = file_path("%s/%s", checkpoint, OPTIMIZER), *weights = model_path(checkpoint);
    checkpoint_load_state(checkpoint);
    free(checkpoint_setting(checkpoint, "model"));
    check_state(checkpoint);
    GPTConfig c = checkpoint_config(checkpoint), w = weights_config(weights);
    /* before memory is planned for sizes that a damaged config.json made up */
    REQUIRE(c.L == w.L && c.C == w.C && c.T == w.T && c.V == w.V, "%s/config.json: layers %d, channels %d, context %d, "
            "vocabulary %d, want %d, %d, %d and %d by the shapes in %s", checkpoint, c.L, c.C, c.T, c.V, w.L, w.C, w.T,
            w.V, weights);
    check_heads(checkpoint, c.NH);
    REQUIRE(weights_has(optimizer, "exp_avg.transformer.wte.weight", F32), "%s: the tensor "
            "exp_avg.transformer.wte.weight is missing", optimizer);
    free(weights);
    free(optimizer);
}

void checkpoint_check_sums(const char *checkpoint) {
    char *state = file_path("%s/state.json", checkpoint);
    Json *json = json_open(state);
    const Json *sums = json_find(json, "xxh64");
    const char *const names[] = { MODEL, OPTIMIZER };
    for (int i = 0; sums && i < 2; i++) {
        if (!has_file(checkpoint, names[i])) continue;      /* somebody has made shards of it */
        char *path = file_path("%s/%s", checkpoint, names[i]);
        const char *want = written_sum(sums, names[i], state);
        FileMap map = file_map(path);
        check_sum(path, map.bytes, (size_t)map.size, want);
        file_unmap(map);
        free(path);
    }
    json_free(json);
    free(state);
}

static void check(void *folder) {
    checkpoint_check(folder);
    checkpoint_check_sums(folder);
}

char *checkpoint_earlier(const char *out, const char *checkpoint, char damaged[FAIL_LENGTH]) {
    const char *slash = strrchr(checkpoint, '/'), *name = slash ? slash + 1 : checkpoint;
    Place before = { step_of(name, ends_with(name, ".old") ? ".old" : ""), ends_with(name, ".old") };
    char why[FAIL_LENGTH];
    size_t length = 0;
    *damaged = 0;
    while ((before = newest_before(out, TO_RESUME, before)).step >= 0) {
        Path folder = place_path(out, before);
        if (!fails(check, folder.text, why)) return file_path("%s", folder.text);
        if (length < FAIL_LENGTH / 2)
            length += (size_t)snprintf(damaged + length, FAIL_LENGTH - length, " and step-%08" PRId64 "%s", before.step,
                                       tails[before.is_old]);
    }
    return NULL;
}

/* ---- Removing old ones */

static int is_ours_alone(const char *folder) {
    struct stat info;
    DIR *directory = lstat(folder, &info) == 0 && S_ISDIR(info.st_mode) ? opendir(folder) : NULL;
    if (!directory) return 0;
    int ours = 1;
    for (struct dirent *entry; errno = 0, (entry = readdir(directory)); )
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") && !is_our_file(entry->d_name)) ours = 0;
    if (errno) ours = 0;
    closedir(directory);
    return ours;
}

/* One that cannot be removed is no obstacle to the others: the first failure is told at the end. Frees steps. */
static void remove_steps(const char *out, const char *tail, int64_t *steps, int count) {
    char why[FAIL_LENGTH], first[FAIL_LENGTH] = "";
    for (int i = 0; i < count; i++)
        if (fails(remove_step, &(Removal){ out, tail, steps[i] }, why) && !*first) memcpy(first, why, sizeof first);
    free(steps);
    REQUIRE(!*first, "%s", first);
}

void checkpoint_prune(const char *out, int64_t step, int64_t keep, int64_t keep_every) {
    if (!keep) return;
    int count, old = 0;
    int64_t *steps = list_steps(out, "", &count), seen = 0;
    for (int i = 0; i < count; i++) {
        Path folder = step_path(out, steps[i], "");
        if (steps[i] > step || !is_complete(folder.text, TO_RESUME) || !is_ours_alone(folder.text) || seen++ < keep)
            continue;
        if (!keep_every || steps[i] % keep_every) steps[old++] = steps[i];
    }
    remove_steps(out, "", steps, old);
}

void checkpoint_sweep(const char *out) {
    int count, replaced = 0;
    int64_t *steps = list_steps(out, ".partial", &count);
    remove_steps(out, ".partial", steps, count);
    steps = list_steps(out, ".old", &count);
    for (int i = 0; i < count; i++) {
        Path step = step_path(out, steps[i], ""), old = step_path(out, steps[i], ".old");
        if (is_complete(step.text, TO_RESUME)) steps[replaced++] = steps[i];
        else if (!file_exists(step.text) && is_complete(old.text, TO_RESUME)) file_rename(old.text, step.text);
    }
    remove_steps(out, ".old", steps, replaced);
}

/* ---- A CHECKPOINT argument */

char *checkpoint_resolve(const char *path) {
    REQUIRE(file_exists(path), "%s: no such file or folder: want a checkpoint", path);
    if (!file_is_folder(path)) {
        FileMap map = file_map(path);
        const char *kind = file_kind(map.bytes, map.size), *slash = strrchr(path, '/');
        file_unmap(map);
        const char *name = slash ? slash + 1 : path;
        REQUIRE(!strcmp(name, MODEL) || !strcmp(name, INDEX),
                "%s: is %s, want a checkpoint: a folder with model.safetensors, or the index of its shards", path,
                kind ? kind : "a file of an unknown kind");
        return file_folder(path);
    }
    char *folder = file_path("%s", path);
    for (size_t n = strlen(folder); n > 1 && folder[n - 1] == '/'; n--) folder[n - 1] = 0;
    REQUIRE(!ends_with(folder, ".partial"), "%s: is a checkpoint that was not finished: take an earlier one", path);
    if (has_model(folder)) return folder;
    char *step = newest(folder, TO_LOAD);
    REQUIRE(step, "%s: holds no checkpoint, want %s", path,
            has_file(folder, "pytorch_model.bin") ? "model.safetensors in place of pytorch_model.bin: save it with "
            "safe_serialization=True" : "config.json and model.safetensors, or folders like step-00001000");
    free(folder);
    return step;
}
