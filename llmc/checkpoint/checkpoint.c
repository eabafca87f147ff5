#include "checkpoint.h"
#include "../text/bpe_files.h"
#include "../../kernels/autotune.h"
#include "../ranks/ranks.h"
#include "../train/autotune_cache.h"
#include "../base/files.h"
#include "../base/terminal.h"
#include "../../kernels/check.h"
#include "../../kernels/comm.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char CONFIG[] = "config.json", MODEL[] = "model.safetensors", OPTIMIZER[] = "optimizer.safetensors";
static const char STATE[] = "state.json", CHOICES[] = "choices.txt", INDEX[] = "model.safetensors.index.json";
static const char CHECKSUMS[] = "checksums.xxh64", VALIDATION[] = "validation.json";
static const char VALIDATION_NEW[] = "validation.json.new";

static const char *const names[] = {        /* all files of a checkpoint; the last four are of earlier versions */
    CONFIG, MODEL, OPTIMIZER, STATE, CHOICES, "tokenizer.json", "tokenizer_config.json", CHECKSUMS, VALIDATION,
    VALIDATION_NEW, "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
};
enum { NAMES = sizeof names / sizeof *names, CHECKED = 5, TOKENIZER_FILE = 5 };

int checkpoint_has_model(const char *dir) { return dir_has_file(dir, MODEL) || dir_has_file(dir, INDEX); }

static Path model_path(const char *dir) { return path_of(dir, dir_has_file(dir, MODEL) ? MODEL : INDEX); }

/* ---- Checksums */

/* A line of checksums.xxh64, "0123456789abcdef  config.json\n": a new string. */
static char *checksum_line(const char *dir, const char *name) {
    FileMap map = file_map(path_of(dir, name).text);
    char *line = format_string("%016" PRIx64 "  %s\n", xxh64(map.bytes, (size_t)map.size), name);
    file_unmap(map);
    return line;
}

static void write_checksums(const char *dir) {
    Path path = path_of(dir, CHECKSUMS);
    FILE *file = file_create(path.text);
    for (int i = 0; i < CHECKED; i++) {
        char *line = dir_has_file(dir, names[i]) ? checksum_line(dir, names[i]) : NULL;
        if (line) fputs(line, file);
        free(line);
    }
    file_close_durably(file, path.text);
}

void checkpoint_verify(const char *checkpoint, int to_resume) {
    if (!dir_has_file(checkpoint, CHECKSUMS)) return;
    Path path = path_of(checkpoint, CHECKSUMS);
    FileMap sums = file_map(path.text);
    for (int i = 0; i < CHECKED; i++) {
        if (!dir_has_file(checkpoint, names[i]) || (names[i] == OPTIMIZER && !to_resume)) continue;
        char *line = checksum_line(checkpoint, names[i]);
        REQUIRE(memmem(sums.bytes, (size_t)sums.size, line, strlen(line)), "%s/%s: XXH64 is %.16s, not as in %s: the "
                "file has changed since it was written (if that was intended, remove %s)", checkpoint, names[i], line,
                CHECKSUMS, path.text);
        free(line);
    }
    file_unmap(sums);
}

/* The sum of checksums.xxh64, which checkpoint_verify has compared; without it, of the lines that it would have. */
static uint64_t sum_of_files(const char *checkpoint) {
    const int has_sums = dir_has_file(checkpoint, CHECKSUMS);
    uint64_t sums[CHECKED] = {0};
    for (int i = 0; i < (has_sums ? 1 : CHECKED); i++) {
        const char *name = has_sums ? CHECKSUMS : names[i];
        char *line = dir_has_file(checkpoint, name) ? checksum_line(checkpoint, name) : NULL;
        if (line) sums[i] = xxh64(line, strlen(line));
        free(line);
    }
    return xxh64(sums, sizeof sums);
}

/* ---- config.json */

/* Fields of HuggingFace's GPT2Config, all of them written. A field with a value may be missing when it is read, but
   must not have another one. The others are sizes of the tensors and required. */
