#include "checkpoint.h"
#include "../files.h"
#include "xxh64.h"
#include "../../kernels/check.h"
#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char CONFIG[] = "config.json", MODEL[] = "model.safetensors", OPTIMIZER[] = "optimizer.safetensors";
static const char STATE[] = "state.json", INDEX[] = "model.safetensors.index.json";

static const char *const names[] = {        /* of all files that checkpoint_write may write */
    CONFIG, MODEL, OPTIMIZER, STATE,
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",
};
enum { NAMES = sizeof names / sizeof *names };
static const char *const *tokenizer_names = names + NAMES - TOKENIZER_FILES;

static int has_file(const char *dir, const char *name) {
    char *path = format_string("%s/%s", dir, name);
    int found = file_exists(path) && !file_is_dir(path);
    free(path);
    return found;
}

int checkpoint_has_model(const char *dir) { return has_file(dir, MODEL) || has_file(dir, INDEX); }

static char *model_path(const char *dir) {
    return format_string("%s/%s", dir, has_file(dir, INDEX) && !has_file(dir, MODEL) ? INDEX : MODEL);
}

/* ---- Checksums */

static uint64_t sum_of(const void *bytes, size_t size) {
    XXH64 sum = xxh64_begin();
    xxh64_add(&sum, bytes, size);
    return xxh64_end(&sum);
}

static void verify(const Json *sums, const char *name, const char *path, const void *bytes, size_t size) {
    const Json *sum = json_find(sums, name);
    const char *want = sum ? json_text(sum) : "none";
    char got[20];
    snprintf(got, sizeof got, "%016" PRIx64, sum_of(bytes, size));
    REQUIRE(!strcmp(got, want), "%s: XXH64 is %s, want %.40s by state.json: the file has changed since it was written "
            "(if that was intended, remove \"xxh64\" from state.json)", path, got, want);
}

Json *checkpoint_open_state(const char *checkpoint) {
    char *path = format_string("%s/%s", checkpoint, STATE);
    FileMap map = file_map(path);
    Json *state = json_parse((const char *)map.bytes, (size_t)map.size, path);
    const Json *sums = json_find(state, "xxh64");
    const char *end = (const char *)map.bytes + map.size, *rest = memmem(map.bytes, (size_t)map.size, "\"xxh64\"", 7);
    if (rest) rest = memchr(rest, '}', (size_t)(end - rest));
    if (sums && rest) verify(sums, STATE, path, rest + 1, (size_t)(end - rest - 1));
    file_unmap(map);
    free(path);
    return state;
}

/* A model of another program has no checksums; one that was split into shards since has none of its own. */
static void verify_file(const char *checkpoint, const char *name) {
    if (!has_file(checkpoint, STATE) || !has_file(checkpoint, name)) return;
    Json *state = checkpoint_open_state(checkpoint);
    const Json *sums = json_find(state, "xxh64");
    char *path = format_string("%s/%s", checkpoint, name);
    FileMap map = file_map(path);
    if (sums) verify(sums, name, path, map.bytes, (size_t)map.size);
    file_unmap(map);
    free(path);
    json_free(state);
}

/* ---- config.json */

/* Fields of HuggingFace's GPT2Config that this model does not vary: written, and required of a config that has them. */
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
    const char *end_of_text = c->V == 50257 ? "50256" : "null";      /* the last token of GPT-2's vocabulary */
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

/* A head that config.json ties and that differs from wte is a tensor of its own: the file is what was trained. */
static int is_untied(const Json *config, const char *weights) {
    const Json *tie = json_find(config, "tie_word_embeddings");
    int untied = tie && tie->type == JSON_FALSE;
    REQUIRE(!tie || tie->type == JSON_TRUE || untied, "%s: \"tie_word_embeddings\" is %.80s, want true or false",
            config->where, json_text(tie));
    Head head = weights_head(weights);
    REQUIRE(head != NO_HEAD || !untied, "%s: \"tie_word_embeddings\" is false, but there is no lm_head.weight in %s: "
            "want true, or that tensor", config->where, weights);
    static int printed;
    if (head == OWN_HEAD && !untied && !printed++)
        printf("%s: lm_head.weight differs from wte, though %s ties them: the head is trained untied\n", weights,
               config->where);
    return untied || head == OWN_HEAD;
}

