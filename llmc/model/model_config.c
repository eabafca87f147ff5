#include "model_config.h"
#include "../ranks/ranks.h"

/* Chunks of equal size: every rank has T / N tokens of a sequence. */
static void check_sharing(const GPTConfig *c) {
    const int N = c->context_parallel, unit = 2 * N;
    REQUIRE(comm_size % N == 0, "--context-parallel %d: want a divisor of the number of ranks, %d%s", N, comm_size,
            comm_size == 1 ? "; --gpus starts more" : "");
    REQUIRE(N == 1 || c->T % unit == 0, "--context %d: want a multiple of %d for --context-parallel %d", c->T, unit, N);
    REQUIRE(N == 1 || c->dropout == 0, "--context-parallel %d has no dropout; want --dropout 0", N);
}

GPTConfig model_config(Settings *s, const char *from, const GPTConfig *checkpoint, int V) {
    GPTConfig config, named;
    const char *model = s->model ? s->model : "d4";
    REQUIRE(gpt_named(model, &named), "--model %s: want one of %s", model, MODEL_NAMES);
    config = from ? *checkpoint : named;
    if (!from) config.V = V;
    const struct { const char *option; int64_t given; int *size, named; } sizes[] = {
        { "layers",   s->layers,   &config.L,  named.L },
        { "heads",    s->heads,    &config.NH, named.NH },
        { "channels", s->channels, &config.C,  named.C },
        { "context",  s->context,  &config.T,  0 },       /* 0: --model leaves it to the checkpoint */
        { "vocab",    s->vocab,    &config.V,  0 },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int has = *sizes[i].size, named_size = s->model ? sizes[i].named : 0;
        const int want = sizes[i].given ? (int)sizes[i].given : named_size;
        REQUIRE(!from || !want || has == want, "--%s %d: the model of %s has %d; remove --%s", sizes[i].option, want,
                from, has, sizes[i].given ? sizes[i].option : "model");
        if (sizes[i].given) *sizes[i].size = want;
    }
    if (!strcmp(s->dtype, "auto")) s->dtype = dtype_name(device_refuse_dtype(BF16) ? F32 : BF16);
    config.dtype = choice_index(DTYPE_NAMES, s->dtype);
    config.deterministic = s->deterministic;
    config.recompute = choice_index(RECOMPUTE_NAMES, s->recompute);
    config.optimizer = choice_index(OPTIMIZER_NAMES, s->optimizer);
    config.context_parallel = (int)s->context_parallel;
    config.dropout = (float)s->dropout;
    config.dropout_seed = (uint64_t)s->seed;
    const char *refusal = device_refuse_dtype(config.dtype);
    REQUIRE(!refusal, "--dtype %s: %s; want --dtype f32", s->dtype, refusal);
    config.matmul_dtype = strcmp(s->matmul_dtype, "fp8") ? config.dtype : E4M3;
    refusal = device_refuse_dtype(config.matmul_dtype);
    REQUIRE(!refusal, "--matmul-dtype fp8: %s; want --matmul-dtype bf16", refusal);
    REQUIRE(config.matmul_dtype != E4M3 || config.dtype == BF16, "--matmul-dtype fp8: want --dtype bf16, not %s",
            s->dtype);
    REQUIRE(from || config.C % config.NH == 0, "--heads %d: want a divisor of --channels %d", config.NH, config.C);
    gpt_check(&config);
    check_sharing(&config);
    return config;
}

