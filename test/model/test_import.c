/* test_import.c - Models written by transformers (scripts/make_hf_models.py), in every supported layout;
   indexes of shards with a flaw; heads that are not tied; parameters saved in BF16. */
#include "../run/checkpoints.h"

#define HF "test/reference/hf/"
enum { B = 2, T = 9, CONTEXT = 12 };

static const struct { const char *name; int L, NH, C, V, untied; } models[] = {
    { "f32",         2, 2, 16,  65, 0 }, { "f16-bare", 2, 4, 16, 37, 0 },          { "bf16-shards", 2, 2, 16, 101, 0 },
    { "untied",      2, 2, 16,  67, 1 }, { "untied-f16-shards", 1, 1, 16, 50, 1 }, { "bf16-bare",   1, 1, 64,   3, 0 },
};
enum { MODELS = COUNT(models) };

/* ---- Against transformers */

static int32_t *load_batch(GPT *m, const SafeFile *expected) {
    int32_t *ids = tensor_from(expected, "ids", "I32", 4, B * T), targets[B * T];
    for (int i = 0; i < B * T; i++) targets[i] = i % T == T - 1 ? -1 : ids[i + 1];
    gpt_load(m, ids, targets, NULL);
    return ids;
}

/* Largest error of a gradient that was added `times` times. */
static double gradient_error(const GPT *m, const SafeFile *expected, const char *name, Tensor gradient, float times) {
    int64_t V = m->config.V, C = m->config.C, nonzero = 0;
    float *got = download(gradient), *want = tensor_from(expected, name, "F32", 4, V * C);
    for (int64_t i = 0; i < V * C; i++) want[i] *= times;
    double error = error_of(got, want, V * C);
    for (int64_t i = V * C; i < m->config.Vp * C; i++) nonzero += got[i] != 0;
    EXPECT(!nonzero, "%s: %s: %lld numbers in the padding", expected->path, name, (long long)nonzero);
    return error;
}

static void compare(int i, const char *path) {
    char *dir = test_keep(run_dir_resolve(path, NULL)), *file = STRING(HF "%s.expected.safetensors", models[i].name);
    SafeFile expected = safetensors_open(file);
    GPTConfig config = checkpoint_config(dir);
    EXPECT(config.L == models[i].L && config.NH == models[i].NH && config.C == models[i].C && config.T == CONTEXT &&
           config.V == models[i].V && config.untied == models[i].untied,
           "%s: %d layers, %d heads, %d channels, context %d, vocabulary %d, untied %d", path, config.L, config.NH,
           config.C, config.T, config.V, config.untied);
    GPT *m = new_model(config, "auto", B, T, TRAIN);
    checkpoint_load_model(dir, m);
    int32_t *ids = load_batch(m, &expected);
    float *all = tensor_from(&expected, "logits", "F32", 4, B * T * config.V);
    for (int pass = 0; pass < 3; pass++) {      /* the second leaves nothing of the first, the third adds */
        const Into into = pass < 2 ? OVERWRITE : ACCUMULATE;
        const float times = pass < 2 ? 1 : 2;
        gpt_forward(m);
        const double logits = error_of(logits_of(m), all, B * T * config.V);
        gpt_backward(m, 1.0f / (B * (T - 1)), into, NULL, NULL);
        const double wte = gradient_error(m, &expected, "grad.transformer.wte.weight", m->grads.wte, times);
        const double head = !config.untied ? 0 : gradient_error(m, &expected, "grad.lm_head.weight", m->grads.lm_head,
                                                                times);
        float *losses = download(m->acts.losses), *want = tensor_from(&expected, "loss", "F32", 4, 1);
        double loss = 0;
        for (int k = 0; k < B * T; k++) loss += losses[k] / (B * (T - 1));
        loss = fabs(loss / *want - 1);
        printf("  %-17s logits off by %.1e, loss %.1e, gradient of wte %.1e, of lm_head %.1e\n", models[i].name, logits,
               loss, wte, head);
        EXPECT(logits <= 1e-5 && loss <= 1e-5 && wte <= 1e-5 && head <= 1e-5, "%s: want at most 1e-5", path);
    }

    float last[128];
    gpt_set_batch(m, 1, T);
    gpt_load(m, ids, NULL, NULL);
    gpt_forward(m);
    device_download(last, gpt_last_logits(m).data, (size_t)config.V * sizeof *last);
    EXPECT(error_of(last, all + (T - 1) * config.V, config.V) <= 1e-5, "%s: the last logits", path);
    safetensors_close(&expected);
}

