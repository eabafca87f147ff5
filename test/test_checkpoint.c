/* test/test_checkpoint.c - Checkpoints: round trips bit for bit, strangers' files, mutations, atomicity, full disks. */
#include "models.h"
#include "scratch.h"
#include <float.h>
#include "../llmc/checkpoint/run_dir.h"
#include "../llmc/checkpoint/weights.h"
#include "../llmc/checkpoint/safetensors.h"

static Trainer trainer;         /* that is saved; loads go into others */

static const Setting settings[] = {
    { "model", "d4" }, { "data", "a \"b\"\n\\c\xc3\xa9" }, { "out", "" }, { NULL, NULL }
};

static void save_step(const char *out, Trainer *t, int64_t step, double val_loss) {
    t->optimizer.step = step + 1;
    TrainState state = { step, (uint64_t)step * 3, step * 21, val_loss };
    steps_save(out, &t->model, &t->optimizer, &state, settings);
}

static void test_checkpoint_round_trip(void) {
    char *out = IN_SCRATCH("new/out"), *text;
    static const double losses[] = { 1 / 3.0, DBL_MAX, DBL_TRUE_MIN, 0, 0.1 + 0.2 };
    Trainer loaded;
    for (int i = 0; i < 6; i++) {
        tiny_create(&loaded, 50);
        uint32_t ones[20 * 10];
        memset(ones, 0xff, sizeof ones);       /* in the padding: loading has to clear it */
        device_upload((char *)loaded.model.params.wte.data + 66 * 40, ones, sizeof ones);
        save_step(out, &trainer, i, i < 5 ? losses[i] : NAN);
        char *folder = steps_latest(out);
        EXPECT(folder && !strncmp(folder, out, strlen(out)), "found %s", folder);
        GPTConfig config = checkpoint_config(folder);
        EXPECT(!memcmp(&config, &trainer.model.config, sizeof config), "config");
        checkpoint_load_model(folder, &loaded.model);
        checkpoint_load_optimizer(folder, &loaded.model, &loaded.optimizer);
        TrainState state = checkpoint_load_state(folder);
        expect_equal_rows(&trainer.model.params, &loaded.model.params, "parameters");
        expect_equal_moments(&trainer.optimizer, &loaded.optimizer);
        EXPECT(loaded.optimizer.step == i + 1 && state.step == i && state.sequences_seen == (uint64_t)i * 3 &&
               state.tokens == i * 21, "counts");
        EXPECT(i < 5 ? state.val_loss == losses[i] : isnan(state.val_loss), "val loss %.17g", state.val_loss);
        for (const Setting *s = settings; s->key; s++) {
            text = checkpoint_setting(folder, s->key);
            EXPECT(text && !strcmp(text, s->value), "%s: %s", s->key, text);
            free(text);
        }
        EXPECT(!checkpoint_setting(folder, "none"), "a setting that is not there");
        free(folder);
        tiny_free(&loaded);
    }
    SafeFile file = safetensors_open(IN_SCRATCH("new/out/step-00000003/model.safetensors"));
    const SafeTensor *t = safetensors_find(&file, "transformer.h.1.mlp.c_fc.weight");
    EXPECT(t && t->dim[0] == 10 && t->dim[1] == 40, "a Conv1D is (in, out) in the file");
    uint32_t *bits = download(trainer.model.params.block[1].fcw), wrong = 0;
    for (int in = 0; in < 10; in++)
        for (int to = 0; to < 40; to++) wrong += memcmp(t->data + 4 * (in * 40 + to), &bits[to * 10 + in], 4) != 0;
    EXPECT(!wrong, "%u elements are not transposed", wrong);
    EXPECT(safetensors_find(&file, "transformer.wte.weight")->dim[0] == 65, "wte has V rows in the file");
    free(bits);
    safetensors_close(&file);
}

/* ---- Strangers' files */

