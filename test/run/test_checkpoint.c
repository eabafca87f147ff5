/* test_checkpoint.c - Checkpoints: round trips bit for bit, models of other programs, damage, run directories, files of
   tokenizers. */
#include "../../llmc/text/bpe_files.h"
#include "checkpoints.h"
#include <float.h>
#include "../../kernels/autotune.h"

static Trainer *trainer;         /* that is saved; loads go into others */

static void expect_setting(const char *checkpoint, const char *key, const char *want) {
    Json *state = checkpoint_open_state(checkpoint);
    const Json *got = json_find(json_find(state, "settings"), key);
    EXPECT(got && want ? !strcmp(got->text, want) : !got && !want, "%s is %s", key, got ? got->text : "none");
    json_free(state);
}

TEST(test_checkpoint_round_trip) {
    char *out = IN_SCRATCH("new/out");
    static const double losses[] = { 1 / 3.0, DBL_MAX, DBL_TRUE_MIN, 0, 0.1 + 0.2 };
    for (int i = 0; i < 6; i++) {
        TrainState want = state_of(i);
        want.val_step = i - 1;
        want.spikes.nonfinite = i;
        if (i) want.best = (BestLoss){ i, losses[i % 5], i & 1, 7 * i, 3 * i };
        want.spikes.spikes = 2 * i;
        want.spikes.count = i < 5 ? i : SPIKE_WINDOW;
        for (int k = 0; k < want.spikes.count; k++) {
            want.spikes.loss[k] = losses[(i + k) % 5] * (1 - 1 / (k + 7.0));
            want.spikes.log_norm[k] = -1 / (k + 3.0);
        }
        want.optimizer_step = trainer->optimizer.step = i + 1;
        EXPECT(!*save_state(out, trainer, &want), "step %d", i);
        char *dir = test_keep(run_dir_find(out, TO_RESUME, NULL));
        EXPECT(!strncmp(dir, out, strlen(out)), "found %s", dir);
        GPTConfig config = checkpoint_config(dir);
        EXPECT(!memcmp(&config, &trainer->model.config, offsetof(GPTConfig, dropout)), "config");
        const TrainState got = expect_checkpoint(dir, trainer, "what was saved");
        EXPECT(!memcmp(&got, &want, sizeof got), "the state of step %d", i);
        expect_setting(dir, "model", test_model);
        expect_setting(dir, "data", test_data);
        expect_setting(dir, "val", "");
        expect_setting(dir, "out", NULL);
        Json *json = checkpoint_open_state(dir);
        const char *train = json_string(json, "train"), *val = json_string(json, "val");
        EXPECT(!strncmp(train, "180 tokens, xxh64 ", 18) && !strncmp(val, "20 tokens, xxh64 ", 17)
               && strcmp(train + 18, val + 17), "%s and %s", train, val);
        EXPECT(checkpoint_tokenizer(dir, 65) == TOKENIZER_BYTES, "the tokenizer");
        json_free(json);
    }
    /* PyTorch's names of the first and the second moments; of the layouts, a model of transformers is the check */
    SafeFile file = safetensors_open(IN_SCRATCH("new/out/step-00000003/optimizer.safetensors"));
    const SafeTensor *m = safetensors_find(&file, "exp_avg.transformer.wte.weight");
    const SafeTensor *v = safetensors_find(&file, "exp_avg_sq.transformer.wte.weight");
    float *first = download(trainer->optimizer.m), *second = download(trainer->optimizer.v);
    EXPECT(m && v && !memcmp(m->data, first, (size_t)m->bytes) && !memcmp(v->data, second, (size_t)v->bytes),
           "the moments of wte");
    safetensors_close(&file);
}

/* ---- Optimizers */

static const OptimizerState moments[] = { STATE_M, STATE_V };

static Trainer *filled_trainer(OptimizerKind kind, uint32_t seed) {
    GPTConfig config = { .L = 2, .NH = 2, .C = 16, .T = 7, .V = 65, .optimizer = kind };
    gpt_check(&config);
    Trainer *t = new_trainer(config, 1, 7);
    fill(&t->model.master, config.V, seed);
    for (int i = 0; i < COUNT(moments); i++) {
        void *memory = optimizer_memory(&t->optimizer, moments[i]);
        fill_memory(&t->model.master.table, memory, config.V, seed + 1 + (uint32_t)i);
        optimizer_scatter(&t->optimizer, moments[i]);
    }
    return t;
}