static GPTConfig inferred_config(const char *weights) {
    GPTConfig config = weights_config(weights);
    REQUIRE(config.C % 64 == 0, "%s: has %d channels and no config.json beside it: want one, as shapes do not give the "
            "number of heads, and heads of 64 channels do not divide them", weights, config.C);
    config.NH = config.C / 64;
    gpt_check(&config);
    config.untied = weights_head(weights) == OWN_HEAD;
    static int printed;
    if (!printed++)
        printf("%s: no config.json beside it: layers %d, channels %d, context %d, vocabulary %d by its shapes; %d "
               "heads, as GPT-2 has heads of 64 channels\n", weights, config.L, config.C, config.T, config.V,
               config.NH);
    return config;
}

static GPTConfig read_config(const char *path, const char *weights) {
    Json *json = json_open(path);
    json_string(json, "model_type");
    for (int i = 0; i < FIXED_COUNT; i++) {
        const Json *got = json_find(json, fixed[i].key);
        Json *want = json_parse(fixed[i].value, strlen(fixed[i].value), fixed[i].key);
        REQUIRE(!got || json_equal(got, want), "%s: \"%s\" is %.80s, want %s: no other GPT-2 is supported", path,
                fixed[i].key, json_text(got), fixed[i].value);
        json_free(want);
    }
    GPTConfig config = {
        .L = (int)json_integer(json, "n_layer", 1, 1000),
        .NH = (int)json_integer(json, "n_head", 1, 65536),
        .C = (int)json_integer(json, "n_embd", 1, 65536),
        .T = (int)json_integer(json, "n_positions", 1, 1 << 24),
        .V = (int)json_integer(json, "vocab_size", 1, 1 << 24),
    };
    const Json *inner = json_find(json, "n_inner");
    if (inner && inner->type != JSON_NULL) json_integer(json, "n_inner", 4 * config.C, 4 * config.C);
    REQUIRE(config.C % config.NH == 0, "%s: \"n_embd\" is %d, want a multiple of \"n_head\", %d", path, config.C,
            config.NH);
    gpt_check(&config);
    config.untied = is_untied(json, weights);
    json_free(json);
    return config;
}

GPTConfig checkpoint_config(const char *checkpoint) {
    char *path = format_string("%s/config.json", checkpoint), *weights = model_path(checkpoint);
    GPTConfig config = file_exists(path) ? read_config(path, weights) : inferred_config(weights);
    verify_file(checkpoint, CONFIG);
    free(path);
    free(weights);
    return config;
}

/* ---- state.json */

static void write_numbers(FILE *file, const char *key, const double *value, int count) {
    fprintf(file, "    \"%s\": [", key);
    for (int i = 0; i < count; i++) fprintf(file, "%s%.17g", i ? ", " : "", value[i]);
    fputc(']', file);
}

static void write_data_id(FILE *file, const char *stream, DataId id) {
    if (!id.count) fprintf(file, "    \"%s\": null", stream);
    else fprintf(file, "    \"%s\": { \"tokens\": %" PRId64 ", \"fingerprint\": \"%016" PRIx64 "\" }", stream, id.count,
                 id.fingerprint);
}

static void write_state(FILE *file, const Snapshot *s) {
    const TrainState *t = &s->state;
    char val_loss[32] = "null";
    if (isfinite(t->val_loss)) snprintf(val_loss, sizeof val_loss, "%.17g", t->val_loss);
    fprintf(file, ",\n  \"step\": %" PRId64 ",\n  \"sequences_seen\": %" PRIu64 ",\n  \"tokens\": %" PRId64 ",\n",
            t->step, t->sequences_seen, t->tokens);
    fprintf(file, "  \"val_loss\": %s,\n  \"val_step\": %" PRId64 ",\n  \"optimizer_step\": %" PRId64 ",\n", val_loss,
            t->val_step, s->optimizer_step);
    fprintf(file, "  \"tokenizer\": \"%s\",\n  \"data\": {\n", tokenizer_name(s->tokenizer));
    write_data_id(file, "train", s->train);
    fputs(",\n", file);
    write_data_id(file, "val", s->val);
    fprintf(file, "\n  },\n  \"spike_detector\": {\n    \"nonfinite\": %d,\n    \"spikes\": %d,\n", t->spikes.nonfinite,
            t->spikes.spikes);
    write_numbers(file, "loss", t->spikes.loss, t->spikes.count);
    fputs(",\n", file);
    write_numbers(file, "log_norm", t->spikes.log_norm, t->spikes.count);
    fputs("\n  },\n  \"settings\": {", file);
    const char *separator = "\n    ";
    for (const Option *o = s->options; o && (o->name || o->help); o++) {
        char text[256];
        if (!o->name || o->resume == FREE_ON_RESUME) continue;
        fprintf(file, "%s\"%s\": ", separator, o->name);
        json_write_string(file, option_text(o, text));
        separator = ",\n    ";
    }
    fputs("\n  }\n}\n", file);
}