/* The file at from again at to, with every old in the header replaced, and more bytes of data. */
static void rewrite(const char *from, const char *to, const char *old, const char *new, const void *more,
                    size_t more_bytes) {
    FileMap map = file_map(from);
    size_t length = 0, size, data_bytes;
    for (int i = 7; i >= 0; i--) length = length << 8 | map.bytes[i];
    char *source = format_string("%.*s", (int)length, (const char *)map.bytes + 8), *header;
    FILE *text = open_memstream(&header, &size);
    int found = 0;
    for (char *at = source, *next; *at; at = next) {
        next = strstr(at, old);
        if (!next) next = at + strlen(at);
        fwrite(at, 1, (size_t)(next - at), text);
        if (!*next) break;
        fputs(new, text);
        next += strlen(old);
        found++;
    }
    fclose(text);
    EXPECT(found, "%s has no %s", from, old);
    data_bytes = (size_t)map.size - 8 - length;
    char *data = malloc(data_bytes + more_bytes);
    memcpy(data, map.bytes + 8 + length, data_bytes);
    if (more_bytes) memcpy(data + data_bytes, more, more_bytes);
    put_safetensors(to, header, data, data_bytes + more_bytes);
    file_unmap(map);
    free(source);
    free(header);
    free(data);
}

typedef struct { const char *path; Trainer *trainer; } Load;
static void load_params(void *load) { params_read(((Load *)load)->path, &((Load *)load)->trainer->model.params, 65); }

/* Nothing is written before all has been checked. */
static jmp_buf refused;
static void jump_back(const char *message) { (void)message; longjmp(refused, 1); }
static void load_and_compare(void *load) {
    void (*hook)(const char *) = fail_hook;
    Trainer untouched;
    tiny_create(&untouched, 9);
    fail_hook = jump_back;
    if (!setjmp(refused)) load_params(load);
    fail_hook = hook;
    int before = test_errors;
    expect_equal_rows(&untouched.model.params, &((Load *)load)->trainer->model.params, "after a refusal");
    fail(test_errors == before ? "every row is as it was" : "rows were written");
}

static void test_foreign_files(void) {
    Trainer other;
    tiny_create(&other, 9);
    char *good = IN_SCRATCH("good.safetensors"), *path = IN_SCRATCH("other.safetensors");
    params_write(good, &trainer.model.params, 65);

    rewrite(good, path, "transformer.", "", NULL, 0);
    params_read(path, &other.model.params, 65);
    expect_equal_rows(&trainer.model.params, &other.model.params, "names without a prefix");

    static const char meta[] = "\"__metadata__\":{\"format\":\"pt\"}";
    rewrite(good, path, meta, "\"h.0.attn.bias\":{\"dtype\":\"BOOL\",\"shape\":[0],\"data_offsets\":[0,0]},"
            "\"transformer.h.1.attn.masked_bias\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}", NULL, 0);
    fill(&other.model.params, 65, 9);
    params_read(path, &other.model.params, 65);
    expect_equal_rows(&trainer.model.params, &other.model.params, "masks as tensors");

    FileMap map = file_map(good);
    int64_t end = map.size - 8 - (map.bytes[0] | map.bytes[1] << 8), table = 65 * 10 * 4;
    file_unmap(map);
    char *head = format_string("\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[65,10],\"data_offsets\":[%lld,%lld]}",
                           (long long)end, (long long)(end + table));
    uint32_t *bits = download(trainer.model.params.wte);
    rewrite(good, path, meta, head, bits, (size_t)table);
    fill(&other.model.params, 65, 9);
    params_read(path, &other.model.params, 65);
    expect_equal_rows(&trainer.model.params, &other.model.params, "a head that equals wte");
    bits[649] ^= 1;
    rewrite(good, path, meta, head, bits, (size_t)table);
    expect_fails("lm_head.weight differs from transformer.wte.weight: want a head tied", load_params,
                 &(Load){ path, &other });
    free(bits);
    free(head);

    static const struct { const char *old, *new, *part; } cases[] = {
        { "wte.weight\":{\"dtype\":\"F32\",\"shape\":[65,10]", "wte.weight\":{\"dtype\":\"F32\",\"shape\":[10,65]",
          "other.safetensors: transformer.wte.weight is F32 (10,65), want F32 (65,10)" },
        { "wte.weight\":{\"dtype\":\"F32\",\"shape\":[65,10]", "wte.weight\":{\"dtype\":\"F32\",\"shape\":[650]",
          "transformer.wte.weight is F32 (650), want F32 (65,10)" },
        { "wpe.weight\":{\"dtype\":\"F32\",\"shape\":[7,10]", "wpe.weight\":{\"dtype\":\"I32\",\"shape\":[7,10]",
          "transformer.wpe.weight is I32 (7,10), want F32 (7,10)" },
        { "1.attn.c_attn.weight\":{\"dtype\":\"F32\",\"shape\":[10,30]", "1.attn.c_attn.weight\":{\"dtype\":\"F32\","
          "\"shape\":[30,10]", "transformer.h.1.attn.c_attn.weight is F32 (30,10), want F32 (10,30)" },
        { "transformer.h.1.", "transformer.h.2.", "the tensor transformer.h.1.ln_1.weight is missing" },
        { "transformer.ln_f.bias", "transformer.ln_f.bia", "the tensor transformer.ln_f.bias is missing" },
        { "transformer.wte", "model.wte", "the tensor transformer.wte.weight is missing" },
        { "\"__metadata__\":{\"format\":\"pt\"}", "\"extra\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}",
          "unexpected tensor extra" },
        { "\"__metadata__\":{\"format\":\"pt\"}",
          "\"ln_f.bias\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}", "unexpected tensor ln_f.bias" },
        { "\"__metadata__\":{\"format\":\"pt\"}", "\"transformer.h.2.ln_1.weight\":{\"dtype\":\"F32\",\"shape\":[0],"
          "\"data_offsets\":[0,0]}", "unexpected tensor transformer.h.2.ln_1.weight" },
    };
    fill(&other.model.params, 65, 9);
    for (int i = 0; i < COUNT(cases); i++) {
        Load load = { path, &other };
        rewrite(good, path, cases[i].old, cases[i].new, NULL, 0);
        expect_fails(cases[i].part, load_params, &load);
    }
    rewrite(good, path, "transformer.h.1.mlp.c_proj.bias", "x", NULL, 0);      /* the last row: all others would fit */
    expect_fails("every row is as it was", load_and_compare, &(Load){ path, &other });
    tiny_free(&other);
}