static float *flat_moments(Trainer *t, OptimizerState which) {
    const int64_t count = tensor_count(flat_params(&t->model.master));
    return download(tensor_of(optimizer_gather(&t->optimizer, which), F32, 1, count));
}

/* Saved with either optimizer, loaded with either: what both have is the same, other momentum of matrices is zero. */
TEST(moments_of_another_optimizer) {
    for (int pair = 0; pair < 4; pair++) {
        const OptimizerKind from = (OptimizerKind)(pair / 2), to = (OptimizerKind)(pair % 2);
        Trainer *saved = filled_trainer(from, 7), *loaded = filled_trainer(to, 70);
        test_optimizer = from == OPTIMIZER_MUON ? "muon" : "adamw";
        char *dir = save_step(IN_SCRATCH("optimizers-%d", pair), saved, 1);
        checkpoint_load_optimizer(dir, &(TrainState){0}, from, &loaded->optimizer);
        for (int i = 0; i < COUNT(moments); i++) {
            float *got = flat_moments(loaded, moments[i]), *want = flat_moments(saved, moments[i]);
            for (int k = 0; k < saved->model.master.table.count; k++) {
                const TensorEntry *e = &saved->model.master.table.entry[k];
                const size_t first = e->offset / sizeof *want, bytes = tensor_bytes(*e->field);
                if (e->matrices && moments[i] == STATE_V && to == OPTIMIZER_MUON) continue;
                if (e->matrices && from != to) memset(want + first, 0, bytes);
                EXPECT(!memcmp(got + first, want + first, bytes), "%s: moment %d of %s", test_optimizer, i, e->name);
            }
        }
    }
    test_optimizer = "adamw";
}

/* ---- Models of other programs */

static void load_config(const char *dir) { checkpoint_config(dir); }
static void load_state(const char *dir) { checkpoint_load_state(dir); }
static void load_optimizer(const char *dir) {
    checkpoint_load_optimizer(dir, &(TrainState){0}, OPTIMIZER_ADAMW, &trainer->optimizer);
}
static void load_model(const char *dir) { checkpoint_load_model(dir, &trainer->model); }
static void load_tokenizer(const char *dir) { bpe_free(checkpoint_tokenizer(dir, 65)); }
static void verify(const char *dir) { checkpoint_verify(dir, 1); }

#define META "`__metadata__`:{`format`:`pt`}"
#define EMPTY(name, dtype) TENSOR(name, dtype, "0", 0, 0)

TEST(models_of_other_programs) {
    char *dir = save_step(IN_SCRATCH("foreign"), trainer, 1), *path = STRING("%s/model.safetensors", dir);
    char *good = IN_SCRATCH("good.safetensors");
    EXPECT(rename(path, good) == 0, "%s", path);
    rewrite(good, path, META, EMPTY("h.0.attn.bias", "BOOL") "," EMPTY("transformer.h.1.attn.masked_bias", "F32"));
    expect_checkpoint(dir, trainer, "masks as tensors");

    FileMap map = file_map(good);
    const int end = (int)map.size - 8 - (map.bytes[0] | map.bytes[1] << 8), table = 65 * 16 * 4;
    file_unmap(map);
    char *head = STRING("`lm_head.weight`:{`dtype`:`F32`,`shape`:[65,16],`data_offsets`:[%d,%d]}", end, end + table);
    uint32_t *bits = download(trainer->model.params.wte);
    FILE *file = fopen(good, "ab");
    fwrite(bits, 1, (size_t)table, file);
    fclose(file);
    rewrite(good, path, META, head);
    expect_checkpoint(dir, trainer, "a head that equals wte");
    bits[649] ^= 1;
    file = fopen(path, "r+b");
    fseek(file, -table, SEEK_END);
    fwrite(bits, 1, (size_t)table, file);
    fclose(file);
    EXPECT_FAILS("unexpected tensor lm_head.weight", load_model(dir));
}

/* ---- Damaged files */