TEST(models_of_transformers) {
    for (int i = 0; i < MODELS; i++) compare(i, STRING(HF "%s", models[i].name));
    compare(0, HF "f32/model.safetensors");
    compare(2, HF "bf16-shards/model.safetensors.index.json");
}

/* A longer context repeats the rows of wpe, a shorter one has the first of them. */
static void other_context(int T) {
    GPTConfig config = checkpoint_config(HF "f32");
    config.T = T;
    GPT *m = new_model(config, "auto", 1, config.T, EVALUATE);
    checkpoint_load_model(HF "f32", m);
    const int C = config.C;
    float *wpe = download(m->params.wpe);
    SafeFile file = safetensors_open(HF "f32/model.safetensors");
    float *rows = tensor_from(&file, "transformer.wpe.weight", "F32", 4, CONTEXT * C);
    for (int t = 0; t < config.T; t++)
        EXPECT(!memcmp(wpe + t * C, rows + t % CONTEXT * C, (size_t)C * sizeof *wpe), "row %d of wpe", t);
    safetensors_close(&file);
}

TEST(other_contexts) {
    other_context(2 * CONTEXT + 5);
    other_context(CONTEXT - 3);
}

/* ---- Copies with a flaw */

static char *copy_model(const char *name, const char *to) {
    char *dir = IN_SCRATCH("%s", to), *command = STRING("cp -r '" HF "%s' '%s'", name, dir);
    EXPECT(!system(command), "%s", command);
    return dir;
}

static void read_model(const char *dir) {
    checkpoint_load_model(dir, new_model(checkpoint_config(dir), "auto", 1, 2, EVALUATE));
}

#define INDEX "model.safetensors.index.json"
#define SHARD "`model-00001-of-00003.safetensors`"
static const Damage bad_indexes[] = {
    { INDEX, SHARD, "`../model-00001-of-00003.safetensors`", read_model,
      "00003.safetensors`, want a file beside the index" },
    { INDEX, SHARD, "`.safetensors`", read_model, "is `.safetensors`, want a file beside" },
    { INDEX, SHARD, "`a\\\\b.safetensors`", read_model, "is `a\\b.safetensors`, want a file beside" },
    { INDEX, SHARD, "`sub/x.safetensors`", read_model, "is `sub/x.safetensors`, want a file beside" },
    { INDEX, SHARD, "``", read_model, "is ``, want a file beside" },
    { INDEX, SHARD, "`config.json`", read_model, "is `config.json`, want a file beside" },
    { INDEX, SHARD, "`model-00009-of-00003.safetensors`", read_model,
      "model-00009-of-00003.safetensors: cannot open: No such file" },
    { INDEX, SHARD, "`model-00003-of-00003.safetensors`", read_model, "want model-00003-of-00003.safetensors" },
    { INDEX, "`weight_map`", "`weights`", read_model, "`weight_map` is missing" },
    { INDEX, "`weight_map`: {", "`weight_map`: {}, `x`: {", read_model, "`weight_map` names 0 tensors" },
    { INDEX, "`weight_map`: {", "`weight_map`: [], `x`: {", read_model, "`weight_map` is an array, want an object" },
    { INDEX, "`weight_map`: {", "`weight_map`: {`transformer.more`: " SHARD ",", read_model,
      "names 29 tensors, its files hold 28" },
    { INDEX, "transformer.wpe.weight", "transformer.wpe.height", read_model,
      "transformer.wpe.height is in no file, want model-0" },
    { INDEX, "}\n}", "}", read_model, "index.json: byte " },
    { INDEX, SHARD, "5", read_model, "model.safetensors.index.json: `weight_map.transformer." },
};

TEST(bad_indexes_are_refused) {
    char *dir = copy_model("bf16-shards", "indexes");
    expect_damage_refused(dir, bad_indexes, COUNT(bad_indexes));
    /* a tensor in two files: the second file again in the place of the third */
    char *command = STRING("cp '%s/model-00002-of-00003.safetensors' '%s/model-00003-of-00003.safetensors'", dir, dir);
    EXPECT(!system(command), "%s", command);
    EXPECT_FAILS("its files hold", read_model(dir));
    put_text(STRING("%s/" INDEX, dir), "{\"weight_map\":{\"a\":\"a.safetensors\",\"b\":\"b.safetensors\"}}");
    static const char one[] = "{" TENSOR("a", "F32", "1", 0, 4) "}";
    put_safetensors(STRING("%s/a.safetensors", dir), one, NULL, 4);
    put_safetensors(STRING("%s/b.safetensors", dir), one, NULL, 4);
    EXPECT_FAILS("index.json: the tensor a occurs twice, in ", read_model(dir));
    put_safetensors(STRING("%s/b.safetensors", dir), one, NULL, 3);
    EXPECT_FAILS("b.safetensors: the tensors have 4 bytes, the data has 3", read_model(dir));
}