static const struct { const char *key; JsonType type; const char *value; size_t size; } fields[] = {
    { "model_type",                       JSON_STRING, "gpt2",     0 },
    { "activation_function",              JSON_STRING, "gelu_new", 0 },
    { "layer_norm_epsilon",               JSON_NUMBER, "1e-05",    0 },
    { "scale_attn_weights",               JSON_TRUE,   "true",     0 },
    { "scale_attn_by_inverse_layer_idx",  JSON_FALSE,  "false",    0 },
    { "add_cross_attention",              JSON_FALSE,  "false",    0 },
    { "n_layer",                          JSON_NUMBER, NULL,       offsetof(GPTConfig, L) },
    { "n_embd",                           JSON_NUMBER, NULL,       offsetof(GPTConfig, C) },
    { "n_positions",                      JSON_NUMBER, NULL,       offsetof(GPTConfig, T) },
    { "vocab_size",                       JSON_NUMBER, NULL,       offsetof(GPTConfig, V) },
};
enum { FIELDS = sizeof fields / sizeof *fields };

static const char *field_value(int i, const GPTConfig *c, char text[16]) {
    if (fields[i].value) return fields[i].value;
    snprintf(text, 16, "%d", *(const int *)((const char *)c + fields[i].size));
    return text;
}

static void write_config(const char *path, const GPTConfig *c, Tokenizer tokenizer) {
    char text[16], end_of_text[16] = "null";
    const int32_t id = tokenizer_end_of_text(tokenizer, c->V);
    if (id >= 0) snprintf(end_of_text, sizeof end_of_text, "%d", id);
    FILE *file = file_create(path);
    fprintf(file, "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n");
    for (int i = 0; i < FIELDS; i++) {
        const char *quote = fields[i].type == JSON_STRING ? "\"" : "";
        fprintf(file, "  \"%s\": %s%s%s,\n", fields[i].key, quote, field_value(i, c, text), quote);
    }
    fprintf(file, "  \"n_head\": %d,\n  \"n_ctx\": %d,\n  \"tie_word_embeddings\": %s,\n  \"bos_token_id\": %s,\n"
            "  \"eos_token_id\": %s,\n", c->NH, c->T, c->untied ? "false" : "true", end_of_text, end_of_text);
    fprintf(file, "  \"initializer_range\": 0.02,\n  \"resid_pdrop\": %#g,\n  \"embd_pdrop\": %#g,\n"
            "  \"attn_pdrop\": %#g,\n  \"torch_dtype\": \"%s\"\n}\n", c->dropout, c->dropout, c->dropout,
            c->save_dtype == BF16 ? "bfloat16" : "float32");
    file_close_durably(file, path);
}

/* c: the sizes of the tensors in the file weights. */
static void check_field(int i, const Json *got, const GPTConfig *c, const char *weights) {
    char text[16];
    const char *want = field_value(i, c, text), *had = json_text(got);
    if (!strcmp(had, "gelu_pytorch_tanh")) had = "gelu_new";       /* the same function */
    const int is_equal = fields[i].type == JSON_NUMBER && fields[i].value ? strtod(had, NULL) == strtod(want, NULL)
                                                                          : !strcmp(had, want);
    if (got->type == fields[i].type && is_equal) return;
    if (fields[i].value) json_refuse(got, want);
    fail("%s: \"%s\" is %.80s, want %s as in the tensors of %s", got->where, got->key, had, want, weights);
}

/* Checks config.json against the sizes of the tensors, and reads the number of heads and whether the head is tied. */
static void read_config(GPTConfig *c, const char *path, const char *weights) {
    Json *json = json_open(path);
    json_member(json, "model_type", JSON_STRING);
    for (int i = 0; i < FIELDS; i++) {
        const Json *got = fields[i].value ? json_find(json, fields[i].key) : json_member(json, fields[i].key, JSON_ANY);
        if (got) check_field(i, got, c, weights);
    }
    c->NH = (int)json_integer(json_member(json, "n_head", JSON_ANY), 1, c->C);
    const Json *inner = json_find(json, "n_inner"), *tie = json_find(json, "tie_word_embeddings");
    if (inner && inner->type != JSON_NULL) json_integer(inner, 4 * c->C, 4 * c->C);
    if (tie && tie->type != JSON_TRUE && tie->type != JSON_FALSE) json_refuse(tie, "true or false");
    if (c->untied && (!tie || tie->type == JSON_TRUE))
        print_line(stdout, "%s: ties the head, but lm_head.weight differs from wte: the head is trained untied", path);
    c->untied |= tie && tie->type == JSON_FALSE;
    json_free(json);
}

static void check_sizes(void *config) { gpt_check(config); }

