#include "checkpoint.h"
#include "../../kernels/autotune.h"
#include "../ranks/ranks.h"
#include "../text/bpe_files.h"
#include "../train/autotune_cache.h"

static const char CONFIG[] = "config.json", MODEL[] = "model.safetensors", OPTIMIZER[] = "optimizer.safetensors";
static const char STATE[] = "state.json", CHOICES[] = "choices.txt", INDEX[] = "model.safetensors.index.json";
static const char CHECKSUMS[] = "checksums.xxh64", TOKENIZER_CONFIG[] = "tokenizer_config.json";

static const char *const names[] = {        /* all files of a checkpoint; the last five are of earlier versions */
    CONFIG, MODEL, OPTIMIZER, STATE, CHOICES, "tokenizer.json", TOKENIZER_CONFIG, CHECKSUMS, "validation.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
};
enum { NAMES = sizeof names / sizeof *names, CHECKED = 5, TOKENIZER_FILE = 5 };

int checkpoint_has_model(const char *dir) { return dir_has_file(dir, MODEL) || dir_has_file(dir, INDEX); }

static Path model_path(const char *dir) { return path_of(dir, dir_has_file(dir, MODEL) ? MODEL : INDEX); }

const char *checkpoint_missing_file(const char *dir, int to_resume) {
    if (!dir_has_file(dir, CONFIG)) return CONFIG;
    if (!checkpoint_has_model(dir)) return MODEL;
    if (to_resume && !dir_has_file(dir, OPTIMIZER)) return OPTIMIZER;
    return to_resume && !dir_has_file(dir, STATE) ? STATE : NULL;
}

/* ---- Checksums */

typedef struct { char text[64]; } SumLine;      /* "0123456789abcdef  config.json\n"; "" = no file */

static SumLine sum_line(uint64_t sum, const char *name) {
    SumLine line = {0};                 /* to its end: sum_of_files reads all of it */
    snprintf(line.text, sizeof line.text, "%016" PRIx64 "  %s\n", sum, name);
    return line;
}

static SumLine sum_of_file(const char *dir, const char *name) {
    if (!dir_has_file(dir, name)) return (SumLine){ "" };
    const FileMap map = file_map(path_of(dir, name).text);
    const uint64_t sum = xxh64(map.bytes, (size_t)map.size);
    file_unmap(map);
    return sum_line(sum, name);
}

void checkpoint_verify(const char *checkpoint, int to_resume) {
    if (!dir_has_file(checkpoint, CHECKSUMS)) return;
    const Path path = path_of(checkpoint, CHECKSUMS);
    const FileMap sums = file_map(path.text);
    for (int i = 0; i < CHECKED; i++) {
        if (names[i] == OPTIMIZER && !to_resume) continue;
        const SumLine line = sum_of_file(checkpoint, names[i]);
        REQUIRE(memmem(sums.bytes, (size_t)sums.size, line.text, strlen(line.text)), "%s/%s: XXH64 is %.16s, not as in "
                "%s: the file has changed since it was written (if that was intended, remove %s)", checkpoint,
                names[i], line.text, CHECKSUMS, path.text);
    }
    file_unmap(sums);
}

/* One sum for all files, by checksums.xxh64 where checkpoint_verify has compared it. */
static uint64_t sum_of_files(const char *checkpoint) {
    const int has_sums = dir_has_file(checkpoint, CHECKSUMS);
    SumLine line[CHECKED] = {0};
    for (int i = 0; i < (has_sums ? 1 : CHECKED); i++)
        line[i] = sum_of_file(checkpoint, has_sums ? CHECKSUMS : names[i]);
    return xxh64(line, sizeof line);
}

/* ---- config.json */

/* Members of HuggingFace's GPT2Config. REQUIRED and OPTIONAL ones decide what the weights compute. */
static char *config_text(const GPTConfig *c, Tokenizer *tokenizer) {
    const int32_t id = tokenizer_end_of_text(tokenizer, c->V);
    char end_of_text[16] = "null";
    if (id >= 0) snprintf(end_of_text, sizeof end_of_text, "%d", id);
    return format_string(
        "{\n  \"model_type\": \"gpt2\",\n  \"n_layer\": %d,\n  \"n_embd\": %d,\n  \"n_positions\": %d,\n"
        "  \"vocab_size\": %d,\n  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": 1e-05,\n"
        "  \"scale_attn_weights\": true,\n  \"scale_attn_by_inverse_layer_idx\": false,\n"
        "  \"add_cross_attention\": false,\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"n_head\": %d,\n"
        "  \"n_ctx\": %d,\n  \"tie_word_embeddings\": %s,\n  \"bos_token_id\": %s,\n  \"eos_token_id\": %s,\n"
        "  \"resid_pdrop\": %#g,\n  \"embd_pdrop\": %#g,\n  \"attn_pdrop\": %#g,\n"
        "  \"initializer_range\": 0.02,\n  \"torch_dtype\": \"float32\"\n}\n", c->L, c->C, c->T, c->V, c->NH, c->T,
        c->untied ? "false" : "true", end_of_text, end_of_text, c->dropout, c->dropout, c->dropout);
}
enum { REQUIRED = 5, OPTIONAL = 5 };            /* the first members */