/* Numbers of a tensor in a file, from number `at` on, changed. */
static void set_numbers(const char *path, const char *name, int at, const uint16_t *number, int count) {
    SafeFile file = safetensors_open(path);
    const SafeTensor *t = safetensors_find(&file, name);
    EXPECT(t, "%s has no %s", path, name);
    long place = t->data - file.shard[0].map.bytes + 2 * at;
    safetensors_close(&file);
    FILE *to = fopen(path, "r+b");
    fseek(to, place, SEEK_SET);
    fwrite(number, sizeof *number, (size_t)count, to);
    fclose(to);
}

TEST(nonfinite_and_other_models_are_refused) {
    static const struct { const char *model, *file, *tensor; uint16_t bits; const char *part; } nonfinite[] = {
        { "f16-bare", "model.safetensors", "wpe.weight", 0x7c00,
          "model.safetensors: wpe.weight holds a NaN or an infinity (number 5)" },
        { "f16-bare", "model.safetensors", "h.1.ln_1.bias", 0xfe00, "h.1.ln_1.bias holds a NaN or an infinity" },
        { "bf16-bare", "model.safetensors", "wpe.weight", 0xff80, "tensors: wpe.weight holds a NaN or an infinity" },
        { "untied-f16-shards", "model-00003-of-00003.safetensors", "transformer.ln_f.bias", 0xfc01,
          "model-00003-of-00003.safetensors: transformer.ln_f.bias holds" },
    };
    for (int i = 0; i < COUNT(nonfinite); i++) {
        char *dir = copy_model(nonfinite[i].model, STRING("nonfinite-%d", i));
        read_model(dir);
        set_numbers(STRING("%s/%s", dir, nonfinite[i].file), nonfinite[i].tensor, 5, &nonfinite[i].bits, 1);
        EXPECT_FAILS(nonfinite[i].part, read_model(dir));
    }
    char *dir = copy_model("f32", "bare");
    unlink(STRING("%s/config.json", dir));
    EXPECT_FAILS("config.json: cannot open: No such file", checkpoint_config(dir));
    static const struct { const char *header; size_t bytes; const char *part; } others[] = {
        { "{" TENSOR("wte.weight", "F32", "1,64", 0, 256) "}", 256, "wte.weight or wpe.weight is missing: is it a" },
        { "{" TENSOR("wte.weight", "F32", "4294967297,0", 0, 0) "," TENSOR("wpe.weight", "F32", "1", 0, 4) "}", 4,
          "wte.weight is F32 (4294967297,0), want two dimensions" },
        { "{" TENSOR("wte.weight", "F32", "1,64", 0, 256) "," TENSOR("wpe.weight", "F32", "1,64", 256, 512) "}", 512,
          "is 1, want 0 as in the tensors" },
    };
    dir = copy_model("bf16-bare", "none");
    for (int i = 0; i < COUNT(others); i++) {
        put_safetensors(STRING("%s/model.safetensors", dir), others[i].header, NULL, others[i].bytes);
        EXPECT_FAILS(others[i].part, checkpoint_config(dir));
    }
}

/* ---- Tied or not */