GPTConfig checkpoint_config(const char *checkpoint) {
    const Path path = path_of(checkpoint, CONFIG), weights = model_path(checkpoint);
    GPTConfig c = weights_config(weights.text);
    char why[FAIL_LENGTH];
    c.save_dtype = F32;
    if (file_exists(path.text)) {
        read_config(&c, path.text, weights.text);
    } else {
        REQUIRE(c.C % 64 == 0, "%s: missing: want it for %d channels, which heads of 64 do not divide", path.text, c.C);
        c.NH = c.C / 64;
        print_line(stdout, "%s: missing: layers %d, channels %d, context %d, vocabulary %d by the shapes of tensors; "
                   "%d heads, as GPT-2 has heads of 64 channels", path.text, c.L, c.C, c.T, c.V, c.NH);
    }
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

/*    key         member of ValHistory  max. No "best": no validation, or an earlier version. */
#define BEST_COUNTS(X) \
    X("step",     best.step,            COUNT_MAX) \
    X("extra",    best.is_extra,        1) \
    X("outdated", best.outdated,        COUNT_MAX) \
    X("since",    since_best,           COUNT_MAX) \
    X("rises",    rises,                RISES_MAX)

static void write_reals(FILE *file, const char *key, const double *value, int count) {
    fprintf(file, "  \"%s\": [", key);
    for (int i = 0; i < count; i++) fprintf(file, "%s%.17g", i ? ", " : "", value[i]);
    fputs("],\n", file);
}

/* What a validation changes: members of state.json, or all of validation.json. */
static void write_validation(FILE *file, const TrainState *t) {
    fprintf(file, "  \"val_step\": %lld,\n  \"val_loss\": ", (long long)t->val_step);
    fprintf(file, isfinite(t->val_loss) ? "%.17g" : "null", t->val_loss);
    if (!t->val.best.step) return;
    fputs(",\n  \"best\": {", file);
#define X(key, member, max) fprintf(file, "\"%s\": %lld, ", key, (long long)t->val.member);
    BEST_COUNTS(X)
#undef X
    fprintf(file, "\"loss\": %.17g}", t->val.best.loss);
}

static void write_state(const char *path, const Snapshot *s) {
    const TrainState *t = &s->state;
    FILE *file = file_create(path);
    fputs("{\n", file);
#define X(key, member, max) fprintf(file, "  \"%s\": %lld,\n", key, (long long)t->member);
    STATE_COUNTS(X)
#undef X
    write_validation(file, t);
    fputs(",\n", file);
    write_reals(file, "window_loss", t->spikes.loss, t->spikes.count);
    write_reals(file, "window_log_norm", t->spikes.log_norm, t->spikes.count);
    fprintf(file, "  \"tokenizer\": \"%s\",\n  \"train\": \"%s\",\n  \"val\": \"%s\",\n",
            tokenizer_name(s->tokenizer), s->train.text, s->val.text);
    fputs("  \"settings\": {", file);
    const char *separator = "\n    ";
    for (const Option *o = s->options; o->name || o->help; o++) {
        char text[256];
        if (!o->name || o->role != ROLE_KEPT) continue;
        fprintf(file, "%s\"%s\": ", separator, o->name);
        json_write_string(file, option_text(o, text));
        separator = ",\n    ";
    }
    fputs("\n  }\n}\n", file);
    file_close_durably(file, path);
}

Json *checkpoint_open_state(const char *checkpoint) { return json_open(path_of(checkpoint, STATE).text); }

static int read_reals(const Json *state, const char *key, double value[SPIKE_WINDOW]) {
    const Json *array = json_member(state, key, JSON_ARRAY), *number = array->child;
    if (array->count > SPIKE_WINDOW) json_refuse(array, "one of at most 128 numbers");
    for (int i = 0; number; number = number->next) value[i++] = json_real(number);
    return array->count;
}

static void read_validation(const Json *json, TrainState *state) {
    const Json *val_loss = json_member(json, "val_loss", JSON_ANY);
    state->val_step = json_integer(json_member(json, "val_step", JSON_ANY), -1, COUNT_MAX);
    state->val_loss = val_loss->type == JSON_NULL ? NAN : json_real(val_loss);
    if (!json_find(json, "best")) return;
    const Json *best = json_member(json, "best", JSON_OBJECT);
#define X(key, member, max) state->val.member = json_integer(json_member(best, key, JSON_ANY), 0, max);
    BEST_COUNTS(X)
#undef X
    state->val.best.loss = json_real(json_member(best, "loss", JSON_ANY));
}

TrainState checkpoint_load_state(const char *checkpoint) {
    Json *json = checkpoint_open_state(checkpoint);
    TrainState state = {0};
    read_validation(json, &state);
#define X(key, member, max) state.member = json_integer(json_member(json, key, JSON_ANY), 0, max);
    STATE_COUNTS(X)
#undef X
    state.spikes.count = read_reals(json, "window_loss", state.spikes.loss);
    int norms = read_reals(json, "window_log_norm", state.spikes.log_norm);
    REQUIRE(norms == state.spikes.count, "%s: \"window_log_norm\" has %d numbers, want %d as in \"window_loss\"",
            json->where, norms, state.spikes.count);
    json_free(json);
    if (!dir_has_file(checkpoint, VALIDATION)) return state;
    json = json_open(path_of(checkpoint, VALIDATION).text);
    read_validation(json, &state);
    json_free(json);
    return state;
}

DataId data_id(Tokens *tokens) {
    DataId id = { "none" };
    if (tokens) snprintf(id.text, sizeof id.text, "%lld tokens, xxh64 %016llx", (long long)tokens_count(tokens),
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
    const char *name = names[TOKENIZER_FILE + 1];
    if (comm_rank || !dir_has_file(checkpoint, name)) return;
    Json *config = json_open(path_of(checkpoint, name).text);
    if (!json_find(config, "model_input_names"))
        print_line(stderr, "warning: %s: transformers 4 computes other losses: want \"model_input_names\": "
                   "[\"input_ids\", \"attention_mask\"], which a checkpoint saved now has", config->where);
    json_free(config);
}

Tokenizer checkpoint_tokenizer(const char *checkpoint, int V) {
    if (dir_has_file(checkpoint, STATE)) {
        Json *state = checkpoint_open_state(checkpoint);
        const char *name = json_string(state, "tokenizer");
        int bytes = !strcmp(name, "bytes"), ids = !strcmp(name, "ids"), bpe = !strcmp(name, "bpe");
        REQUIRE(bytes || ids || bpe, "%s: tokenizer '%s', want 'bytes', 'ids' or 'bpe'", state->where, name);
        REQUIRE(!bpe || bpe_has_files(checkpoint), "%s: tokenizer 'bpe', but there is none beside it", state->where);
        json_free(state);
        warn_of_config(checkpoint);
        return bytes ? TOKENIZER_BYTES : ids ? TOKENIZER_IDS : tokenizer_open(checkpoint);
    }
    return V == 256 ? TOKENIZER_BYTES : tokenizer_find(checkpoint);
}

/* ---- optimizer.safetensors */

enum { STATE_PARTS = 4 };

/* Both moments, of Muon's tensors one momentum, and the parameters if model.safetensors has them rounded. Returns how
   many parts these are. */
static int list_state(Part part[STATE_PARTS], OptimizerKind optimizer, DType save_dtype, void *const memory[STATES]) {
    const WhichTensors which = optimizer == OPTIMIZER_MUON ? NO_MATRICES : ALL_TENSORS;
    int parts = 0;
    part[parts++] = (Part){ "exp_avg.", memory[STATE_M], F32, which };
    part[parts++] = (Part){ "exp_avg_sq.", memory[STATE_V], F32, which };
    if (optimizer == OPTIMIZER_MUON) part[parts++] = (Part){ "momentum_buffer.", memory[STATE_M], F32, MATRICES };
    if (save_dtype == BF16) part[parts++] = (Part){ "param.", memory[STATE_PARAM], F32, ALL_TENSORS };
    return parts;
}

/* ---- The directory */

void checkpoint_write(const char *dir, const Snapshot *s) {
    const GPTConfig *c = &s->model->config;
    const TensorTable *table = &s->model->master.table;
    const Part parameters = { "", s->host[STATE_PARAM], c->save_dtype, ALL_TENSORS };
    Part part[STATE_PARTS];
    const int parts = list_state(part, c->optimizer, c->save_dtype, s->host);
    write_config(path_of(dir, CONFIG).text, c, s->tokenizer);
    weights_write(path_of(dir, MODEL).text, table, &parameters, 1, c->V);
    weights_write(path_of(dir, OPTIMIZER).text, table, part, parts, c->V);
    write_state(path_of(dir, STATE).text, s);
    if (s->choices && *s->choices) file_write_text(path_of(dir, CHOICES).text, s->choices);
    for (int i = TOKENIZER_FILE; i < TOKENIZER_FILE + 2; i++) {
        char *text = tokenizer_file_text(s->tokenizer, names[i], c->T);
        if (text) file_write_text(path_of(dir, names[i]).text, text);
        free(text);
    }
    write_checksums(dir);
    directory_sync(dir);
}

void checkpoint_write_validation(const char *dir, const TrainState *state) {
    const Path path = path_of(dir, VALIDATION), new = path_of(dir, VALIDATION_NEW);
    FILE *file = file_create(new.text);
    fputs("{\n", file);
    write_validation(file, state);
    fputs("\n}\n", file);
    file_close_durably(file, new.text);
    file_rename(new.text, path.text);
}

void checkpoint_remove(const char *dir) {
    if (readlink(dir, &(char){0}, 1) >= 0) {
        REQUIRE(!unlink(dir), "%s: cannot remove the link: %s", dir, strerror(errno));
        return;
    }
    int error = 0;
    for (int i = 0; i < NAMES && !error; i++)
        if (unlink(path_of(dir, names[i]).text) && errno != ENOENT) error = errno;
    if (!error && rmdir(dir) && errno != ENOENT && errno != ENOTEMPTY && errno != EEXIST) error = errno;
    REQUIRE(!error, "%s: cannot remove: %s", dir, strerror(error));
}

int checkpoint_has_other_files(const char *dir) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), known = 0, all = 0;
    if (fd < 0 && (errno == ELOOP || errno == ENOTDIR)) return 1;
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    REQUIRE(directory, "%s: cannot open the directory: %s", dir, strerror(errno));
    for (struct dirent *entry; (entry = readdir(directory)); all++) {
        known += !strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..");
        for (int i = 0; i < NAMES; i++) known += !strcmp(entry->d_name, names[i]);
    }
    closedir(directory);
    return known < all;
}