/* The checksums come first; that of state.json covers all text after them. */
static void state_write(const char *path, const Snapshot *s, const uint64_t sums[3]) {
    char *text;
    size_t size;
    FILE *rest = open_memstream(&text, &size);
    REQUIRE(rest, "%s: out of memory", path);
    write_state(rest, s);
    REQUIRE(!fclose(rest), "%s: out of memory", path);
    FILE *file = file_create(path);
    fprintf(file, "{\n  \"xxh64\": {\n");
    for (int i = 0; i < 3; i++) fprintf(file, "    \"%s\": \"%016" PRIx64 "\",\n", names[i], sums[i]);
    fprintf(file, "    \"%s\": \"%016" PRIx64 "\"\n  }", STATE, sum_of(text, size));
    file_write(file, text, size);
    free(text);
    file_close_durably(file, path);
}

static int read_numbers(const Json *object, const char *key, double value[SPIKE_WINDOW]) {
    const Json *array = json_member(object, key), *number = array->child;
    REQUIRE(array->type == JSON_ARRAY && array->count <= SPIKE_WINDOW, "%s: \"%s\" is %.80s of %d, want an array of at "
            "most %d", object->where, key, json_text(array), array->count, SPIKE_WINDOW);
    for (int i = 0; number; number = number->next) value[i++] = json_to_real(number, key);
    return array->count;
}

TrainState checkpoint_load_state(const char *checkpoint) {
    Json *json = checkpoint_open_state(checkpoint);
    const Json *val_loss = json_member(json, "val_loss"), *spikes = json_member(json, "spike_detector");
    TrainState state = {
        .step = json_integer(json, "step", 0, INT64_MAX),
        .sequences_seen = (uint64_t)json_integer(json, "sequences_seen", 0, INT64_MAX),
        .tokens = json_integer(json, "tokens", 0, INT64_MAX),
        .val_loss = val_loss->type == JSON_NULL ? NAN : json_to_real(val_loss, "val_loss"),
        .val_step = json_integer(json, "val_step", -1, INT64_MAX),
        .spikes.nonfinite = (int)json_integer(spikes, "nonfinite", 0, NONFINITE_STEPS_MAX),
        .spikes.spikes = (int)json_integer(spikes, "spikes", 0, SPIKE_STEPS_MAX),
    };
    state.spikes.count = read_numbers(spikes, "loss", state.spikes.loss);
    int norms = read_numbers(spikes, "log_norm", state.spikes.log_norm);
    REQUIRE(norms == state.spikes.count, "%s: \"log_norm\" has %d numbers, want %d as in \"loss\"", json->where, norms,
            state.spikes.count);
    json_free(json);
    return state;
}

DataId data_id(const Tokens *tokens) {
    return tokens ? (DataId){ tokens_count(tokens), tokens_fingerprint(tokens) } : (DataId){0};
}

DataId checkpoint_data_id(const Json *state, const char *stream) {
    const Json *id = json_member(json_member(state, "data"), stream);
    if (id->type == JSON_NULL) return (DataId){0};
    return (DataId){ json_integer(id, "tokens", 1, INT64_MAX), strtoull(json_string(id, "fingerprint"), NULL, 16) };
}

/* ---- Tokenizers */

Tokenizer checkpoint_tokenizer(const char *checkpoint, int V) {
    if (!has_file(checkpoint, STATE)) return V == 256 ? TOKENIZER_BYTES : TOKENIZER_IDS;
    Json *state = checkpoint_open_state(checkpoint);
    Tokenizer tokenizer = tokenizer_named(json_string(state, "tokenizer"), state->where);
    json_free(state);
    return tokenizer;
}

TokenizerFiles checkpoint_load_tokenizer_files(const char *checkpoint, Tokenizer tokenizer) {
    TokenizerFiles files = {0};
    int found = 0;
    for (int i = 0; checkpoint && i < TOKENIZER_FILES; i++) {
        if (!has_file(checkpoint, tokenizer_names[i])) continue;
        char *path = format_string("%s/%s", checkpoint, tokenizer_names[i]);
        FileMap map = file_map(path);
        REQUIRE(map.size <= TOKENIZER_FILE_BYTES_MAX, "%s: %lld bytes, want a tokenizer file of at most %d: each "
                "checkpoint would hold a copy; move it away", path, (long long)map.size, TOKENIZER_FILE_BYTES_MAX);
        files.file[i].size = map.size;
        files.file[i].bytes = malloc((size_t)map.size + 1);
        REQUIRE(files.file[i].bytes, "%s: out of memory: %lld bytes", path, (long long)map.size);
        memcpy(files.file[i].bytes, map.bytes, (size_t)map.size);
        file_unmap(map);
        free(path);
        found++;
    }
    if (found || tokenizer != TOKENIZER_BYTES) return files;
    char *text[] = { tokenizer_bytes_json(), format_string("%s", tokenizer_bytes_config_json) };
    for (int i = 0; i < 2; i++) {               /* tokenizer.json, tokenizer_config.json */
        files.file[i].bytes = (unsigned char *)text[i];
        files.file[i].size = (int64_t)strlen(text[i]);
    }
    return files;
}