/* ---- Folders */

static void load_config(void *folder) { checkpoint_config(folder); }
static void load_state(void *folder) { checkpoint_load_state(folder); }
static void load_setting(void *folder) { free(checkpoint_setting(folder, "model")); }
static void load_optimizer(void *folder) { checkpoint_load_optimizer(folder, &trainer.model, &trainer.optimizer); }
static void load_model(void *folder) { checkpoint_load_model(folder, &trainer.model); }
static void resolve(void *path) { steps_resolve(path); }
static void save(void *out) { save_step(out, &trainer, 9, NAN); }

static const struct { const char *file, *old, *new; void (*load)(void *); const char *part; } bad_folders[] = {
    { "config.json", "\"n_layer\": 2", "\"n_layer\": 0", load_config,
      "config.json: \"n_layer\" is 0, want an integer from 1" },
    { "config.json", "\"n_layer\": 2", "\"n_layer\": 1e9", load_config, "\"n_layer\" is 1e9, want an integer" },
    { "config.json", "\"n_head\": 2", "\"n_head\": 3", load_config,
      "\"n_embd\" is 10, want a multiple of \"n_head\", 3" },
    { "config.json", "\"n_embd\"", "\"n_emb\"", load_config, "\"n_embd\" is missing" },
    { "config.json", "\"n_positions\": 7", "\"n_positions\": 99999999", load_config, "\"n_positions\" is 99999999" },
    { "config.json", "65", "-65", load_config, "\"vocab_size\" is -65" },
    { "config.json", "65", "66", load_optimizer, "exp_avg.transformer.wte.weight is F32 (65,10), want F32 (66,10)" },
    { "config.json", "65", "129", load_optimizer, "129 tokens do not fit 128 rows" },
    { "config.json", "\"gpt2\"", "\"llama\"", load_config, "\"model_type\" is llama, want \"gpt2\"" },
    { "config.json", "model_type", "model", load_config, "\"model_type\" is missing" },
    { "config.json", "gelu_new", "relu", load_config, "\"activation_function\" is relu, want \"gelu_new\"" },
    { "config.json", "1e-05", "1e-6", load_config, "\"layer_norm_epsilon\" is 1e-6, want 1e-05" },
    { "config.json", "embeddings\": true", "embeddings\": false", load_config,
      "\"tie_word_embeddings\" is false, but there is no lm_head.weight" },
    { "config.json", "embeddings\": true", "embeddings\": \"true\"", load_config,
      "\"tie_word_embeddings\" is true, want true or" },
    { "config.json", "{", "{\"n_inner\": 41,", load_config, "\"n_inner\" is 41, want an integer from 40 to 40" },
    { "config.json", "}", "", load_config, "config.json: byte " },
    { "state.json", "\"step\": 3", "\"step\": -1", load_state, "state.json: \"step\" is -1" },
    { "state.json", "\"sample\": 9", "\"sample\": 9.5", load_state, "\"sample\" is 9.5" },
    { "state.json", "\"tokens\"", "\"token\"", load_state, "\"tokens\" is missing" },
    { "state.json", "\"val_loss\": 0.5", "\"val_loss\": \"0.5\"", load_state, "\"val_loss\" is 0.5, want a number" },
    { "state.json", "\"val_loss\"", "\"loss\"", load_state, "\"val_loss\" is missing" },
    { "state.json", "\"settings\"", "\"setting\"", load_setting, "\"settings\" is missing" },
    { "state.json", "\"d4\"", "4", load_setting, "\"model\" is 4, want a string" },
    { "state.json", "optimizer_step", "optimizer", load_optimizer, "\"optimizer_step\" is missing" },
    { "state.json", "{", "", load_state, "state.json: byte " },
};