const char *checkpoint_missing_file(const char *dir, int to_resume) {
    if (!dir_has_file(dir, CONFIG)) return CONFIG;
    if (!checkpoint_has_model(dir)) return MODEL;
    if (to_resume && !dir_has_file(dir, OPTIMIZER)) return OPTIMIZER;
    return to_resume && !dir_has_file(dir, STATE) ? STATE : NULL;
}

/* ---- Loading */

void checkpoint_load_choices(const char *checkpoint) {
    Path path = path_of(checkpoint, CHOICES);
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
    const Part parameters = { "", table->memory, F32, ALL_TENSORS };
    weights_read(model_path(checkpoint).text, table, &parameters, 1, model->config.V);
    gpt_cast_params(model);
}

/* The optimizer of the run; earlier versions had AdamW only. */
static OptimizerKind optimizer_of(const char *checkpoint) {
    Json *json = checkpoint_open_state(checkpoint);
    const Json *settings = json_member(json, "settings", JSON_OBJECT), *name = json_find(settings, "optimizer");
    const int kind = name ? choice_index(OPTIMIZER_NAMES, json_string(settings, "optimizer")) : OPTIMIZER_ADAMW;
    if (kind < 0) json_refuse(name, OPTIMIZER_NAMES);
    json_free(json);
    return (OptimizerKind)kind;
}