/* ---- The directory */

void checkpoint_write(const char *dir, const Snapshot *s) {
    uint64_t sums[3];                       /* of names[0] to names[2] */
    char *path = format_string("%s/config.json", dir);
    config_write(path, &s->config);
    FileMap config = file_map(path);
    sums[0] = sum_of(config.bytes, (size_t)config.size);
    file_unmap(config);
    free(path);
    path = format_string("%s/%s", dir, MODEL);
    sums[1] = weights_write(path, &s->parameters, 1, s->config.V);
    free(path);
    path = format_string("%s/%s", dir, OPTIMIZER);
    sums[2] = weights_write(path, s->moments, s->config.save_dtype == F32 ? 2 : 3, s->config.V);
    free(path);
    path = format_string("%s/%s", dir, STATE);
    state_write(path, s, sums);
    free(path);
    for (int i = 0; s->tokenizer_files && i < TOKENIZER_FILES; i++) {
        if (!s->tokenizer_files->file[i].bytes) continue;
        path = format_string("%s/%s", dir, tokenizer_names[i]);
        FILE *file = file_create(path);
        file_write(file, s->tokenizer_files->file[i].bytes, (size_t)s->tokenizer_files->file[i].size);
        file_close_durably(file, path);
        free(path);
    }
    directory_sync(dir);
}

void checkpoint_remove(const char *dir) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), error = fd < 0 ? errno : 0;
    if (error == ENOENT) return;
    for (int i = 0; i < NAMES && !error; i++)
        if (unlinkat(fd, names[i], 0) && errno != ENOENT) error = errno;
    if (fd >= 0) close(fd);
    if (!error && rmdir(dir)) error = errno;
    REQUIRE(!error, "%s: cannot remove: %s", dir, strerror(error));
}

int checkpoint_has_other_files(const char *dir) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), other = 0;
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    if (fd < 0 && (errno == ELOOP || errno == ENOTDIR)) return 1;
    REQUIRE(directory, "%s: cannot open the directory: %s", dir, strerror(errno));
    for (struct dirent *entry; (entry = readdir(directory)); ) {
        int known = !strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..");
        for (int i = 0; i < NAMES && !known; i++) known = !strcmp(entry->d_name, names[i]);
        other |= !known;
    }
    closedir(directory);
    return other;
}

const char *checkpoint_missing_file(const char *dir, int to_resume) {
    if (!has_file(dir, CONFIG)) return CONFIG;
    if (!checkpoint_has_model(dir)) return MODEL;
    if (to_resume && !has_file(dir, OPTIMIZER)) return OPTIMIZER;
    return to_resume && !has_file(dir, STATE) ? STATE : NULL;
}

/* ---- Loading */

void checkpoint_check(const char *checkpoint) {
    checkpoint_config(checkpoint);
    checkpoint_load_state(checkpoint);
}

/* The checksum is verified last: the other checks say more about what is wrong. */
void checkpoint_load_model(const char *checkpoint, GPT *model) {
    char *path = model_path(checkpoint);
    weights_read(path, &(Part){ .prefix = "", .table = &model->master.table }, 1, model->config.V);
    gpt_cast_params(model);
    free(path);
    verify_file(checkpoint, MODEL);
}

void checkpoint_load_optimizer(const char *checkpoint, GPT *model, Optimizer *optimizer) {
    char *path = format_string("%s/%s", checkpoint, OPTIMIZER), *weights = model_path(checkpoint);
    Part parts[] = { { .prefix = "exp_avg.", .table = &optimizer->m.table },
                     { .prefix = "exp_avg_sq.", .table = &optimizer->v.table },
                     { .prefix = "param.", .table = &model->master.table } };
    weights_read(path, parts, weights_is_f32(weights) ? 2 : 3, model->config.V);
    gpt_cast_params(model);
    Json *state = checkpoint_open_state(checkpoint);
    optimizer->step = json_integer(state, "optimizer_step", 0, INT64_MAX);
    json_free(state);
    free(weights);
    free(path);
    verify_file(checkpoint, OPTIMIZER);
}