TEST(config_and_head_agree) {
    char *dir = copy_model("untied", "tied-by-config"), *config = STRING("%s/config.json", dir);
    edit(HF "untied/config.json", config, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    EXPECT(checkpoint_config(dir).untied, "a head that differs is its own, whatever config.json says");
    edit(HF "untied/config.json", config, "\"tie_word_embeddings\"", "\"x\"");
    EXPECT(checkpoint_config(dir).untied, "and when it says nothing");
    dir = copy_model("f32", "untied-by-config");
    edit(HF "f32/config.json", STRING("%s/config.json", dir), "\"tie_word_embeddings\": true",
         "\"tie_word_embeddings\": false");
    EXPECT_FAILS("the tensor lm_head.weight is missing", read_model(dir));
    GPTConfig tied = checkpoint_config(HF "f32"), untied = tied;
    untied.untied = 1;
    EXPECT(gpt_parameter_count(&untied) - gpt_parameter_count(&tied) == 65 * 16, "the head is counted");
    EXPECT(gpt_flops_per_token(&untied) == gpt_flops_per_token(&tied), "a table that is looked up costs nothing");
}

/* ---- Out again */

static Trainer *loaded(const char *dir) {
    Trainer *t = new_trainer(checkpoint_config(dir), B, T);
    checkpoint_load_model(dir, &t->model);
    return t;
}

/* Any numbers, also of a model in F16: a resume has the same bits in weights and moments. */
static void save_and_resume(const char *model) {
    static const float hard[] = { 1 + 0x1p-8f, 0x1p-133f, 0x1p-149f, -0x1.fffffep127f, -0.0f };
    Trainer *saved = loaded(STRING(HF "%s", model));
    tiny_fill(saved, 7);
    device_upload(saved->model.master.wpe.data, hard, sizeof hard);
    char *dir = save_step(IN_SCRATCH("out-%s", model), saved, 9);
    Trainer *resumed = loaded(dir);
    EXPECT(resumed->model.config.untied == saved->model.config.untied, "%s: tied as before", dir);
    checkpoint_load_optimizer(dir, &(TrainState){0}, OPTIMIZER_ADAMW, &resumed->optimizer);
    expect_equal_rows(&saved->model.master, &resumed->model.master, "parameters");
    expect_equal_moments(&saved->optimizer, &resumed->optimizer);

    SafeFile file = safetensors_open(STRING("%s/model.safetensors", dir));
    const SafeTensor *head = safetensors_find(&file, "lm_head.weight");
    EXPECT(!head == !saved->model.config.untied, "%s: the head is in the file when it is untied", dir);
    EXPECT(!head || head->dim[0] == saved->model.config.V, "%s: and has V rows", dir);
    for (int i = 0; i < file.count; i++)
        EXPECT(!strcmp(file.tensor[i].dtype, "F32"), "%s is %s", file.tensor[i].name, file.tensor[i].dtype);
    const char *text = text_of(STRING("%s/config.json", dir));
    EXPECT(strstr(text, quoted(head ? "`tie_word_embeddings`: false" : "`tie_word_embeddings`: true")), "%s", text);
    safetensors_close(&file);
}

TEST(saved_and_resumed) {
    save_and_resume("f32");
    save_and_resume("untied");
    save_and_resume("untied-f16-shards");
}

/* ---- Every F16 and every BF16 */

/* The tensors of a file of zeros, in two bytes a number. */
static void write_halves(const char *from, const char *to, const char *dtype) {
    SafeFile file = safetensors_open(from);
    SafeHeader header = {0};
    for (int i = 0; i < file.count; i++) {
        SafeTensor t = file.tensor[i];
        t.dtype = dtype;
        t.bytes /= 2;
        safetensors_add(&header, t);
    }
    safetensors_end(&header);
    char *bytes = new_array((int64_t)header.size + header.end, 1);
    memcpy(bytes, header.text, header.size);
    put(to, bytes, header.size + (size_t)header.end);
    safetensors_close(&file);
    free(header.text);
}

/* A model's file whose wpe holds all 65536 bit patterns, with zeros for the non-finite ones. */
static void every_number(const char *dtype, int exponent_bits) {
    static uint16_t number[65536];
    char *zeros = IN_SCRATCH("zeros.safetensors"), *path = IN_SCRATCH("every-%s.safetensors", dtype);
    const uint32_t mantissa_bits = 15 - (uint32_t)exponent_bits, ones = (1u << exponent_bits) - 1;
    GPT *m = new_model((GPTConfig){ .L = 1, .NH = 1, .C = 16, .T = 4096, .V = 3 }, "auto", 1, 1, EVALUATE);
    void *memory = new_array((int64_t)m->master.table.bytes, 1);
    weights_write(zeros, &m->master.table, &(Part){ "", "", memory }, 1, 3);
    write_halves(zeros, path, dtype);
    for (uint32_t bits = 0; bits < 65536; bits++)
        number[bits] = (bits >> mantissa_bits & ones) == ones ? 0 : (uint16_t)bits;
    set_numbers(path, "transformer.wpe.weight", 0, number, COUNT(number));
    params_read(path, &m->master, 3);
    float *got = download(m->master.wpe);
    int wrong = 0;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        uint32_t exponent = bits >> mantissa_bits & ones, mantissa = bits & ((1u << mantissa_bits) - 1);
        int min = 1 - (int)(ones >> 1) - (int)mantissa_bits;         /* exponent of a subnormal's last place */
        double want = exponent ? ldexp((double)(mantissa + (1u << mantissa_bits)), (int)exponent - 1 + min)
                               : ldexp((double)mantissa, min);
        if (bits >> 15) want = -want;
        if (exponent == ones) want = 0;
        wrong += got[bits] != want || !signbit(got[bits]) != !signbit(want);
    }
    EXPECT(!wrong, "%d of 65536 %s are wrong", wrong, dtype);
}

TEST(every_f16_and_bf16_is_exact) {
    every_number("F16", 5);
    every_number("BF16", 8);
}

int main(void) {
    scratch_open();
    test_device_open((DeviceOptions){0});
    return test_all();
}