#define SHAPE_OF(name, shape) name ".weight`:{`dtype`:`F32`,`shape`:[" shape "]"
static const Damage damage[] = {           /* test_malformed has other values of each member */
    { "config.json", "`n_layer`: 2", "`n_layer`: 0", load_config,
      "config.json: `n_layer` is 0, want 2 as in the tensors" },
    { "config.json", "`n_head`: 2", "`n_head`: 3", load_config,
      "config.json: model: 16 channels, want a multiple of the 3 heads" },
    { "config.json", "gelu_new", "gelu_pytorch", load_config, "is `gelu_pytorch`, want gelu_new" },
    { "config.json", "`n_embd`", "`n_emb`", load_config, "`n_embd` is missing" },
    { "config.json", "`gpt2`", "`llama`", load_config, "`model_type` is `llama`, want gpt2" },
    { "config.json", "model_type", "model", load_config, "`model_type` is missing" },
    { "config.json", "inverse_layer_idx`: false", "inverse_layer_idx`: true", load_config, "is true, want false" },
    { "config.json", "cross_attention`: false", "cross_attention`: 0", load_config, "is 0, want false" },
    { "config.json", "attn_weights`: true", "attn_weights`: `true`", load_config, "is `true`, want true" },
    { "config.json", "1e-05", "1e-6", load_config, "`layer_norm_epsilon` is 1e-6, want 1e-05" },
    { "config.json", "embeddings`: true", "embeddings`: `true`", load_config,
      "`tie_word_embeddings` is `true`, want true or" },
    { "config.json", "{", "{`n_inner`: 41,", load_config, "`n_inner` is 41, want an integer from 64 to 64" },
    { "config.json", "}", "", load_config, "config.json: byte " },
    { "state.json", "`step`: 3", "`step`: -1", load_state, "state.json: `step` is -1" },
    { "state.json", "`tokens`: 63", "`tokens`: 9223372036854775807", load_state, "`tokens` is 9223372036854775807" },
    { "state.json", "`loss`: 0.5", "`loss`: `0.5`", load_state, "`best.loss` is `0.5`, want a number" },
    { "state.json", "`val_step`", "`step`", load_state, "`val_step` is missing" },
    { "state.json", "`val_step`: 3", "`val_step`: -2", load_state, "`val_step` is -2" },
    { "state.json", "`nonfinite`: 0", "`nonfinite`: 99", load_state, "`nonfinite` is 99" },
    { "state.json", "loss`: [3.25", "loss`: [null", load_state, "`window_loss` is null, want a number" },
    { "state.json", "loss`: [3.25, 3]", "loss`: 5", load_state, "window_loss` is 5, want an array" },
    { "state.json", "norm`: [0.5, 1]", "norm`: [1]", load_state, "window_log_norm` has 1 numbers, want 2" },
    { "state.json", "`bytes`", "`words`", load_tokenizer, "state.json: `tokenizer` is `words`, want bytes|ids|bpe" },
    { "state.json", "`best`: {", "`best`: 5, `b`: {", load_state, "`best` is 5, want an object" },
    { "state.json", "`extra`: 1", "`extra`: 2", load_state, "`best.extra` is 2" },
    { "state.json", "`since`: 0", "`sinc`: 0", load_state, "`best.since` is missing" },
    { "state.json", "`loss`: 0.5", "`loss`: null", load_state, "`best.loss` is null, want a number" },
    { "state.json", "{", "", load_state, "state.json: byte " },
    { "model.safetensors", SHAPE_OF("wte", "65,16"), SHAPE_OF("wte", "16,65"), load_model,
      "model.safetensors: transformer.wte.weight is F32 (16,65), want F32 (65,16)" },
    { "model.safetensors", SHAPE_OF("wte", "65,16"), SHAPE_OF("wte", "1040"), load_model,
      "transformer.wte.weight is F32 (1040), want F32 (65,16)" },
    { "model.safetensors", "wpe.weight`:{`dtype`:`F32", "wpe.weight`:{`dtype`:`I32", load_model,
      "transformer.wpe.weight is I32 (7,16), want F32 (7,16)" },
    { "model.safetensors", SHAPE_OF("1.attn.c_attn", "16,48"), SHAPE_OF("1.attn.c_attn", "48,16"), load_model,
      "transformer.h.1.attn.c_attn.weight is F32 (48,16), want F32 (16,48)" },
    { "model.safetensors", "transformer.h.1.", "transformer.h.2.", load_model,
      "the tensor transformer.h.1.ln_1.weight is missing" },
    { "model.safetensors", "ln_f.bias", "ln_f.bia", load_model, "the tensor transformer.ln_f.bias is missing" },
    { "model.safetensors", META, EMPTY("extra", "F32"), load_model, "unexpected tensor extra" },
    { "model.safetensors", META, EMPTY("ln_f.bias", "F32"), load_model, "unexpected tensor ln_f.bias" },
    { "optimizer.safetensors", "exp_avg_sq.transformer.wpe", "exp_avg_sq.wpe", load_optimizer,
      "the tensor exp_avg_sq.transformer.wpe.weight is missing" },
    { "optimizer.safetensors", META, EMPTY("lm_head.weight", "F32"), load_optimizer,
      "unexpected tensor lm_head.weight" },
    { "config.json", "gpt2", "gpt3", verify, "config.json: XXH64 is " },
    { "model.safetensors", "F32", "F16", verify, "model.safetensors: XXH64 is " },
    { "optimizer.safetensors", "F32", "F16", verify, "optimizer.safetensors: XXH64 is " },
    { "state.json", "63", "64", verify, "state.json: XXH64 is " },
    { "checksums.xxh64", "state.json", "state", verify, "state.json: XXH64 is " },
};