void checkpoint_load_optimizer(const char *checkpoint, const TrainState *state, GPT *model, Optimizer *optimizer) {
    const TensorTable *table = &model->master.table;
    const Path file = path_of(checkpoint, OPTIMIZER);
    const DType saved = weights_config(model_path(checkpoint).text).save_dtype;
    const OptimizerKind had = optimizer_of(checkpoint);
    const int is_other = had != model->config.optimizer;
    if (is_other)
        print_line(stdout, "%s: of another --optimizer: the momentum of the blocks' matrices starts from zero",
                   file.text);
    for (OptimizerState i = saved == F32 ? STATE_M : STATE_PARAM; i < STATES; i++) {
        void *memory[STATES] = {0};
        Part part[STATE_PARTS];
        memory[i] = optimizer_memory(optimizer, i);         /* sharded ones are read into the same memory */
        const int parts = list_state(part, had, saved, memory);
        if (i != STATE_PARAM) device_zero(memory[i], table->bytes);     /* Muon's matrices have no second moment */
        weights_read(file.text, table, part, parts, model->config.V);
        for (int k = 0; k < table->count && is_other && i != STATE_PARAM; k++)
            if (table->entry[k].matrices)
                device_zero((char *)memory[i] + table->entry[k].offset, tensor_bytes(*table->entry[k].field));
        if (i == STATE_PARAM) gpt_cast_params(model);
        optimizer_scatter(optimizer, i);
    }
    optimizer->step = state->optimizer_step;
}
