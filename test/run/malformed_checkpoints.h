/* malformed_checkpoints.h - Broken checkpoints: each of the files that the program wrote, with one flaw. */
#ifndef TEST_MALFORMED_CHECKPOINTS_H
#define TEST_MALFORMED_CHECKPOINTS_H
#include "malformed.h"
#include "../../llmc/checkpoint/safetensors.h"

/* ---- Checkpoints: the part that a case breaks, and who reads it */

typedef enum { EVAL, SAMPLE, INIT, RESUME } Reader;

static void checkpoint_command(Reader reader) {
    static const char *const names[] = { "broken", "broken/", "broken/" STEP, "broken/" STEP "/model.safetensors" };
    const char *name = ANY(names);
    if (reader == EVAL)   words(format("--eval %s --data text.txt --batch 2 --threads 1", name));
    if (reader == SAMPLE) words(format("--sample %s --prompt a --sample-tokens 9 --threads 1", name));
    if (reader == INIT)   base_without(""), words(format("--init %s --out new", name));
    if (reader == RESUME) words("--out broken --resume --threads 1");
}

static const struct { const char *path; Blob *blob; } parts[] = {
    { "broken/" STEP "/config.json", &config_json }, { "broken/" STEP "/model.safetensors", &model_file },
    { "broken/" STEP "/optimizer.safetensors", &optimizer_file }, { "broken/" STEP "/state.json", &state_json },
    { "broken/log.csv", &log_csv },
};
enum { CONFIG, MODEL, OPTIMIZER, STATE, NO_PART };

/* A run like the sound one, with the blob in place of one part, or without that part. */
static const char *break_part(int part, int is_there) {
    remove_tree("broken");
    make_dir("broken");
    make_dir("broken/" STEP);
    for (int i = 0; i < COUNT(parts); i++)
        if (i != part) save(parts[i].path, parts[i].blob);
    if (part == NO_PART) return "";
    if (is_there) save(parts[part].path, &blob);
    return parts[part].path;
}

/* Sets "key" to a value, or takes it away (by another name) when value is NULL. */
static void edit_json(const Blob *from, const char *key, const char *value) {
    char *quoted = format("\"%s\":", key), *text = (char *)from->bytes, *at = strstr(text, quoted);
    if (!at) fail("%s: no such key to break", key);
    char *after = at + strlen(quoted) + 1;
    int length = (int)(*after == '"' ? (size_t)(strchr(after + 1, '"') + 1 - after) : strcspn(after, ",\n"));
    if (value) blob_text(format("%.*s%s%s", (int)(after - text), text, value, after + length));
    else       blob_text(format("%.*s\"no_%s", (int)(at - text), text, at + 1));
}

static const char *const no_integers[] = {
    "null", "\"1\"", "[1]", "{}", "true", "-1", "1e99", "99999999999999999999", "0x10", "NaN", "", "1.5", "01", "+1",
    "1 2", "-", "\"\\u001b[31m\"", "9223372036854775808", "--", "1e3", "Infinity", "'1'",
};

/* A JSON text broken for sure: no byte below 9 and no 0xff may stand anywhere in one. */
static const char *break_json(const Blob *from, const char *const *keys, int count) {
    const char *key = keys[draw(count)], *value;
    int at = draw((int64_t)from->size - 3), byte;
    blob = *from;
    switch (draw(9)) {
    case 0: edit_json(from, key, NULL); return format("without %s", key);
    case 1: case 2: case 3:
        edit_json(from, key, value = ANY(no_integers));
        return format("%s is %s", key, value);
    case 4:
        blob.size = (size_t)at;
        return format("truncated to %d bytes", at);
    case 5:
        blob.bytes[at] = (unsigned char)(byte = ANY(((const int[]){ 0, 1, 7, 8, 255 })));
        return format("byte %d is %d", at, byte);
    case 6:
        value = ANY(((const char *const[]){ "x", "}", "{}", ",", "\x1b", "null", "\xff" }));
        blob_text(format("%s%s", (const char *)from->bytes, value));
        return format("%s behind its end", value);
    case 7:
        byte = 50 + draw(100000);
        memset(blob.bytes, ANY(((const char[]){ '[', '{', '"', '-', 'n', ' ' })), (size_t)byte);
        blob.size = (size_t)byte;
        return format("%d times %c", byte, blob.bytes[0]);
    default:
        return format("this is %s, %zu bytes", blob_foreign(), blob.size);
    }
}