static char *save_with_window(const char *out) {
    TrainState state = state_of(3);
    state.spikes = (SpikeDetector){ .count = 2, .loss = { 3.25, 3 }, .log_norm = { 0.5, 1 } };
    state.best = (BestLoss){ .step = 3, .loss = 0.5, .is_extra = 1 };
    EXPECT(!*save_state(out, trainer, &state), "saved");
    return STRING("%s/step-00000003", out);
}

TEST(damaged_files_are_refused) {
    char *dir = save_with_window(IN_SCRATCH("bad"));
    verify(dir);
    expect_damage_refused(dir, damage, COUNT(damage));
    verify(dir);
    change(dir, "config.json", "{", "{\"n_inner\": 64,");
    EXPECT(checkpoint_config(dir).C == 16, "an n_inner of 4 C");
    change(dir, "config.json", "64", "null");
    EXPECT(checkpoint_config(dir).C == 16, "an n_inner of null");
    unlink(STRING("%s/checksums.xxh64", dir));
    verify(dir);                           /* a model of another program has none */
    checkpoint_load_model(dir, &trainer->model);
    unlink(STRING("%s/optimizer.safetensors", dir));
    EXPECT_FAILS("optimizer.safetensors: cannot open: No such file", load_optimizer(dir));
}

/* The choices that were made by measurement, which a resume makes again. */
TEST(test_checkpoint_choices) {
    char *out = IN_SCRATCH("choices"), *dir = IN_SCRATCH("choices/step-00000001");
    const char *path = IN_SCRATCH("choices/step-00000001/choices.txt"), *machine = autotune_machine();
    save_step(out, trainer, 1);
    EXPECT(!file_exists(path), "nothing was chosen: no file");
    checkpoint_load_choices(dir);
    autotune_add("gemm 64x64x64", 12);
    save_step(out, trainer, 1);
    verify(dir);
    autotune_adopt(STRING("%s\ngemm 64x64x64: 5\nanother: 6\n", machine));
    checkpoint_load_choices(dir);
    EXPECT(autotune_find("gemm 64x64x64") == 12 && autotune_find("another") == -1, "the checkpoint's choice");
    change(dir, "choices.txt", "64: 12", "64: 13");
    EXPECT_FAILS("choices.txt: XXH64 is ", verify(dir));
    change(dir, "choices.txt", "train_gpt", "other");
    autotune_adopt(STRING("%s\n", machine));
    checkpoint_load_choices(dir);           /* prints that it is of another device */
    EXPECT(autotune_find("gemm 64x64x64") == -1, "of another device");
    save_step(out, trainer, 1);
    EXPECT(!file_exists(path), "the next save has no choices again");
    checkpoint_remove(dir);
    EXPECT(!file_exists(dir), "removed");
}

/* ---- Directories */

static void expect_found(char *got, const char *want) {
    EXPECT(got && want ? !strcmp(got, want) : got == want, "found %s, want %s", got ? got : "none",
           want ? want : "none");
    free(got);
}