char *recipe_choose(Settings *s, Option *table, const GPTConfig *config) {
    /* 12, 24, 36, 48 layers with AdamW: GPT-3 (arXiv 2005.14165), table 2.1; with Muon: the best at 124M, the others in
       AdamW's ratio to it. 700 steps and 512 Ki tokens as in llm.c; a fifth of short runs: 700 steps of 124M came to
       4.99 with it, to 5.07 with 6 % (kernels/HISTORY.md). */
    static const double rates[][2] = { { 6e-4, 4e-3 }, { 3e-4, 2e-3 }, { 2.5e-4, 1.7e-3 }, { 2e-4, 1.3e-3 } };
    GPTConfig named;
    if (!s->model || !gpt_named(s->model, &named) || named.L < 12) return NULL;
    const int64_t unit = (s->batch == BATCH_AUTO ? 1 : s->batch) * config->T * gpt_groups(config);
    const int64_t updates = ((1 << 19) + unit / 2) / unit, warmup = s->steps / 5;
    const struct { const char *name; double value; } values[] = {
        { "lr", rates[named.L / 12 - 1][config->optimizer] }, { "warmup", warmup < 700 ? (double)warmup : 700 },
        { "total-batch", (double)(updates ? updates * unit : unit) } };
    char *text = NULL, number[32];
    size_t size;
    FILE *file = string_open(&text, &size, "the recipe");
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        const Option *option = options_find(table, values[i].name);
        if (option->given) continue;
        snprintf(number, sizeof number, "%.15g", values[i].value);
        option_set(option, number);
        fprintf(file, "%s--%s %s", ftell(file) ? ", " : "", option->name, number);
    }
    fclose(file);
    return text;
}

void model_require_same(const GPTConfig *c, const Settings *s, const Option *table, const char *from,
                        int64_t sequences) {
    const int64_t sizes[] = { c->L, c->NH, c->C, c->T, c->V, c->untied, c->dtype, s->batch, sequences };
    char *options = settings_signature(table);
    ranks_require_same(xxh64(sizes, sizeof sizes), from ? "the model, config.json of the checkpoint,"
                                                        : "the vocabulary, of --tokenizer,");
    ranks_require_same(xxh64(options, strlen(options)), "an option, in state.json of the checkpoint,");
    free(options);
}

/* ---- Memory plan */

MemoryPlan memory_plan(const GPTConfig *config, const char *attention, int B, Purpose purpose) {
    int T = purpose == TRAIN ? gpt_local_tokens(config) : config->T;
    /* The maximum sizes of options and config.json multiply to 2^96 bytes, which would overflow. A token has at most
       16 C + 8 numbers in a block, as many in the scratch of training, and the rows of naive attention. */
    double numbers = (config->L + 2.0) * (16.0 * config->C + 8 + (double)config->NH * T);
    REQUIRE(4.0 * B * T * numbers < 0x1p63,
            "out of memory: --batch %d of %d tokens each needs more than any device has: "
            "want a smaller one, a shorter --context or a smaller model", B, T);
    const ActPlan acts = gpt_act_plan(config, attention, B, T, purpose);
    MemoryPlan plan = { .parameters = gpt_param_bytes(config, config->dtype), .workspace = acts.workspace,
                        .activations = acts.bytes - acts.workspace, .attention = acts.attention };
    /* the moments and the f32 parameters of BF16 are sharded */
    if (config->dtype != F32)
        plan.parameters += gpt_param_bytes(config, F32) / (size_t)(purpose == TRAIN ? comm_size : 1);
    if (purpose == TRAIN) {
        const OptimizerMemory memory = gpt_optimizer_memory(config);
        plan.gradients = gpt_param_bytes(config, F32) + memory.reduce;
        plan.optimizer = memory.m + memory.v + memory.scratch;
        plan.checkpoint = config->host_bytes;
    }
    plan.total = plan.parameters + plan.gradients + plan.optimizer + acts.bytes;
    if (!device_count()) plan.total += plan.checkpoint;
    return plan;
}