static void broken_configs(void) {
    static const char *const required[] = { "n_layer", "n_head", "n_embd", "n_positions", "vocab_size" };
    for (int i = 0; i < 100; i++) {
        const char *what = break_json(&config_json, required, COUNT(required));
        what = format("%s: %s", break_part(CONFIG, 1), what);
        checkpoint_command((Reader)draw(4));
        refused("config.json", what);
    }
    for (int i = 0; i < 40; i++) {       /* sound in itself, but the weights have other dimensions */
        const char *key = ANY(required);
        int value = 257 + draw(3000);
        if (!strcmp(key, "n_head"))      value = 3 + draw(13) / 2 * 2;
        if (!strcmp(key, "n_layer"))     value = 2 + draw(20);
        if (!strcmp(key, "n_embd"))      value = 18 + 2 * draw(100);
        if (!strcmp(key, "n_positions")) value = 9 + draw(500);
        edit_json(&config_json, key, format("%d", value));
        const char *what = format("%s: %s is %d", break_part(CONFIG, 1), key, value);
        checkpoint_command((Reader)draw(4));
        refused("broken/" STEP, what);
    }
}

/* ---- safetensors: its entries as text, to be written with a flaw */

typedef struct { char name[200], dtype[40], shape[100], offsets[100], rest[40]; int64_t begin, end; } Entry;
typedef struct { Entry entry[64]; int count; char metadata[80]; Blob data; } Safe;
static Safe sound[2], safe;      /* the model's, the optimizer's; the one that is being broken */

static void read_safe(Safe *to, const char *path) {
    SafeFile file = safetensors_open(path);
    const unsigned char *data = file.shard[0].map.bytes + file.shard[0].map.size;
    for (int i = 0; i < file.count; i++) if (file.tensor[i].data < data) data = file.tensor[i].data;
    to->count = file.count;
    to->data.size = (size_t)(file.shard[0].map.bytes + file.shard[0].map.size - data);
    memcpy(to->data.bytes, data, to->data.size);
    strcpy(to->metadata, "{\"format\":\"pt\"}");
    for (int i = 0; i < file.count; i++) {
        const SafeTensor *t = &file.tensor[i];
        Entry *e = &to->entry[i];
        snprintf(e->name, sizeof e->name, "%s", t->name);
        snprintf(e->dtype, sizeof e->dtype, "\"%s\"", t->dtype);
        snprintf(e->shape, sizeof e->shape, t->ndim == 2 ? "[%d,%d]" : "[%d]", (int)t->dim[0], (int)t->dim[1]);
        e->begin = t->data - data;
        e->end = e->begin + t->bytes;
    }
    safetensors_close(&file);
}

/* Into the blob; offsets, where a case has not set them, from begin and end. */
static void write_safe(void) {
    char *header;
    size_t size;
    FILE *text = open_memstream(&header, &size);
    fprintf(text, "{\"__metadata__\":%s", safe.metadata);
    for (const Entry *e = safe.entry; e < safe.entry + safe.count; e++) {
        fprintf(text, ",\"%s\":{\"dtype\":%s,\"shape\":%s,\"data_offsets\":", e->name, e->dtype, e->shape);
        if (*e->offsets) fprintf(text, "%s%s}", e->offsets, e->rest);
        else fprintf(text, "[%lld,%lld]%s}", (long long)e->begin, (long long)e->end, e->rest);
    }
    fputc('}', text);
    fclose(text);
    word32(blob.bytes, (uint32_t)size), word32(blob.bytes + 4, 0);
    memcpy(blob.bytes + 8, header, size);
    memcpy(blob.bytes + 8 + size, safe.data.bytes, safe.data.size);
    blob.size = 8 + size + safe.data.size;
    free(header);
}