TEST(test_finding) {
    char *out = IN_SCRATCH("found"), *s2 = IN_SCRATCH("found/step-00000002"), *s10 = IN_SCRATCH("found/step-00000010");
    char *big = IN_SCRATCH("found/step-123456789");
    expect_found(run_dir_find(out, TO_RESUME, NULL), NULL);
    EXPECT_FAILS("found: no such file or directory", run_dir_resolve(out, NULL));
    directory_make(out);
    expect_found(run_dir_find(out, TO_RESUME, NULL), NULL);
    EXPECT_FAILS("holds no checkpoint, want config.json and model.safetensors (GPT-2's: start scripts/",
                 run_dir_resolve(out, NULL));
    save_step(out, trainer, 2);
    save_step(out, trainer, 10);
    expect_found(run_dir_find(out, TO_RESUME, NULL), s10);
    expect_found(run_dir_find(out, TO_RESUME, s10), s2);
    expect_found(run_dir_find(out, TO_RESUME, s2), NULL);
    expect_found(run_dir_resolve(out, NULL), s10);
    expect_found(run_dir_resolve(s2, NULL), s2);
    expect_found(run_dir_resolve(IN_SCRATCH("found/step-00000002//"), NULL), s2);
    expect_found(run_dir_resolve(IN_SCRATCH("found/step-00000002/model.safetensors"), NULL), s2);

    /* complete, but with names that no checkpoint has */
    static const char *const names[] = {
        "step-00000099.partial", "step-99", "step-000000099", "step-00000099x", "step-", "step--0000099",
        "step-0000009 9", "Step-00000099", "step-99999999999999999999"
    };
    for (int i = 0; i < COUNT(names); i++) {
        char *named = IN_SCRATCH("found/%s", names[i]);
        EXPECT(rename(s2, named) == 0, "%s", named);
        expect_found(run_dir_find(out, TO_RESUME, NULL), s10);
        expect_found(run_dir_resolve(out, NULL), s10);
        if (i == 0) EXPECT_FAILS("is a checkpoint that was not finished", run_dir_resolve(named, NULL));
        if (i == 0) EXPECT_FAILS("not finished", run_dir_resolve(STRING("%s/model.safetensors", named), NULL));
        EXPECT(rename(named, s2) == 0, "%s", named);
    }
    save_step(out, trainer, 123456789);
    expect_found(run_dir_find(out, TO_RESUME, NULL), big);
    unlink(IN_SCRATCH("found/step-123456789/state.json"));
    expect_found(run_dir_find(out, TO_RESUME, NULL), s10);       /* incomplete for a resume */
    expect_found(run_dir_find(out, ANY_FILES, NULL), big);
    expect_found(run_dir_resolve(out, NULL), big);      /* complete for sampling */
    unlink(IN_SCRATCH("found/step-123456789/config.json"));
    expect_found(run_dir_resolve(out, NULL), s10);
    expect_found(run_dir_resolve(big, NULL), big);      /* by its own name: a model without config.json */
    expect_found(run_dir_resolve(IN_SCRATCH("found/step-123456789/model.safetensors"), NULL), big);
    EXPECT_FAILS("config.json: cannot open: No such file", load_config(big));
    EXPECT_FAILS("optimizer.safetensors: want a directory with model.safetensors",
                 run_dir_resolve(IN_SCRATCH("found/step-00000010/optimizer.safetensors"), NULL));
}

/* want: the note after the name of the checkpoint */
static void expect_picked(const char *out, int step, const char *want) {
    char *note, *picked = run_dir_resolve(out, &note), *path = STRING("%s/step-%08d", out, step);
    EXPECT(note && !strcmp(note, STRING("%s: %s", path, want)), "%s\nwant %s", note ? note : "none", want);
    expect_found(picked, path);
    free(note);
}

