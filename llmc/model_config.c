#include "model_config.h"
#include <string.h>
#include "../kernels/check.h"
#include "checkpoint/checkpoint.h"

static DType dtype_named(const char *name) { return strcmp(name, "bf16") == 0 ? BF16 : F32; }

typedef struct { const char *option; int64_t given; int *is; } Size;
enum { SIZES = 5 };

static void list_sizes(const ModelOptions *o, GPTConfig *config, Size sizes[SIZES]) {
    const Size rows[SIZES] = {
        { "layers",   o->layers,   &config->L },
        { "heads",    o->heads,    &config->NH },
        { "channels", o->channels, &config->C },
        { "context",  o->context,  &config->T },
        { "vocab",    o->vocab,    &config->V },
    };
    memcpy(sizes, rows, sizeof rows);
}

GPTConfig model_to_train(const ModelOptions *o, const char *checkpoint, int are_bytes) {
    GPTConfig config = {0};
    Size sizes[SIZES];
    REQUIRE(gpt_named(o->model, &config), "--model %s: want one of %s", o->model, GPT_NAMES);
    config.V = are_bytes ? 256 : 50257;
    if (checkpoint) config = checkpoint_config(checkpoint);
    list_sizes(o, &config, sizes);
    for (Size *s = sizes; s < sizes + SIZES; s++) {
        if (!s->given) continue;
        REQUIRE(!checkpoint || *s->is == s->given, "%s: --%s is %d, the options want %lld; it must stay", checkpoint,
                s->option, *s->is, (long long)s->given);
        *s->is = (int)s->given;
    }
    REQUIRE(!are_bytes || config.V == 256, "%s: a vocabulary of %d, want 256: the tokens of a text are bytes",
            checkpoint ? checkpoint : "--vocab", config.V);
    config.dtype = dtype_named(o->dtype);
    config.save_dtype = dtype_named(o->save_dtype);
    config.deterministic = o->deterministic;
    gpt_check(&config);
    return config;
}

GPTConfig model_to_use(const ModelOptions *o, const char *checkpoint) {
    GPTConfig config = checkpoint_config(checkpoint);
    Size sizes[SIZES];
    config.dtype = dtype_named(o->dtype);
    list_sizes(o, &config, sizes);
    for (Size *s = sizes; s < sizes + SIZES; s++)
        REQUIRE(!s->given || s->given == *s->is, "--%s %lld: the model of %s has %d", s->option, (long long)s->given,
                checkpoint, *s->is);
    return config;
}