void memory_plan_print(const MemoryPlan *plan) {
    const DeviceInfo device = device_info();
    const struct { const char *what; size_t bytes; } rows[] = {
        { "parameters", plan->parameters }, { "gradients", plan->gradients }, { "optimizer", plan->optimizer },
        { "activations", plan->activations }, { "workspace", plan->workspace }, { "total", plan->total },
    };
    char text[32], total[32];
    printf("memory plan\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        printf("  %-18s %12s\n", rows[i].what, bytes_text((double)rows[i].bytes, text));
    printf("  %-18s %12s of %s\n", "free", bytes_text((double)device.free_bytes, text),
           bytes_text((double)device.total_bytes, total));
    if (plan->checkpoint)
        printf("  %-18s %12s of host memory%s\n", "checkpoint", bytes_text((double)plan->checkpoint, text),
               device_count() ? "" : ", counted above");
}

void recompute_plan_print(const GPTConfig *config, const char *attention, int B) {
    static const char *const levels[][2] = {                /* RECOMPUTE_NAMES */
        { "none", "" }, { "gelu", "repeats the GELU" }, { "layernorm", "and the layer normalisations" },
        { "block", "repeats the forward pass of the blocks" } };
    static const size_t gpus[] = { 24, 40, 80 };        /* GiB */
    GPTConfig c = *config;
    char total[32];
    printf("  %-18s %12s  fits, in %s, a GPU of 24, 40, 80 GiB\n", "--recompute", "total", dtype_name(config->dtype));
    for (c.recompute = RECOMPUTE_NONE; c.recompute <= RECOMPUTE_BLOCK; c.recompute++) {
        const size_t bytes = memory_plan(&c, attention, B, TRAIN).total;
        const size_t on_gpu = bytes - (device_count() ? 0 : c.host_bytes);      /* the checkpoint is on the host */
        printf("    %-16s %12s", levels[c.recompute][0], bytes_text((double)bytes, total));
        for (int i = 0; i < 3; i++) printf("%6s", on_gpu <= (gpus[i] << 30) / 20 * 19 ? "yes" : "no");
        printf("  %s\n", levels[c.recompute][1]);
    }
}

/* ---- --batch auto */

int64_t batch_largest(const GPTConfig *config, const char *attention, Purpose purpose, int64_t free_bytes,
                      int64_t sequences, int64_t max, int is_dry_run) {
    int64_t largest = 0;
    for (int64_t batch = 1; batch <= max; batch++) {
        if (sequences ? sequences % batch : batch & (batch - 1)) continue;
        double misfits = memory_plan(config, attention, (int)batch, purpose).total > (size_t)(free_bytes / 20 * 19);
        if (!is_dry_run) ranks_sum(&misfits, 1);
        if (misfits > 0) break;
        largest = batch;
    }
    return largest;
}

void batch_choose(Settings *s, const GPTConfig *config, Purpose purpose) {
    if (s->batch != BATCH_AUTO) return;
    const int64_t T = config->T, groups = gpt_groups(config);
    const int64_t sequences = s->total_batch / T / groups, update = (1 << 16) / gpt_local_tokens(config);
    const int divides = s->total_batch % (T * groups) == 0;      /* otherwise no batch divides them */
    const int64_t max = !divides ? 1 : !device_count() ? 16 : s->total_batch ? 1 << 20 : update < 1 ? 1 : update;
    s->batch = batch_largest(config, s->attention, purpose, device_info().free_bytes, sequences, max, s->dry_run);
    if (!s->batch) s->batch = 1;                    /* memory_plan_check fails */
    printf("--batch auto -> %lld\n", (long long)s->batch);
}

int64_t update_sequences(Settings *s, int T, int is_resume) {
    int64_t batch = s->batch, groups = comm_size / s->context_parallel;
    if (!s->total_batch && comm_size == 1) return batch;
    if (!s->total_batch) s->total_batch = batch * T * (is_resume ? 1 : groups);     /* 0: the checkpoint had one rank */
    const int64_t sequences = s->total_batch / T;
    while (is_resume && batch > 1 && sequences % (batch * groups)) batch--;
    REQUIRE(s->total_batch % (batch * T * groups) == 0, "--total-batch %lld: want a multiple of --batch x "
            "--context%s%s = %lld", (long long)s->total_batch, comm_size > 1 ? " x the ranks" : "",
            s->context_parallel > 1 ? " / --context-parallel" : "", (long long)(batch * T * groups));
    if (batch != s->batch)
        printf("--batch %lld -> %lld: %lld sequences of an update on %d ranks\n", (long long)s->batch, (long long)batch,
               (long long)sequences, comm_size);
    s->batch = batch;
    return sequences;
}

void memory_plan_check(const MemoryPlan *plan, int B, Purpose purpose) {
    const double free_bytes = (double)device_info().free_bytes;
    char need[32], have[32];
    REQUIRE((double)plan->total <= free_bytes, "out of memory: %s needs %s, %s are free: want %s%s--attention flash "
            "rather than naive, a smaller --model or a shorter --context",
            purpose == GENERATE ? "a sample" : format_string("--batch %d", B), bytes_text((double)plan->total, need),
            bytes_text(free_bytes, have), purpose == GENERATE ? "" : "a smaller batch, ",
            purpose == TRAIN ? "--recompute (the table above), " : "");
}