TEST(test_picking) {
    char *out = IN_SCRATCH("picked"), *note;
    TrainState state = state_of(1);
    state.val_step = -1;
    EXPECT(!*save_state(out, trainer, &state), "saved");
    expect_picked(out, 1, "the last of the run");
    state = state_of(2);
    state.best = (BestLoss){ 2, 0.5, 0, 0, 0 };
    EXPECT(!*save_state(out, trainer, &state), "saved");
    expect_picked(out, 2, "the last of the run and its best");
    save_step(out, trainer, 3);
    const TrainState saved = checkpoint_load_state(IN_SCRATCH("picked/step-00000003"));
    EXPECT(!saved.best.step, "a saver that is opened anew knows no best");
    state.step = 3;
    Saver saver = resume_saver(out, trainer, 0, &state);
    state = state_of(4);
    saver_save(&saver, &state);
    close_saver(&saver);
    expect_picked(out, 2, "the best of the run; the last is step 4");
    expect_found(run_dir_resolve(out, NULL), IN_SCRATCH("picked/step-00000004"));
    expect_found(run_dir_resolve(IN_SCRATCH("picked/best"), &note), IN_SCRATCH("picked/best"));
    EXPECT(!note, "the path of a checkpoint: %s", note);
    expect_found(run_dir_resolve(IN_SCRATCH("picked/step-00000003"), &note), IN_SCRATCH("picked/step-00000003"));
    EXPECT(!note, "the path of a checkpoint: %s", note);
    EXPECT(rename(IN_SCRATCH("picked/step-00000002"), IN_SCRATCH("picked/away")) == 0, "moved");
    expect_picked(out, 4, "the last of the run");
}

/* ---- Tokenizers */

/* Written anew for the tokenizer of the model and its context; nothing for ids. */
TEST(test_tokenizer_files) {
    Tokenizer *bpe = tokenizer_open("test/reference/bpe"), *kinds[] = { TOKENIZER_BYTES, bpe, TOKENIZER_IDS };
    for (int k = 0; k < 3; k++) {
        saved_tokenizer = kinds[k];
        char *step = save_step(IN_SCRATCH("tokenized-%d", k), trainer, 1);
        const int is_written = file_exists(STRING("%s/tokenizer.json", step));
        const char *config = STRING("%s/tokenizer_config.json", step);
        EXPECT(is_written == (k < 2) && file_exists(config) == is_written, "kind %d", k);
        if (k == 2) continue;
        const char *context = STRING("\"model_max_length\": %d,", trainer->model.config.T);
        EXPECT(strstr(text_of(config), context), "want %s", context);
        Tokenizer *again = tokenizer_open(step);
        const BpeVocabulary *v = &again->v;
        EXPECT(v->V == (k ? 500 : 256) && v->end_of_text == (k ? 499 : -1), "its tokens");
        for (int i = 0; !k && i < 256; i++) EXPECT(v->token[i].size == 1 && *v->token[i].bytes == i, "token %d", i);
        EXPECT(!k || bpe_fingerprint(again) == bpe_fingerprint(bpe), "another tokenizer");
        bpe_free(again);
    }
    saved_tokenizer = TOKENIZER_BYTES;
    bpe_free(bpe);
}

static void expect_tokenizer(const char *dir, int V, const char *want) {
    Tokenizer *got = checkpoint_tokenizer(dir, V);
    EXPECT(!strcmp(got->name, want), "it is %s, want %s", got->name, want);
    bpe_free(got);
}

/* By state.json, or else by the files. */
TEST(which_tokenizer) {
    char *dir = IN_SCRATCH("which"), *state = IN_SCRATCH("which/state.json");
    static const char bpe_state[] = "{\"tokenizer\": \"bpe\"}";
    directory_make(dir);
    edit("test/reference/bpe/vocab.json", IN_SCRATCH("which/vocab.json"), "", "");
    edit("test/reference/bpe/merges.txt", IN_SCRATCH("which/merges.txt"), "", "");
    expect_tokenizer(dir, 500, "bpe");
    expect_tokenizer(dir, 256, "bytes");
    put_text(state, bpe_state);
    expect_tokenizer(dir, 500, "bpe");
    put_text(IN_SCRATCH("which/merges.txt"), "a b c\n");
    EXPECT_FAILS("merges.txt: line 1: 'a b c', want two tokens", load_tokenizer(dir));
    unlink(state);
    expect_tokenizer(dir, 500, "ids");      /* files that cannot be read */
    unlink(IN_SCRATCH("which/vocab.json"));
    expect_tokenizer(dir, 500, "ids");
    put_text(state, bpe_state);
    EXPECT_FAILS("which: no tokenizer: want tokenizer.json, vocab.json", load_tokenizer(dir));
}

int main(void) {
    scratch_open();
    test_device_open((DeviceOptions){ .threads = 1 });
    trainer = new_tiny(1);
    return test_all();
}