static const char *break_entry(Entry *e) {
    static const char *const dtypes[] = {
        "\"F16\"", "\"BF16\"", "\"F64\"", "\"I32\"", "\"U8\"", "\"f32\"", "\"F32 \"", "\"\"", "5", "null", "[]",
        "\"FLOAT\"", "\"\\u001b\"", "\"F8_E4M3\"", "\"I64\"",
    };
    static const char *const shapes[] = {
        "[4294967296,4294967296]", "[9223372036854775807,2]", "[-16,-16]", "[1.5]", "[\"16\"]", "null", "16", "{}",
        "[[16]]", "[]", "[0]", "[1,1,1,1,1,1,1,1,1]", "[16,]", "[1e3]", "[18446744073709551617]", "[true]",
        "[2,2,2,2,2,2,2,2,2,2,2,2]", "[9223372036854775808]", "[4611686018427387904,4]", "[0,9223372036854775807]",
    };
    static const char *const offsets[] = {
        "[0]", "[]", "[0,1,2]", "null", "\"0,64\"", "[-64,0]", "[0,9223372036854775807]", "[0,18446744073709551616]",
        "[0.5,64]", "[64,0]", "[9223372036854775807,9223372036854775807]", "{}", "[\"0\",\"64\"]",
        "[0,99999999999999999999999999]", "[null,64]", "[0,1e2]",
    };
    static const char *const names[] = {
        "", "x", "\\u0000", "\\u001b[31m", "\\ud800", "\\q", "transformer.h.1.ln_1.weight", "__metadata__",
        "\\u009b2J", "transformer.h.01.ln_1.weight", "a\\nb",
    };
    static const char *const rests[] = { ",\"x\":1", ",\"dtype\":\"F32\"", ",", "}", ",\"shape\":[1]", ",1" };
    Entry *next = &safe.entry[draw(safe.count)];
    const char *value;
    int by = 1 + draw(64);
    char shape[sizeof e->shape], name[sizeof e->name];
    switch (draw(12)) {
    case 0: strcpy(e->dtype, value = ANY(dtypes)); return format("%s has type %s", e->name, value);
    case 1: strcpy(e->shape, value = ANY(shapes)); return format("%s has shape %s", e->name, value);
    case 2: strcpy(e->offsets, value = ANY(offsets)); return format("%s has offsets %s", e->name, value);
    case 3:
        if (draw(2)) snprintf(shape, sizeof shape, "[1,%s", e->shape + 1);
        else         snprintf(shape, sizeof shape, "%.*s,1]", (int)strlen(e->shape) - 1, e->shape);
        strcpy(e->shape, shape);
        return format("%s has shape %s", e->name, shape);
    case 4: e->end += by; return format("%s ends %d bytes late", e->name, by);
    case 5: e->end -= by; return format("%s ends %d bytes early", e->name, by);
    case 6: e->begin += by, e->end += by; return format("%s is %d bytes late", e->name, by);
    case 7:
        strcpy(name, e->name), strcpy(e->name, value = ANY(names));
        return format("%s is called %s", name, value);
    case 8:
        for (next = safe.entry; !strcmp(e->shape, next->shape); ) next++;
        value = format("%s and %s have changed names", e->name, next->name);
        strcpy(name, e->name), strcpy(e->name, next->name), strcpy(next->name, name);
        return value;
    case 9:
        strcpy(e->rest, value = ANY(rests));
        return format("%s with %s behind", e->name, value);
    case 10:
        value = format("without %s", e->name);
        *e = safe.entry[--safe.count];
        return value;
    default:
        if (e == next) next = &safe.entry[(e - safe.entry + 1) % safe.count];
        strcpy(next->name, e->name);
        return format("%s twice", e->name);
    }
}