static void test_bad_folders(void) {
    char *out = IN_SCRATCH("bad"), *folder = IN_SCRATCH("bad/step-00000003");
    save_step(out, &trainer, 3, 0.5);
    for (int i = 0; i < COUNT(bad_folders); i++) {
        char *path = IN_SCRATCH("bad/step-00000003/%s", bad_folders[i].file), *good = IN_SCRATCH("good.json");
        EXPECT(rename(path, good) == 0, "%s", path);
        edit(good, path, bad_folders[i].old, bad_folders[i].new);
        expect_fails(bad_folders[i].part, bad_folders[i].load, folder);
        EXPECT(rename(good, path) == 0, "%s", path);
    }
    EXPECT(!symlink(IN_SCRATCH("bad/step-00000003/model.safetensors"), IN_SCRATCH("model.safetensors")), "a link");
    edit(IN_SCRATCH("bad/step-00000003/config.json"), IN_SCRATCH("config.json"), "{", "{\"n_inner\": 40,");
    EXPECT(checkpoint_config(scratch).C == 10, "an n_inner of 4 C");
    edit(IN_SCRATCH("bad/step-00000003/config.json"), IN_SCRATCH("config.json"), "{", "{\"n_inner\": null,");
    EXPECT(checkpoint_config(scratch).C == 10, "an n_inner of null");
    unlink(IN_SCRATCH("model.safetensors"));
    unlink(IN_SCRATCH("config.json"));

    char *moments = IN_SCRATCH("bad/step-00000003/optimizer.safetensors"), *path = IN_SCRATCH("moments.safetensors");
    EXPECT(rename(moments, path) == 0, "%s", moments);
    rewrite(path, moments, "exp_avg_sq.transformer.wpe", "exp_avg_sq.wpe", NULL, 0);
    expect_fails("the tensor exp_avg_sq.transformer.wpe.weight is missing", load_optimizer, folder);
    rewrite(path, moments, "\"__metadata__\":{\"format\":\"pt\"}",
            "\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}", NULL, 0);
    expect_fails("unexpected tensor lm_head.weight", load_optimizer, folder);
    unlink(moments);
    expect_fails("optimizer.safetensors: cannot open: No such file", load_optimizer, folder);
}

static void expect_found(char *got, const char *want) {
    EXPECT(got && want ? !strcmp(got, want) : got == want, "found %s, want %s", got ? got : "none",
           want ? want : "none");
    free(got);
}

