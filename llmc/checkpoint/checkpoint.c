#include "checkpoint.h"
#include "../files.h"
#include "json.h"
#include "xxh64.h"
#include "../../kernels/check.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    char *path = format_string("%s/%s", folder, name);
    int found = file_exists(path) && !file_is_folder(path);
    free(path);
    return found;
}

static const char MODEL[] = "model.safetensors", INDEX[] = "model.safetensors.index.json";
static const char OPTIMIZER[] = "optimizer.safetensors", STATE[] = "state.json";

int checkpoint_has_model(const char *folder) { return has_file(folder, MODEL) || has_file(folder, INDEX); }

static char *model_path(const char *folder) {
    return format_string("%s/%s", folder, has_file(folder, INDEX) && !has_file(folder, MODEL) ? INDEX : MODEL);
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
    char *path = format_string("%s/config.json", checkpoint), *weights = model_path(checkpoint);
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
    fprintf(rest, ",\n  \"step\": %" PRId64 ",\n  \"sample\": %" PRIu64 ",\n  \"tokens\": %" PRId64 ",\n",
            state->step,
            state->sequences_seen, state->tokens);
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

static Json *state_open(const char *checkpoint, Path *path) {
    *path = path_at("%s/%s", checkpoint, STATE);
    return json_open(path->text);
}

TrainState checkpoint_load_state(const char *checkpoint) {
    Path path;
    Json *json = state_open(checkpoint, &path);
    const Json *val_loss = json_find(json, "val_loss");
    TrainState state = {
        .step = json_integer(json, "step", 0, INT64_MAX, path.text),
        .sequences_seen = (uint64_t)json_integer(json, "sample", 0, INT64_MAX, path.text),
        .tokens = json_integer(json, "tokens", 0, INT64_MAX, path.text),
        .val_loss = val_loss && val_loss->type == JSON_NULL ? NAN : json_real(json, "val_loss", path.text),
    };
    json_free(json);
    return state;
}

char *checkpoint_setting(const char *checkpoint, const char *key) {
    Path path;
    char *value = NULL;
    Json *json = state_open(checkpoint, &path);
    const Json *settings = json_find(json, "settings");
    REQUIRE(settings && settings->type == JSON_OBJECT, "%s: \"settings\" is missing or no object", path.text);
    if (json_find(settings, key)) value = format_string("%s", json_string(settings, key, path.text));
    json_free(json);
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
        char *path = format_string("%s/%s", checkpoint, tokenizer_names[i]);
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

/* ---- All of it */

Snapshot checkpoint_snapshot(const GPT *model, const Optimizer *optimizer, const TrainState *state,
                             const Setting *settings) {
    const TensorTable *table = &model->master.table;
    return (Snapshot){
        .config = model->config,
        .parameters = { "", table, .memory = table->memory, .dtype = model->config.save_dtype },
        .moments = { { "exp_avg.", table, .memory = optimizer->m.data },
                     { "exp_avg_sq.", table, .memory = optimizer->v.data },
                     { "param.", table, .memory = table->memory } },
        .optimizer_step = optimizer->step, .state = *state, .settings = settings,
    };
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

int checkpoint_has_name(const char *name) {
    static const char *const names[] = {
        "config.json", MODEL, OPTIMIZER, STATE, "generation_config.json",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return 1;
    for (int i = 0; i < TOKENIZER_FILES; i++)
        if (!strcmp(name, tokenizer_names[i])) return 1;
    return 0;
}

void checkpoint_write(const char *folder, const Snapshot *s) {
    uint64_t sums[2];
    config_write(path_at("%s/config.json", folder).text, &s->config);
    weights_write(path_at("%s/%s", folder, MODEL).text, &s->parameters, 1, s->config.V);
    sums[0] = file_written_sum();
    weights_write(path_at("%s/%s", folder, OPTIMIZER).text, s->moments,
                  s->config.save_dtype == F32 ? 2 : 3, s->config.V);       /* the exact ones too */
    sums[1] = file_written_sum();
    state_write(path_at("%s/%s", folder, STATE).text, &s->state, s->optimizer_step, s->config.NH, sums, s->settings);
    tokenizer_write(folder, s->tokenizer);
    directory_sync(folder);
}

void checkpoint_load_model(const char *checkpoint, GPT *model) {
    char *path = model_path(checkpoint);
    params_read(path, &model->master, model->config.V);
    gpt_cast_params(model);
    free(path);
}

void checkpoint_load_optimizer(const char *checkpoint, GPT *model, Optimizer *optimizer) {
    Path state;
    char *path = format_string("%s/%s", checkpoint, OPTIMIZER), *weights = model_path(checkpoint);
    Json *json = state_open(checkpoint, &state);
    int64_t step = json_integer(json, "optimizer_step", 0, INT64_MAX, state.text);
    const TensorTable *table = &model->master.table;
    Part moments[] = { { "exp_avg.", table, .memory = optimizer->m.data },
                       { "exp_avg_sq.", table, .memory = optimizer->v.data },
                       { "param.", table, .memory = table->memory } };
    int has_params = weights_has(path, "param.transformer.wte.weight", F32);
    REQUIRE(has_params || weights_has(weights, "transformer.wte.weight", F32), "%s: has no param.NAME, want them: the "
            "parameters in %s are rounded, and a resume is exact; --init starts from them", path, weights);
    weights_read(path, moments, has_params ? 3 : 2, checkpoint_config(checkpoint).V);
    gpt_cast_params(model);
    optimizer->step = step;
    json_free(json);
    free(weights);
    free(path);
}

/* ---- What a folder has */

const char *checkpoint_lacks(const char *folder, int to_resume) {
    static const char *const names[] = { OPTIMIZER, STATE };
    if (!has_file(folder, "config.json")) return "config.json";
    if (!checkpoint_has_model(folder)) return MODEL;
    for (int i = 0; to_resume && i < 2; i++)
        if (!has_file(folder, names[i])) return names[i];
    return NULL;
}

/* ---- One that is damaged */

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

/* Its own bytes, all behind the sums; and the heads of config.json, which no shape tells. One of an older version has
   neither. */
static void check_state(const char *checkpoint, int heads) {
    Path path;
    Json *json = state_open(checkpoint, &path);
    const Json *sums = json_find(json, "xxh64");
    FileMap map = file_map(path.text);
    const char *stop = (const char *)map.bytes + map.size, *at = memmem(map.bytes, (size_t)map.size, "\"xxh64\"", 7);
    if (at) at = memchr(at, '}', (size_t)(stop - at));
    if (json_find(sums, STATE) && at)
        check_sum(path.text, at + 1, (size_t)(stop - at - 1), written_sum(sums, STATE, path.text));
    file_unmap(map);
    int64_t want = json_find(json, "n_head") ? json_integer(json, "n_head", 1, 65536, path.text) : heads;
    REQUIRE(heads == want, "%s/config.json: \"n_head\" is %d, want %d by state.json", checkpoint, heads, (int)want);
    json_free(json);
}

void checkpoint_check(const char *checkpoint) {
    char *optimizer = format_string("%s/%s", checkpoint, OPTIMIZER), *weights = model_path(checkpoint);
    checkpoint_load_state(checkpoint);
    free(checkpoint_setting(checkpoint, "model"));
    GPTConfig c = checkpoint_config(checkpoint), w = weights_config(weights);
    /* before memory is planned for sizes that a damaged config.json made up */
    REQUIRE(c.L == w.L && c.C == w.C && c.T == w.T && c.V == w.V, "%s/config.json: layers %d, channels %d, context %d, "
            "vocabulary %d, want %d, %d, %d and %d by the shapes in %s", checkpoint, c.L, c.C, c.T, c.V, w.L, w.C, w.T,
            w.V, weights);
    check_state(checkpoint, c.NH);
    REQUIRE(weights_has(optimizer, "exp_avg.transformer.wte.weight", F32), "%s: the tensor "
            "exp_avg.transformer.wte.weight is missing", optimizer);
    free(weights);
    free(optimizer);
}

void checkpoint_check_sums(const char *checkpoint) {
    Path state;
    Json *json = state_open(checkpoint, &state);
    const Json *sums = json_find(json, "xxh64");
    const char *const names[] = { MODEL, OPTIMIZER };
    for (int i = 0; sums && i < 2; i++) {
        if (!has_file(checkpoint, names[i])) continue;      /* somebody has made shards of it */
        Path path = path_at("%s/%s", checkpoint, names[i]);
        FileMap map = file_map(path.text);
        check_sum(path.text, map.bytes, (size_t)map.size, written_sum(sums, names[i], state.text));
        file_unmap(map);
    }
    json_free(json);
}