static int is_same(const Json *a, const Json *b) {
    const char *text = strcmp(json_text(a), "gelu_pytorch_tanh") ? json_text(a) : "gelu_new";   /* the same function */
    return a->type == b->type && (a->type == JSON_NUMBER ? strtod(text, NULL) == strtod(b->text, NULL)
                                                         : !strcmp(text, json_text(b)));
}

static void check_sizes(void *config) { gpt_check(config); }

GPTConfig checkpoint_config(const char *checkpoint) {
    const Path path = path_of(checkpoint, CONFIG);
    GPTConfig c = weights_config(model_path(checkpoint).text);
    char *text = config_text(&c, TOKENIZER_IDS), wanted[64], why[FAIL_LENGTH];
    Json *json = json_open(path.text), *tensors = json_parse(text, strlen(text), CONFIG);
    const Json *want = tensors->child;
    for (int i = 0; i < REQUIRED + OPTIONAL; i++, want = want->next) {
        const Json *got = i < REQUIRED ? json_member(json, want->key, want->type) : json_find(json, want->key);
        snprintf(wanted, sizeof wanted, "%s%s", json_text(want), i && i < REQUIRED ? " as in the tensors" : "");
        if (got && !is_same(got, want)) json_refuse(got, wanted);
    }
    c.NH = (int)json_integer(json_member(json, "n_head", JSON_ANY), 1, c.C);
    const Json *inner = json_find(json, "n_inner"), *tie = json_find(json, "tie_word_embeddings");
    if (inner && inner->type != JSON_NULL) json_integer(inner, 4 * c.C, 4 * c.C);
    if (tie && tie->type != JSON_TRUE && tie->type != JSON_FALSE) json_refuse(tie, "true or false");
    if (c.untied && (!tie || tie->type == JSON_TRUE))
        print_line(stdout, "%s: ties the head, but lm_head.weight differs from wte: the head is trained untied",
                   path.text);
    c.untied |= tie && tie->type == JSON_FALSE;
    json_free(tensors);
    json_free(json);
    free(text);
    if (fails(check_sizes, &c, why)) fail("%s: %s", path.text, why);
    return c;
}

/* ---- state.json */

enum { COUNT_MAX = INT64_C(1) << 62 };      /* a run adds to it without overflow */

/*    key               member of TrainState  max */
#define STATE_COUNTS(X) \
    X("step",           step,                 COUNT_MAX) \
    X("sequences_seen", sequences_seen,       COUNT_MAX) \
    X("tokens",         tokens,               COUNT_MAX) \
    X("optimizer_step", optimizer_step,       COUNT_MAX) \
    X("nonfinite",      spikes.nonfinite,     NONFINITE_STEPS_MAX) \
    X("spikes",         spikes.spikes,        SPIKE_STEPS_MAX)

/*    key         member of TrainState  max. No "best": no validation, or an earlier version. */
#define BEST_COUNTS(X) \
    X("step",     best.step,            COUNT_MAX) \
    X("extra",    best.is_extra,        1) \
    X("outdated", best.outdated,        COUNT_MAX) \
    X("since",    best.since,           COUNT_MAX)

/* file, json and state are those of the function */
#define WRITE_COUNT(key, member, max) fprintf(file, "\"%s\": %lld, ", key, (long long)state->member);
#define READ_COUNT(key, member, max) state->member = json_integer(json_member(json, key, JSON_ANY), 0, max);

static void write_reals(FILE *file, const char *key, const double *value, int count) {
    fprintf(file, "  \"%s\": [", key);
    for (int i = 0; i < count; i++) fprintf(file, "%s%.17g", i ? ", " : "", value[i]);
    fputs("],\n", file);
}

static int read_reals(const Json *state, const char *key, double value[SPIKE_WINDOW]) {
    const Json *array = json_member(state, key, JSON_ARRAY), *number = array->child;
    if (array->count > SPIKE_WINDOW) json_refuse(array, "one of at most 128 numbers");
    for (int i = 0; number; number = number->next) value[i++] = json_real(number);
    return array->count;
}