static void test_finding(void) {
    char *out = IN_SCRATCH("found"), *s2 = IN_SCRATCH("found/step-00000002"), *s10 = IN_SCRATCH("found/step-00000010");
    char *big = IN_SCRATCH("found/step-123456789");
    expect_found(steps_latest(out), NULL);
    expect_fails("found: no such file or folder", resolve, out);
    directory_make(out);
    expect_found(steps_latest(out), NULL);
    expect_fails("holds no checkpoint, want config.json and model.safetensors, or folders", resolve, out);
    save_step(out, &trainer, 2, 1);
    save_step(out, &trainer, 10, 1);
    expect_found(steps_latest(out), s10);
    expect_found(steps_resolve(out), s10);
    expect_found(steps_resolve(s2), s2);
    expect_found(steps_resolve(IN_SCRATCH("found/step-00000002//")), s2);
    expect_found(steps_resolve(IN_SCRATCH("found/step-00000002/model.safetensors")), s2);

    /* whole, but under names that no checkpoint has */
    static const char *const names[] = {
        "step-00000099.partial", "step-99", "step-000000099", "step-00000099x", "step-", "step--0000099",
        "step-0000009 9", "Step-00000099", "step-99999999999999999999"
    };
    for (int i = 0; i < COUNT(names); i++) {
        char *named = IN_SCRATCH("found/%s", names[i]);
        EXPECT(rename(s2, named) == 0, "%s", named);
        expect_found(steps_latest(out), s10);
        expect_found(steps_resolve(out), s10);
        if (i == 0) expect_fails("is a checkpoint that was not finished", resolve, named);
        EXPECT(rename(named, s2) == 0, "%s", named);
    }
    save_step(out, &trainer, 123456789, 1);
    expect_found(steps_latest(out), big);
    unlink(IN_SCRATCH("found/step-123456789/state.json"));
    expect_found(steps_latest(out), s10);       /* to resume it is not whole */
    expect_found(steps_resolve(out), big);      /* to sample it is */
    unlink(IN_SCRATCH("found/step-123456789/config.json"));
    expect_found(steps_resolve(out), s10);
    expect_found(steps_resolve(big), big);      /* by its own name it is a model of any kind */
    expect_found(steps_resolve(IN_SCRATCH("found/step-123456789/model.safetensors")), big);
    expect_fails("model.safetensors: has 10 channels and no config.json beside it", load_config, big);
    put(IN_SCRATCH("model.pt"), "\x80\2}q", 4);
    expect_fails("model.pt: is a Python pickle, want a checkpoint", resolve, IN_SCRATCH("model.pt"));
    put_text(IN_SCRATCH("book.txt"), "Once upon a time");
    expect_fails("is a file of an unknown kind, want a checkpoint", resolve, IN_SCRATCH("book.txt"));
    expect_fails("is a safetensors file, want a checkpoint: a folder", resolve,
                 IN_SCRATCH("found/step-00000010/optimizer.safetensors"));
    directory_make(IN_SCRATCH("hub"));
    put_text(IN_SCRATCH("hub/pytorch_model.bin"), "PK");
    expect_fails("want model.safetensors in place of pytorch_model.bin", resolve, IN_SCRATCH("hub"));
}