/* The file as a whole. The header length is read as 8 bytes. */
static const char *break_bytes(void) {
    uint32_t length = (uint32_t)(blob.bytes[0] | blob.bytes[1] << 8 | blob.bytes[2] << 16);
    int size = (int)blob.size, n, byte;
    switch (draw(8)) {
    case 0: blob.size = (size_t)(n = draw(size)); return format("truncated to %d bytes", n);
    case 1: blob.size += (size_t)(n = 1 + draw(3000)); return format("%d bytes behind its end", n);
    case 2:
        blob.bytes[n = 8 + draw(length)] = (unsigned char)(byte = ANY(((const int[]){ 0, 1, 7, 31, 255 })));
        return format("byte %d is %d", n, byte);
    case 3:
        word32(blob.bytes, length + (uint32_t)(n = 1 + draw(100)));
        return format("its header is said to have %d bytes more", n);
    case 4:
        word32(blob.bytes, length - (uint32_t)(n = 1 + draw(length)));
        return format("its header is said to have %d bytes less", n);
    case 5:
        word32(blob.bytes + 4, (uint32_t)(n = 1 + draw(INT32_MAX - 1)));
        return format("its header is said to have 2^32 times %d bytes", n);
    case 6:
        word32(blob.bytes, (uint32_t)(n = size + draw(INT32_MAX - size)));
        return format("its header is said to have %d bytes", n);
    default: return format("this is %s, %zu bytes", blob_foreign(), blob.size);
    }
}

/* Tensors that each are sound: one too many, a head of its own, a hole between, numbers that are none. */
static const char *break_content(void) {
    static const char *const names[] = {
        "extra", "lm_head.bias", "lm_head.weight", "transformer.h.1.ln_1.bias", "score.weight", "exp_avg.x",
        "h.0.lora",
    };
    static const char *const metadata[] = {
        "{\"a\":}", "nul", "[1,]", "{\"format\":01}", "{\"a\" \"b\"}", "{\"a\":\"\\u0000\"}", "{", "",
    };
    Entry *e = &safe.entry[safe.count], *last = &safe.entry[draw(safe.count)];
    int by = 8 * (1 + draw(8)), kind = draw(4);
    if (kind == 0) {
        *e = (Entry){ .dtype = "\"F32\"", .begin = (int64_t)safe.data.size, .end = (int64_t)safe.data.size + by };
        strcpy(e->name, ANY(names));
        snprintf(e->shape, sizeof e->shape, "[%d]", by / 4);
        memset(safe.data.bytes + safe.data.size, 0, (size_t)by);
        safe.data.size += (size_t)by;
        safe.count++;
        return format("with a tensor %s of %d numbers", e->name, by / 4);
    }
    if (kind == 1) {
        for (Entry *late = safe.entry; late < safe.entry + safe.count; late++)
            if (late->begin > last->begin) late->begin += by, late->end += by;
        safe.data.size += (size_t)by;
        return format("a hole of %d bytes behind %s", by, last->name);
    }
    if (kind == 2) {
        strcpy(safe.metadata, ANY(metadata));
        return format("metadata %s", safe.metadata);
    }
    for (e = safe.entry; !strstr(e->name, "ln_f.weight"); ) e++;
    int place = draw((e->end - e->begin) / 4);
    uint32_t value = ANY(((const uint32_t[]){ 0x7fc00000, 0xffc00000, 0x7f800001 }));
    word32(safe.data.bytes + e->begin + 4 * place, value);
    return format("weight %d of the last layernorm is NaN (%08x)", place, value);
}

static void broken_tensors(int part, int count) {
    for (int i = 0; i < count; i++) {
        Reader reader = part == MODEL ? (Reader)draw(4) : RESUME;
        const char *what;
        safe = sound[part == OPTIMIZER];
        switch (draw(4)) {
        case 0: what = break_content(); write_safe(); break;
        case 1: write_safe(); what = break_bytes(); break;
        default: what = break_entry(&safe.entry[draw(safe.count)]); write_safe();
        }
        what = format("%s: %s", break_part(part, 1), what);
        checkpoint_command(reader);
        refused(part == MODEL ? "model.safetensors" : "optimizer.safetensors", what);
    }
}

/* ---- What only a resume reads; parts that are no files at all */

