/* reference.h - Models of test/reference: GPT2LMHeadModel's weights, logits, gradients and AdamW steps in float64
   (scripts/make_reference.py). For tests whose working directory is the repository's root. */
#pragma once
#include "models.h"

enum { FIRST = 1000003 };       /* the number of the first sequence of the reference's batch */

/* ---- A reference file */

typedef struct {
    SafeFile    file;           /* NAME.safetensors: the batch, and what is true of it */
    const char *path;
    char       *model;          /* NAME.model.safetensors: the parameters */
    GPTConfig  config;
    int        B, T, steps, target_count;
    double     learning_rate;
    Settings   settings;       /* AdamW's */
    int32_t   *tokens, *targets;
    double    *losses, *norms;      /* each step's, before the update and before clipping */
} Reference;

static inline double metadata(const Reference *r, const char *key) {
    const Json *value = json_find(json_find(r->file.shard[0].header, "__metadata__"), key);
    REQUIRE(value, "%s: no metadata \"%s\": run scripts/make_reference.py", r->path, key);
    return strtod(value->text, NULL);
}

static inline Reference reference_open(const char *path) {
    int stem = (int)(strlen(path) - strlen(".safetensors"));
    Reference r = { .file = safetensors_open(path), .path = path };
    r.model = test_keep(format_string("%.*s.model.safetensors", stem, path));
    r.config = (GPTConfig){ .L = (int)metadata(&r, "L"), .NH = (int)metadata(&r, "NH"), .C = (int)metadata(&r, "C"),
                            .T = (int)metadata(&r, "context"), .V = (int)metadata(&r, "V") };
    gpt_check(&r.config);
    r.B = (int)metadata(&r, "B");
    r.T = (int)metadata(&r, "T");
    r.steps = (int)metadata(&r, "steps");
    r.learning_rate = metadata(&r, "lr");
    r.settings = (Settings){ .beta1 = metadata(&r, "beta1"), .beta2 = metadata(&r, "beta2"), .eps = metadata(&r, "eps"),
                             .weight_decay = metadata(&r, "weight_decay"), .clip = metadata(&r, "max_norm") };
    r.tokens  = tensor_from(&r.file, "tokens",  "I32", 4, r.B * r.T);
    r.targets = tensor_from(&r.file, "targets", "I32", 4, r.B * r.T);
    r.losses  = tensor_from(&r.file, "losses",  "F64", 8, r.steps);
    r.norms   = tensor_from(&r.file, "norms",   "F64", 8, r.steps);
    for (int i = 0; i < r.B * r.T; i++) r.target_count += r.targets[i] >= 0;
    return r;
}

static inline void read_reference(GPT *m, const Reference *r) {
    params_read(r->model, &m->master, r->config.V);
    gpt_cast_params(m);
}

/* (B,T,V) */
static inline float *reference_logits(const Reference *r) {
    const int64_t count = (int64_t)r->B * r->T * r->config.V;
    double *file = tensor_from(&r->file, "logits", "F64", 8, count);
    float *logits = new_array(count, sizeof *logits);
    for (int64_t i = 0; i < count; i++) logits[i] = (float)file[i];
    return logits;
}

/* With dropout where the model has it; the batch begins with sequence b of the reference's. */
static inline void load(GPT *m, const int32_t *tokens, const int32_t *targets, int b) {
    gpt_load(m, tokens, targets, &(uint64_t){ FIRST + (uint64_t)b });
}

#define PLAIN   "test/reference/plain.safetensors"
#define AWKWARD "test/reference/awkward.safetensors"

/* What run_reference runs. */
typedef void ReferenceTest(const Reference *r, const char *attention);
static ReferenceTest *reference_test;
static const char *reference_path;
static enum { WITHOUT = 1, WITH = 2 } reference_kinds;      /* dropout */
#define RUN_REFERENCE(path, kinds, test) \
    (reference_path = path, reference_kinds = kinds, reference_test = test, test_run(#test " of " path, run_reference))

static const DType dtypes[] = { F32, BF16 };

/* In every data type of the linked backend, with every attention that takes it and the file's shape. */
static inline void each_attention(const char *path, float rate) {
    Reference r = reference_open(path);
    const int blocks = test_blocks;
    r.config.dropout = rate;
    r.config.dropout_seed = 5;
    for (int d = 0; d < 2; d++) {
        if (device_refuse_dtype(dtypes[d])) continue;
        r.config.dtype = dtypes[d];
        AttentionSpec spec = { .B = r.B, .Tq = r.T, .Tk = r.T, .NH = r.config.NH, .HS = r.config.C / r.config.NH,
                               .causal = 1, .scale = 1, .dtype = dtypes[d], .out_dtype = dtypes[d],
                               .dropout.rate = rate };
        for (int i = 0; attention_list[i]; i++) {
            const char *reason = attention_list[i]->refuse(&spec);
            if (reason) printf("  %s: no attention %s in %s: %s\n", path, attention_list[i]->name,
                               dtype_name(dtypes[d]), reason);
            else reference_test(&r, attention_list[i]->name);
            test_release(blocks);
        }
    }
    safetensors_close(&r.file);
}

static inline void run_reference(void) {
    if (reference_kinds & WITHOUT) each_attention(reference_path, 0);
    if (reference_kinds & WITH)    each_attention(reference_path, 0.2f);
}