/* A crash may leave step-N.partial in any state, and between two renames step-N.old without step-N. */
static void test_replacing(void) {
    char *out = IN_SCRATCH("replaced"), *step = IN_SCRATCH("replaced/step-00000004");
    char *old = IN_SCRATCH("replaced/step-00000004.old"), *partial = IN_SCRATCH("replaced/step-00000004.partial");
    Trainer changed;
    tiny_create(&changed, 30);
    directory_make(partial);
    put_text(IN_SCRATCH("replaced/step-00000004.partial/model.safetensors"), "half");
    put_text(IN_SCRATCH("replaced/step-00000004.partial/rest"), "of another version");
    save_step(out, &trainer, 4, 1);
    EXPECT(!file_exists(partial) && !file_exists(IN_SCRATCH("replaced/step-00000004/rest")), "what was left is gone");
    save_step(out, &changed, 4, 2);
    EXPECT(!file_exists(partial) && !file_exists(old), "nothing is left beside");
    EXPECT(checkpoint_load_state(step).val_loss == 2, "the new one is in its place");
    EXPECT(rename(step, old) == 0, "%s", old);
    expect_found(steps_latest(out), old);
    save_step(out, &trainer, 4, 3);
    EXPECT(!file_exists(old), "the old one goes once the new one is there");
    directory_make(old);
    put_text(IN_SCRATCH("replaced/step-00000004.old/rest"), "");
    expect_found(steps_latest(out), step);
    save_step(out, &trainer, 4, 4);
    EXPECT(!file_exists(old) && checkpoint_load_state(step).val_loss == 4, "an old one that was left is no obstacle");

    /* what a user has put there stays: also when a crash has left it in the old one, and in folders */
    put_text(IN_SCRATCH("replaced/step-00000004/README.md"), "mine");
    put_text(IN_SCRATCH("replaced/step-00000004/state.json.bak"), "mine, too");
    directory_make(IN_SCRATCH("replaced/step-00000004/eval/deep"));
    save_step(out, &changed, 4, 5);
    for (int crashed = 0; crashed < 2; crashed++) {
        EXPECT(!file_exists(old) && checkpoint_load_state(step).val_loss == 5 + crashed, "replaced");
        EXPECT(file_exists(IN_SCRATCH("replaced/step-00000004/README.md")) &&
               file_exists(IN_SCRATCH("replaced/step-00000004/state.json.bak")) &&
               file_is_folder(IN_SCRATCH("replaced/step-00000004/eval/deep")), "what is not ours is kept");
        if (crashed) break;
        EXPECT(rename(step, old) == 0, "%s", old);
        save_step(IN_SCRATCH("replaced/other"), &trainer, 4, 6);
        EXPECT(rename(IN_SCRATCH("replaced/other/step-00000004"), step) == 0, "as after a crash");
        steps_sweep(out);
    }
    char *elsewhere = IN_SCRATCH("replaced/elsewhere");
    EXPECT(rename(step, elsewhere) == 0 && symlink(elsewhere, step) == 0, "a link");
    save_step(out, &trainer, 4, 7);
    EXPECT(file_exists(IN_SCRATCH("replaced/elsewhere/README.md")) && checkpoint_load_state(elsewhere).val_loss == 6 &&
           checkpoint_load_state(step).val_loss == 7, "what a link leads to stays as it is");
    tiny_free(&changed);
}

static void save_limited(void *out) {
    limit_file_size(8000);
    save(out);
}

static void test_full_disk(void) {
    char *out = IN_SCRATCH("full"), *step = IN_SCRATCH("full/step-00000009");
    save_step(out, &trainer, 9, 7);
    expect_fails("model.safetensors: cannot write: File too large", save_limited, out);
    limit_file_size(RLIM_INFINITY);      /* where that was not in a child */
    expect_found(steps_latest(out), step);
    Trainer loaded;
    tiny_create(&loaded, 40);
    checkpoint_load_model(step, &loaded.model);
    expect_equal_rows(&trainer.model.params, &loaded.model.params, "the earlier checkpoint");
    EXPECT(checkpoint_load_state(step).val_loss == 7, "its state");
    tiny_free(&loaded);
    save(out);
    EXPECT(isnan(checkpoint_load_state(step).val_loss), "the next save works");
    put_text(IN_SCRATCH("occupied"), "");
    expect_fails("occupied: cannot make the folder: File exists", save, IN_SCRATCH("occupied"));
    expect_fails("cannot make the folder", save, "/proc/none/out");
}

/* A model that has gone sick does not take the place of the last good one. */
static void test_sick_models(void) {
    char *out = IN_SCRATCH("sick");
    save_step(out, &trainer, 8, 7);
    const Params *params = &trainer.model.params;
    float *places[] = { params->block[1].qkvw.data, params->wte.data, (float *)trainer.optimizer.v.data +
                        ((float *)params->block[0].ln1b.data - (float *)params->table.memory) };
    static const char *const part[] = {
        "model.safetensors: transformer.h.1.attn.c_attn.weight holds a NaN or an infinity (number 3): not saved",
        "model.safetensors: transformer.wte.weight holds", "optimizer.safetensors: transformer.h.0.ln_1.bias holds"
    };
    for (int i = 0; i < 3; i++) {
        float kept, sick = i == 1 ? NAN : i == 2 ? INFINITY : -INFINITY;
        device_download(&kept, places[i] + 3, sizeof kept);
        device_upload(places[i] + 3, &sick, sizeof sick);
        expect_fails(part[i], save, out);
        device_upload(places[i] + 3, &kept, sizeof kept);
        expect_found(steps_latest(out), IN_SCRATCH("sick/step-00000008"));
    }
    save(out);
    expect_found(steps_latest(out), IN_SCRATCH("sick/step-00000009"));
}