static char *state_text(const Snapshot *s) {
    const TrainState *state = &s->state;
    const char *separator = "\n    ";
    char *text, value[256];
    size_t size;
    FILE *file = string_open(&text, &size, STATE);
    fputs("{\n  ", file);
    STATE_COUNTS(WRITE_COUNT)
    fprintf(file, "\n  \"val_step\": %lld,\n", (long long)state->val_step);
    if (state->best.step) {
        fputs("  \"best\": {", file);
        BEST_COUNTS(WRITE_COUNT)
        fprintf(file, "\"loss\": %.17g},\n", state->best.loss);
    }
    write_reals(file, "window_loss", state->spikes.loss, state->spikes.count);
    write_reals(file, "window_log_norm", state->spikes.log_norm, state->spikes.count);
    fprintf(file, "  \"tokenizer\": \"%s\",\n  \"train\": \"%s\",\n  \"val\": \"%s\",\n  \"settings\": {",
            s->tokenizer->name, s->train.text, s->val.text);
    for (const Option *o = s->options; o->name || o->help; o++) {
        if (!o->name || o->role != ROLE_KEPT) continue;
        fprintf(file, "%s\"%s\": ", separator, o->name);
        json_write_string(file, option_text(o, value));
        separator = ",\n    ";
    }
    fputs("\n  }\n}\n", file);
    fclose(file);
    return text;
}

Json *checkpoint_open_state(const char *checkpoint) { return json_open(path_of(checkpoint, STATE).text); }

TrainState checkpoint_load_state(const char *checkpoint) {
    Json *root = checkpoint_open_state(checkpoint);
    const Json *json = root;
    TrainState loaded = {0}, *state = &loaded;
    STATE_COUNTS(READ_COUNT)
    state->val_step = json_integer(json_member(json, "val_step", JSON_ANY), -1, COUNT_MAX);
    state->spikes.count = read_reals(json, "window_loss", state->spikes.loss);
    const int norms = read_reals(json, "window_log_norm", state->spikes.log_norm);
    REQUIRE(norms == state->spikes.count, "%s: \"window_log_norm\" has %d numbers, want %d as in \"window_loss\"",
            json->where, norms, state->spikes.count);
    if (json_find(root, "best")) {
        json = json_member(root, "best", JSON_OBJECT);
        BEST_COUNTS(READ_COUNT)
        state->best.loss = json_real(json_member(json, "loss", JSON_ANY));
    }
    json_free(root);
    return loaded;
}

DataId data_id(Tokens *tokens) {
    DataId id = { "none" };
    if (tokens) snprintf(id.text, sizeof id.text, "%lld tokens, xxh64 %016llx", (long long)tokens->count,
                         (unsigned long long)tokens_fingerprint(tokens));
    return id;
}

int data_is(Tokens *tokens, const char *had) {
    const DataId id = data_id(tokens);
    const char *sampled = strstr(had, ", fingerprint ");
    return sampled ? !strncmp(had, id.text, (size_t)(sampled - had) + 1) : !strcmp(had, id.text);
}

/* ---- Tokenizers */

/* Without the names of inputs, transformers 4 passes token_type_ids, for which GPT-2 adds a row of wte everywhere. */
static void warn_of_config(const char *checkpoint) {
    if (comm_rank || !dir_has_file(checkpoint, TOKENIZER_CONFIG)) return;
    Json *config = json_open(path_of(checkpoint, TOKENIZER_CONFIG).text);
    if (!json_find(config, "model_input_names"))
        print_line(stderr, "warning: %s: transformers 4 computes other losses: want \"model_input_names\": "
                   "[\"input_ids\", \"attention_mask\"], which a checkpoint saved now has", config->where);
    json_free(config);
}

Tokenizer *checkpoint_tokenizer(const char *checkpoint, int V) {
    static const char kinds[] = "bytes|ids|bpe";
    if (!dir_has_file(checkpoint, STATE)) return V == 256 ? TOKENIZER_BYTES : tokenizer_find(checkpoint);
    Json *state = checkpoint_open_state(checkpoint);
    const int kind = choice_index(kinds, json_string(state, "tokenizer"));
    if (kind < 0) json_refuse(json_find(state, "tokenizer"), kinds);
    json_free(state);
    warn_of_config(checkpoint);
    return kind == 0 ? TOKENIZER_BYTES : kind == 1 ? TOKENIZER_IDS : tokenizer_open(checkpoint);
}

/* ---- The directory */