static void broken_states(void) {
    static const char *const keys[] = {
        "step", "sequences_seen", "tokens", "val_step", "optimizer_step", "nonfinite", "spikes",
    };
    static const struct { const char *key, *value; } other[] = {
        { "step", "3" }, { "step", "9223372036854775807" }, { "tokens", "9223372036854775807" },
        { "optimizer_step", "9223372036854775807" }, { "val_loss", "\"3\"" }, { "val_loss", "1e999" },
        { "val_loss", NULL }, { "val_loss", "[]" }, { "val_step", "3" }, { "nonfinite", "11" },
        { "window_loss", "[1], \"x\": [0" }, { "window_loss", NULL }, { "window_log_norm", NULL },
        { "train", "5" }, { "train", "\"none\"" }, { "train", "null" }, { "train", NULL },
        { "settings", "5, \"x\": {" }, { "settings", "[], \"x\": {" },
        { "settings", NULL }, { "batch", "\"0\"" }, { "batch", "2" }, { "batch", "\"two\"" }, { "lr", "\"nan\"" },
        { "lr", "null" }, { "attention", "\"best\"" }, { "steps", "\"-1\"" }, { "data", "\"nowhere.txt\"" },
        { "data", "\"good16.bin\"" }, { "heads", "\"3\"" }, { "context", "\"9\"" }, { "layers", "\"2\"" },
        { "channels", "\"32\"" }, { "schedule", "\"\\u001b[1m\"" }, { "dtype", "\"bf16\"" }, { "beta1", "\"1\"" },
        { "total-batch", "\"17\"" }, { "model", "\"d5\"" }, { "vocab", "\"255\"" }, { "seed", "\"-1\"" },
        { "val-fraction", "\"0.95\"" }, { "eps", "[]" }, { "clip", "\"\\u0000\"" },
    };
    for (int i = 0; i < 70; i++) {
        const char *what = break_json(&state_json, keys, COUNT(keys));
        what = format("%s: %s", break_part(STATE, 1), what);
        checkpoint_command(RESUME);
        refused("state.json", what);
    }
    for (int i = 0; i < COUNT(other); i++) {
        edit_json(&state_json, other[i].key, other[i].value);
        const char *what = format("%s: %s is %s", break_part(STATE, 1), other[i].key, other[i].value);
        checkpoint_command(RESUME);
        refused(NULL, what);
    }
}

static void other_resumes(void) {
    static const char *const numbers[] = { "layers", "channels", "context" };
    static const char *const others[] = {
        "--heads 4", "--heads 3", "--vocab 300", "--model d5", "--dtype bf16", "--data nowhere", "--data good16.bin",
        "--val-data good16.bin", "--data dir", "--min-lr 0.5", "--total-batch 17", "--init nowhere", "--out none",
    };
    break_part(NO_PART, 0);
    for (int i = 0; i < 3 * COUNT(numbers); i++) {
        checkpoint_command(RESUME), words(format("--%s %d", numbers[i / 3], 16 * (2 + draw(50))));
        refused(numbers[i / 3], "a resume with another size of the model");
    }
    for (int i = 0; i < COUNT(others); i++) {
        checkpoint_command(RESUME), words(others[i]);
        refused(NULL, "a resume with a setting that it cannot have");
    }
}

static void malformed_checkpoints(void) {
    begin_family("checkpoints");
    read_safe(&sound[0], "run/" STEP "/model.safetensors");
    read_safe(&sound[1], "run/" STEP "/optimizer.safetensors");
    for (int reader = EVAL; reader <= RESUME; reader++) {
        for (int part = 0; part < 2; part++) {      /* the model as this test writes it, and untouched */
            safe = sound[0], write_safe();
            break_part(part ? MODEL : NO_PART, 1);
            checkpoint_command((Reader)reader);
            accepted("a sound checkpoint");
            remove_tree("new");
        }
    }
    safe = sound[1], write_safe();
    break_part(OPTIMIZER, 1), checkpoint_command(RESUME);
    accepted("a sound optimizer");
    broken_configs();
    broken_tensors(MODEL, 250);
    broken_tensors(OPTIMIZER, 90);
    broken_states();
    for (int i = 0; i < 60; i++) {
        int part = draw(4);
        const char *path = break_part(part, 0), *what = format("%s is %s", path, no_file(path));
        checkpoint_command(part <= MODEL ? (Reader)draw(4) : RESUME);
        refused("broken", what);
    }
    other_resumes();
    remove_tree("broken");
    end_family(560);
}

#endif