static void load_tokenizer(void *folder) { checkpoint_load_tokenizer(folder); }

/* Any bytes, none, and a file that is not there; and no more than a tokenizer can be. */
static void test_tokenizer_files(void) {
    char *from = IN_SCRATCH("tokenizer");
    directory_make(from);
    static const char bytes[] = "{\"\0\n\xff\": 0}";
    put(IN_SCRATCH("tokenizer/vocab.json"), bytes, sizeof bytes);
    put_text(IN_SCRATCH("tokenizer/merges.txt"), "");
    put_text(IN_SCRATCH("tokenizer/notes.txt"), "not the tokenizer's");
    directory_make(IN_SCRATCH("tokenizer/tokenizer.json"));
    TokenizerFiles files = checkpoint_load_tokenizer(from);
    unlink(IN_SCRATCH("tokenizer/vocab.json"));
    TrainState state = { 1, 3, 21, 0.5 };
    Snapshot snapshot = checkpoint_snapshot(&trainer.model, &trainer.optimizer, &state, settings);
    snapshot.tokenizer = &files;
    steps_write(IN_SCRATCH("tokenized"), &snapshot);
    FileMap vocab = file_map(IN_SCRATCH("tokenized/step-00000001/vocab.json"));
    FileMap merges = file_map(IN_SCRATCH("tokenized/step-00000001/merges.txt"));
    EXPECT(vocab.size == sizeof bytes && !memcmp(vocab.bytes, bytes, sizeof bytes), "vocab.json has %d bytes",
           (int)vocab.size);
    EXPECT(merges.size == 0, "merges.txt has %d bytes", (int)merges.size);
    file_unmap(vocab);
    EXPECT(!file_exists(IN_SCRATCH("tokenized/step-00000001/tokenizer.json")), "a folder is no tokenizer's file");
    EXPECT(!file_exists(IN_SCRATCH("tokenized/step-00000001/notes.txt")), "what is not the tokenizer's stays");
    for (int i = 0; i < TOKENIZER_FILES; i++) free(files.file[i].bytes);

    put_text(IN_SCRATCH("tokenizer/added_tokens.json"), "");
    EXPECT(truncate(IN_SCRATCH("tokenizer/added_tokens.json"), TOKENIZER_FILE_BYTES + 1) == 0, "a file with a hole");
    expect_fails("added_tokens.json: 67108865 bytes, want a tokenizer's file of at most 67108864", load_tokenizer,
                 from);
}

static void load_state_and_setting(void *folder) {
    checkpoint_load_state(folder);
    free(checkpoint_setting(folder, "data"));
}

static void test_checkpoint_mutations(void) {
    char *folder = IN_SCRATCH("mutated/step-00000001");
    save_step(IN_SCRATCH("mutated"), &trainer, 1, 0.25);
    MutationCount c[] = {
        mutations(IN_SCRATCH("mutated/step-00000001/state.json"), 1 << 20, 2000, load_state_and_setting, folder),
        mutations(IN_SCRATCH("mutated/step-00000001/config.json"), 1 << 20, 1000, load_config, folder),
        mutations(IN_SCRATCH("mutated/step-00000001/model.safetensors"), 3000, 1000, load_model, folder),
    };
    for (int i = 0; i < 3; i++) printf("  mutations: %d loaded, %d failed in one line\n", c[i].loaded, c[i].failed);
    checkpoint_load_model(folder, &trainer.model);
}

int main(void) {
    scratch_open();
    test_device_open((DeviceOptions){ .threads = 1 });
    tiny_create(&trainer, 1);
    RUN(test_checkpoint_round_trip);
    RUN(test_foreign_files);
    RUN(test_bad_folders);
    RUN(test_finding);
    RUN(test_replacing);
    RUN(test_full_disk);
    RUN(test_sick_models);
    RUN(test_tokenizer_files);
    RUN(test_checkpoint_mutations);
    tiny_free(&trainer);
    return test_close();
}