/* optimizer.safetensors: both moments, of Muon's matrices one momentum. */
static void list_parts(Part part[2], OptimizerKind kind, void *const memory[STATES]) {
    const int is_muon = kind == OPTIMIZER_MUON;
    part[0] = (Part){ "exp_avg.", is_muon ? "momentum_buffer." : "exp_avg.", memory[STATE_M] };
    part[1] = (Part){ "exp_avg_sq.", is_muon ? NULL : "exp_avg_sq.", memory[STATE_V] };
}

/* Returns the line of checksums.xxh64; frees text, "" = no file. */
static SumLine write_text(const char *dir, const char *name, char *text) {
    const Path path = path_of(dir, name);
    const size_t size = text ? strlen(text) : 0;
    const SumLine line = size ? sum_line(xxh64(text, size), name) : (SumLine){ "" };
    FILE *file = size ? file_create(path.text) : NULL;
    if (file) file_write(file, text, size);
    free(text);                         /* before an error of the last call */
    if (file) file_close_durably(file, path.text);
    return line;
}

void checkpoint_write(const char *dir, const Snapshot *s) {
    const GPTConfig *c = &s->model->config;
    const TensorTable *table = &s->model->master.table;
    const Part model = { "", "", s->host[STATE_PARAM] };
    Part part[2];
    list_parts(part, c->optimizer, s->host);
    SumLine line[CHECKED];              /* in the order of names */
    line[0] = write_text(dir, CONFIG, config_text(c, s->tokenizer));
    line[1] = sum_line(weights_write(path_of(dir, MODEL).text, table, &model, 1, c->V), MODEL);
    line[2] = sum_line(weights_write(path_of(dir, OPTIMIZER).text, table, part, 2, c->V), OPTIMIZER);
    line[3] = write_text(dir, STATE, state_text(s));
    line[4] = write_text(dir, CHOICES, s->choices ? format_string("%s", s->choices) : NULL);
    for (int i = TOKENIZER_FILE; i < TOKENIZER_FILE + 2; i++)
        write_text(dir, names[i], bpe_file_text(s->tokenizer, names[i], c->T));
    write_text(dir, CHECKSUMS, format_string("%s%s%s%s%s", line[0].text, line[1].text, line[2].text, line[3].text,
                                             line[4].text));
    directory_sync(dir);
}

void checkpoint_remove(const char *dir) {
    int error = 0;
    if (readlink(dir, &(char){0}, 1) >= 0) {
        error = unlink(dir) ? errno : 0;
    } else {
        for (int i = 0; i < NAMES && !error; i++)
            if (unlink(path_of(dir, names[i]).text) && errno != ENOENT) error = errno;
        if (!error && rmdir(dir) && errno != ENOENT && errno != ENOTEMPTY && errno != EEXIST) error = errno;
    }
    REQUIRE(!error, "%s: cannot remove: %s", dir, strerror(error));
}

/* ---- Loading */

void checkpoint_load_choices(const char *checkpoint) {
    const Path path = path_of(checkpoint, CHOICES);
    if (!file_exists(path.text)) return;
    char *text = autotune_read(path.text);
    if (!autotune_adopt(text))
        print_line(stdout, "%s: of another version of train_gpt, device, driver or library: results differ by rounding",
                   path.text);
    free(text);
}

void checkpoint_load_model(const char *checkpoint, GPT *model) {
    const TensorTable *table = &model->master.table;
    if (comm_size > 1) ranks_require_same(sum_of_files(checkpoint), "the sum of the checkpoint's files");
    const Part parameters = { "", "", table->memory };
    weights_read(model_path(checkpoint).text, table, &parameters, 1, model->config.V);
    gpt_cast_params(model);
}

void checkpoint_load_optimizer(const char *checkpoint, const TrainState *state, OptimizerKind had, Optimizer *o) {
    const GPTConfig *config = &o->model->config;
    const TensorTable *table = &o->model->master.table;
    const Path file = path_of(checkpoint, OPTIMIZER);
    const int is_other = had != config->optimizer;
    if (is_other)
        print_line(stdout, "%s: of another --optimizer: the momentum of the blocks' matrices starts from zero",
                   file.text);
    /* one at a time: sharded ones are read into the same memory */
    for (OptimizerState i = STATE_M; i < STATES; i++) {
        void *memory[STATES] = {0};
        Part part[2];
        memory[i] = optimizer_memory(o, i);
        device_zero(memory[i], table->bytes);               /* Muon's matrices have no second moment */
        list_parts(part, had, memory);
        weights_read(file.text, table, part, 2, config->V);
        for (const TensorEntry *e = table->entry; is_other && e < table->entry + table->count; e++)
            if (e->matrices) device_zero((char *)memory[i] + e->offset, tensor_bytes(*e->field));
        optimizer_scatter(o, i);
    }
    o->step = state->optimizer_step;
}
