/* targets.c - The fuzz targets: readers of untrusted input, and the properties of every result they accept. */
#include "fuzz.h"
#include "../../llmc/text/bpe_files.h"
#include "../../llmc/checkpoint/safetensors.h"
#include "../../llmc/use/tasks.h"
#include "../../data/texts.h"
#include "../../llmc/checkpoint/resume.h"
#include "../../llmc/model/model_config.h"

typedef struct { const char *bytes; size_t size; } Input;

/* A file of what lies before the first zero byte, and one of what lies behind it, where there is one. */
static void two_files(const char *path, const char *other, const char *bytes, size_t size) {
    const size_t length = strnlen(bytes, size);
    fuzz_file(path, bytes, length);
    if (length < size) fuzz_file(other, bytes + length + 1, size - length - 1);
}

/* ---- json: what is accepted can be written and read again, and is the same; grammar and members: test_files */

static void write_json(FILE *file, const Json *json) {
    const char *open = json->type == JSON_OBJECT ? "{" : "[", *close = json->type == JSON_OBJECT ? "}" : "]";
    if (json->type == JSON_STRING) json_write_string(file, json->text);
    else if (json->type < JSON_ARRAY) fputs(json_text(json), file);
    else {
        int count = 0;
        fputs(open, file);
        for (const Json *child = json->child; child; child = child->next, count++) {
            if (count) fputs(" ,\n", file);
            if (json->type == JSON_OBJECT) json_write_string(file, child->key), fputs(" :\t", file);
            write_json(file, child);
        }
        fputs(close, file);
        CLAIM(count == json->count, "%d children, %d counted", count, json->count);
    }
}

static void claim_equal(const Json *a, const Json *b) {
    CLAIM(a->type == b->type && a->count == b->count, "type %d, %d children, and type %d, %d children", a->type,
          a->count, b->type, b->count);
    CLAIM(!a->text == !b->text && (!a->text || !strcmp(a->text, b->text)), "%s and %s", a->text, b->text);
    CLAIM(!a->key == !b->key && (!a->key || !strcmp(a->key, b->key)), "%s and %s", a->key, b->key);
    for (a = a->child, b = b->child; a && b; a = a->next, b = b->next) claim_equal(a, b);
    CLAIM(!a && !b, "one has fewer children");
}

static void parse_and_free(void *argument) {
    Input *input = argument;
    json_free(json_parse(input->bytes, input->size, "FILE"));
}

static void read_json(const char *bytes, size_t size) {
    Input input = { bytes, size };
    if (!fuzz_try(parse_and_free, &input, FREES_ALL, "FILE")) return;
    Json *json = json_parse(bytes, size, "FILE"), *again;
    char *text;
    FILE *file = open_memstream(&text, &size);
    write_json(file, json);
    fclose(file);
    again = json_parse(text, size, "FILE");
    claim_equal(json, again);
    json_free(again);
    json_free(json);
    free(text);
}

/* ---- safetensors: all of it is covered, each byte once. What begins with '{' lacks its 8 bytes of length: the header
   is then all up to the last '}'. */

static void safe_file(const char *path, const char *bytes, size_t size) {
    size_t length = size;
    if (!size || *bytes != '{') {
        fuzz_file(path, bytes, size);
        return;
    }
    while (bytes[length - 1] != '}' && length > 1) length--;
    unsigned char *whole = malloc(size + 8);
    for (int i = 0; i < 8; i++) whole[i] = (unsigned char)((uint64_t)length >> (8 * i));
    memcpy(whole + 8, bytes, size);
    fuzz_file(path, whole, size + 8);
    free(whole);
}

/* Reads all of a file, or of an index. */
static void open_safe(void *argument) {
    SafeFile file = safetensors_open(argument);
    int64_t bytes = 0, zeros = 0;
    char text[256];
    for (int i = 0; i < file.count; i++) {
        const SafeTensor *t = &file.tensor[i];
        CLAIM(safetensors_find(&file, t->name) == t, "%s is not found", t->name);
        CLAIM(i == 0 || strcmp(t[-1].name, t->name) < 0, "%s stands after %s", t->name, t[-1].name);
        CLAIM(strlen(safetensors_shape(t, text)) < sizeof text, "a shape as long as that");
        for (int64_t k = 0; k < t->bytes; k++) zeros += !t->data[k];        /* a read of every byte */
        long double want = 1;       /* as exact as 64 bits, and does not wrap */
        for (int d = 0; d < t->ndim; d++) want *= (long double)t->dim[d];
        CLAIM(want * 8 >= (long double)t->bytes && want <= (long double)t->bytes, "%s has %lld bytes, and is %s",
              t->name, (long long)t->bytes, text);
        bytes += t->bytes;
    }
    for (int i = 0; i < file.shards; i++) {
        bytes -= file.shard[i].map.size - 8;
        for (int k = 7; k >= 0; k--) bytes += (int64_t)file.shard[i].map.bytes[k] << (8 * k);
    }
    CLAIM(bytes == 0 && zeros >= 0, "the tensors have %lld bytes more than the files", (long long)bytes);
    safetensors_close(&file);
}

static void read_safetensors(const char *bytes, size_t size) {
    safe_file("FILE", bytes, size);
    fuzz_try(open_safe, "FILE", FREES_ALL, "FILE");
}

/* ---- index: its JSON up to the first NUL, then a.safetensors; b.safetensors holds one byte */

static void infer_config(void *argument) {
    GPTConfig c = weights_config(argument);
    CLAIM(c.L >= 0 && c.C >= 1 && c.T >= 1 && c.V >= 1, "a model of %d channels", c.C);
}

static void read_index(const char *bytes, size_t size) {
    static const char one[] = "{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}1";
    size_t length = strnlen(bytes, size), rest = length < size ? size - length - 1 : 0;
    fuzz_file("C/F.index.json", bytes, length);
    safe_file("C/a.safetensors", bytes + size - rest, rest);
    safe_file("C/b.safetensors", one, sizeof one - 1);
    fuzz_try(open_safe, "C/F.index.json", FREES_ALL, "C/");
    fuzz_try(infer_config, "C/F.index.json", FREES_ALL, "");
}

/* ---- weights: a file that is accepted holds finite numbers alone */

static Params params, moments;
static GPTConfig tiny = { .L = 1, .NH = 1, .C = 2, .T = 2, .V = 3, .Vp = 64, .dtype = F32 };

static void read_params(void *path) {
    weights_read(path, &params.table, &(Part){ "", "", params.table.memory }, 1, tiny.V);
}

static void read_moments(void *path) {
    Part part[] = { { "exp_avg.", "exp_avg.", params.table.memory },
                    { "exp_avg_sq.", "exp_avg_sq.", moments.table.memory } };
    weights_read(path, &params.table, part, 2, tiny.V);
}

static void claim_weights(const Params *p) {
    static float host[4096];
    CLAIM(p->table.bytes <= sizeof host, "the tiny model takes %zu bytes", p->table.bytes);
    device_download(host, p->table.memory, p->table.bytes);
    for (int r = 0; r < p->table.count; r++) {
        const TensorEntry *row = &p->table.entry[r];
        const float *number = host + row->offset / sizeof *host;
        for (int64_t i = 0; i < tensor_count(*row->field); i++) {
            CLAIM(isfinite(number[i]), "%s: number %lld is %g", row->name, (long long)i, (double)number[i]);
            CLAIM(row->layout != VOCABULARY || i < tiny.V * tiny.C || number[i] == 0, "the padding holds %g",
                  (double)number[i]);
        }
    }
}

static void fill_half(const Params *p) {
    static float host[4096];
    for (int i = 0; i < 4096 && !host[4095]; i++) host[i] = 0.5f;
    device_upload(p->table.memory, host, p->table.bytes);
}

static void read_weights(const char *bytes, size_t size) {
    if (!params.table.memory) {
        device_open((DeviceOptions){ .threads = 1 });
        params_create(&params, &tiny, F32, NULL, "the parameters");
        params_create(&moments, &tiny, F32, NULL, "the moments");
    }
    safe_file("FILE", bytes, size);
    fill_half(&params);
    if (fuzz_try(read_params, "FILE", FREES_ALL, "FILE")) claim_weights(&params);
    fill_half(&params);
    fill_half(&moments);
    if (!fuzz_try(read_moments, "FILE", FREES_ALL, "FILE")) return;
    claim_weights(&params);
    claim_weights(&moments);
}

/* ---- train_gpt's table of options, for the targets checkpoint and options */

static Settings settings;
static Option options[SETTINGS_ROWS];

typedef struct { int argc; char **argv; } Words;

static void parse(void *argument) {
    Words *words = argument;
    settings_parse(&settings, options, words->argc, words->argv);
    free(command_line(words->argc, words->argv));
}

/* Every value as text sets the same value again, and lies within its range. */
static void claim_values(void) {
    for (Option *o = options; o->name || o->help; o++) {
        char text[256], again[256];
        if (!o->name) continue;
        const char *was = option_text(o, text);
        option_set(o, was);
        CLAIM(!strcmp(option_text(o, again), was), "--%s: %s became %s", o->name, was, option_text(o, again));
        if (!*was || (o->type != OPTION_INTEGER && o->type != OPTION_REAL)) continue;
        const double value = o->type == OPTION_INTEGER ? (double)*(int64_t *)o->value : *(double *)o->value;
        CLAIM((o->choices && value == 0) || (value >= o->min && value <= o->max), "--%s %g", o->name, value);
    }
}

/* The model and the batch that a resume reads from config.json and state.json, and its memory plan. */
static void plan_resume(void *dir) {
    resume_adopt_options(options, checkpoint_open_state(dir), NULL);
    claim_values();
    GPTConfig config = checkpoint_config(dir);
    config = model_config(&settings, dir, &config, 0);
    if (config.L > 10) return;                     /* the tables of 1000 layers take time */
    batch_choose(&settings, &config, TRAIN);
    MemoryPlan plan = memory_plan(&config, settings.attention, (int)settings.batch, TRAIN);
    double stream = 4.0 * (double)settings.batch * config.T * config.C;
    double weights = 4.0 * (double)gpt_parameter_count(&config);
    CLAIM((double)plan.parameters >= weights && (double)plan.activations >= (config.recompute ? 1 : 9) * stream &&
          plan.total > plan.activations && plan.total > plan.parameters,
          "%zu bytes of parameters, %zu of activations, %zu in all, for %g and 1 or 9 times %g at least",
          plan.parameters, plan.activations, plan.total, weights, stream);
}

/* ---- checkpoint: the same bytes as config.json and as state.json, beside a model of three tensors */

static void load_config(void *dir) {
    GPTConfig c = checkpoint_config(dir);
    CLAIM(c.L >= 1 && c.NH >= 1 && c.C >= 1 && c.C % c.NH == 0 && c.T >= 1 && c.V >= 1 && c.Vp >= c.V && c.Vp % 64 == 0,
          "a model of %d blocks, %d heads, %d channels, context %d, vocabulary %d", c.L, c.NH, c.C, c.T, c.V);
}

static void load_state(void *dir) {
    TrainState s = checkpoint_load_state(dir);
    CLAIM(s.step >= 0 && s.tokens >= 0 && (int64_t)s.sequences_seen >= 0 && s.val_step >= -1 && s.best.step >= 0 &&
          s.best.since >= 0 && isfinite(s.best.loss), "step %lld", (long long)s.step);
    CLAIM(s.spikes.count >= 0 && s.spikes.count <= SPIKE_WINDOW, "a window of %d", s.spikes.count);
    for (int i = 0; i < s.spikes.count; i++) CLAIM(isfinite(s.spikes.loss[i] + s.spikes.log_norm[i]), "number %d", i);
}

static void load_ids(void *dir) {
    Json *state = checkpoint_open_state(dir);
    CLAIM(json_string(state, "train"), "no text");
    checkpoint_tokenizer(dir, 256);
    json_free(state);
}

static void read_checkpoint(const char *bytes, size_t size) {
    static const char model[] = "{\"wte.weight\":{\"dtype\":\"U8\",\"shape\":[3,8],\"data_offsets\":[0,24]},"
                                "\"wpe.weight\":{\"dtype\":\"U8\",\"shape\":[2,8],\"data_offsets\":[24,40]},"
                                "\"h.0.ln_1.weight\":{\"dtype\":\"U8\",\"shape\":[0],"
                                "\"data_offsets\":[40,40]}}0123456789012345678901234567890123456789";
    fuzz_file("C/config.json", bytes, size);
    fuzz_file("C/state.json", bytes, size);
    safe_file("C/model.safetensors", model, sizeof model - 1);
    safe_file("C/optimizer.safetensors", "{}", 2);
    fuzz_try(load_config, "C", FREES_ALL, "C/config.json");
    fuzz_try(load_state, "C", FREES_ALL, "C/state.json");
    fuzz_try(load_ids, "C", FREES_ALL, "C/state.json");
    settings_parse(&settings, options, 1, (char *[]){ "train_gpt" });
    fuzz_try(plan_resume, "C", KEEPS, "");
}

/* ---- tokens. The first byte says what the rest is: 'b' a file of that name's kind, .bin; 's' three words of a shard's
   header, and its tokens; 'd' two of those, of equal length; else all of it is a text. */

static void shard_file(const char *path, const char *bytes, size_t size) {
    size_t head = size < 12 ? size : 12;
    char *whole = calloc(1, 1024 + size);
    memcpy(whole, bytes, head);
    memcpy(whole + 1024, bytes + head, size - head);
    fuzz_file(path, whole, 1024 + size - head);
    free(whole);
}

static void claim_window(const int32_t *input, const int32_t *target, int T, int V) {
    for (int t = 0; t < T; t++)
        CLAIM(input[t] >= 0 && input[t] < V && target[t] >= -1 && target[t] < V, "%d and %d of %d", input[t], target[t],
              V);
}

static void claim_windows(const Tokens *tokens, int V) {
    enum { LONGEST = 64 };
    int32_t input[LONGEST], target[LONGEST];
    int64_t count = tokens->count, sum = 0, trained = 0;
    int T = 8 + (int)(count % (LONGEST - 7));
    for (int64_t w = 0; w < tokens_windows(tokens, T); w++) {
        sum += tokens_eval_window(tokens, w, T, input, target);
        claim_window(input, target, T, V);
        trained += tokens_train_window(tokens, 1, (uint64_t)w, T, input, target);
        claim_window(input, target, T, V);
    }
    int64_t planned = tokens_train_targets(tokens, 1, 0, (uint64_t)tokens_windows(tokens, T), T);
    CLAIM(sum == count - 1 && trained == sum && planned == sum, "%lld, %lld and %lld targets of %lld tokens",
          (long long)sum, (long long)trained, (long long)planned, (long long)count);
}

static void check_tokens(void *argument) {
    Tokens *tokens = tokens_open(argument, NULL, NULL);
    int V = tokens->tokenizer == TOKENIZER_BYTES ? 256 : 50257;
    tokens_check(tokens, V);
    claim_windows(tokens, V);
    int64_t count = tokens->count;
    Tokens *part = tokens_slice(tokens, count / 3, count - count / 3 > 2 ? count - count / 3 : 2);
    claim_windows(part, V);
    tokens_close(part);
    tokens_close(tokens);
}

static void read_tokens(const char *bytes, size_t size) {
    switch (size ? *bytes : 0) {
    case 'b': fuzz_file("FILE.bin", bytes + 1, size - 1); break;
    case 's': shard_file("FILE.bin", bytes + 1, size - 1); break;
    case 'd':
        shard_file("1.FILE", bytes + 1, size / 2);
        shard_file("2.FILE", bytes + 1 + size / 2, size - 1 - size / 2);
        break;
    default: fuzz_file("FILE", bytes, size);
    }
    fuzz_try(check_tokens, "*", FREES_ALL, "");
}

/* ---- options: a line is a word of the command line; all of it is also a file for --config */

static void parse_config(void *path) {
    settings_parse(&settings, options, 3, (char *[]){ "train_gpt", "--config", path });
    claim_values();         /* texts are kept, until fuzz_try returns */
}

static void read_options(const char *bytes, size_t size) {
    char *words = malloc(size + 1), *argv[66] = { "train_gpt" };
    int argc = 1;
    memcpy(words, bytes, size);
    words[size] = 0;
    for (char *word = words; word && argc < 65; ) {
        argv[argc++] = word;
        word = strchr(word, '\n');
        if (word) *word++ = 0;
    }
    if (fuzz_try(parse, &(Words){ argc, argv }, FREES_ALL, "")) claim_values();
    free(words);
    fuzz_file("CONFIG", bytes, size);
    fuzz_try(parse_config, "CONFIG", KEEPS, "CONFIG");
}

/* ---- log: the log.csv that a resume goes on with */

static void open_log(void *dir) {
    Log log;
    RunInfo run = { .command = "train_gpt", .resumed_step = 100, .out = dir, .device = &(DeviceInfo){0},
                    .config = &(GPTConfig){ .L = 1, .NH = 1, .C = 8, .T = 8, .V = 8 }, .options = &(Option){0} };
    log_open(&log, &run);
    log_val_loss(&log, 1.5);
    log_step(&log, &(LogRow){ .step = 101 });
    log_file_close(&log.csv);
    log_file_close(&log.jsonl);
    free(log.row_end);
}

static void read_log(const char *bytes, size_t size) {
    tzset();            /* strftime calls it, and it keeps the memory that its first call allocates */
    fuzz_file("OUT/log.csv", bytes, size);
    fuzz_try(open_log, "OUT", FREES_ALL, "OUT/log.csv");
}

/* ---- page: what it shows, a log.csv, a zero byte, a log.jsonl */

/* Functions of scripts/curves.c. */
char *page_data(char *const *paths, int count, int is_live);
void  page_write(FILE *file, const char *data);

static void write_page(void *log) {
    char *data = page_data((char *[]){ log }, 1, 0);        /* first: it may fail */
    FILE *file = fopen("/dev/null", "we");
    CLAIM(file, "/dev/null");
    page_write(file, data);
    free(data);
    fclose(file);
}

static void read_page(const char *bytes, size_t size) {
    two_files("OUT/log.csv", "OUT/log.jsonl", bytes, size);
    fuzz_try(write_page, "OUT/log.csv", FREES_ALL, "OUT/log.");
}

/* ---- bpe: the first byte says what the rest is: 't' tokenizer.json, else vocab.json, a zero byte, merges.txt. What is
   accepted encodes its own input, any bytes, and decodes it; what it writes is the same tokenizer. */

static void open_bpe(void *dir) {
    Tokenizer *bpe = bpe_open(dir);
    bpe_free(bpe);
}

static void write_bpe(const Tokenizer *bpe) {
    char *text = bpe_file_text(bpe, "tokenizer.json", 0);
    fuzz_file("AGAIN/tokenizer.json", text, strlen(text));
    Tokenizer *again = bpe_open("AGAIN");
    CLAIM(bpe_fingerprint(again) == bpe_fingerprint(bpe), "another tokenizer is written than was read");
    bpe_free(again);
    free(text);
}

static void read_bpe(const char *bytes, size_t size) {
    if (!size) return;
    if (*bytes == 't') fuzz_file("TOK/tokenizer.json", bytes + 1, size - 1);
    else               two_files("TOK/vocab.json", "TOK/merges.txt", bytes + 1, size - 1);
    if (!fuzz_try(open_bpe, "TOK", FREES_ALL, "TOK")) return;
    Tokenizer *opened = bpe_open("TOK");
    int32_t *ids = malloc(size * sizeof *ids);
    const BpeVocabulary *v = &opened->v;
    for (int special = 0; special < 2; special++) {
        size_t at = 0, count = special ? bpe_encode_special(opened, bytes, size, ids)
                                       : bpe_encode(opened, bytes, size, ids);
        CLAIM(count <= size, "%zu ids of %zu bytes", count, size);
        for (size_t i = 0; i < count; i++) {
            CLAIM(ids[i] >= 0 && ids[i] < v->V, "id %d", ids[i]);
            const BpeToken *t = &v->token[ids[i]];
            CLAIM((size_t)t->size <= size - at && !memcmp(bytes + at, t->bytes, (size_t)t->size), "other text at %zu",
                  at);
            at += (size_t)t->size;
        }
        CLAIM(at == size, "%zu of %zu bytes", at, size);
    }
    write_bpe(opened);
    bpe_free(opened);
    free(ids);
}

/* ---- texts: the first byte chooses what a document is */

static void read_all_texts(void *kind) {
    static const char *const path = "FILE";
    Texts t = texts_open(&path, 1, *(DocumentKind *)kind, "a");
    int64_t bytes = 0;
    text_check(*t.map, path, t.kind, 0);
    t.stop = t.bytes / 2;
    while (texts_next(&t))
        for (size_t i = 0; i < t.span_count; i++) bytes += (int64_t)t.span[i].size;
    CLAIM(t.done == t.bytes, "%lld of %lld bytes", (long long)t.done, (long long)t.bytes);
    CLAIM(t.kind == DOCUMENT_FILE ? bytes == t.bytes : bytes <= t.bytes, "%lld bytes in spans", (long long)bytes);
    texts_close(&t);
}

static void read_texts(const char *bytes, size_t size) {
    if (!size) return;
    DocumentKind kind = (DocumentKind)(*bytes & 3);
    fuzz_file("FILE", bytes + 1, size - 1);
    fuzz_try(read_all_texts, &kind, FREES_ALL, "FILE");
}

/* ---- task: the first byte chooses which; a model of bytes */

static void read_items(void *name) {
    const GPTConfig config = { .T = 16, .V = 256 };
    Task task = task_read(name, "FILE", TOKENIZER_BYTES, &config);
    CLAIM(task.items > 0 && task.cut <= task.items, "%d items, %d cut", task.items, task.cut);
    for (int i = 0; i < task.items; i++) {
        const TaskItem *item = &task.item[i];
        CLAIM(item->label >= 0 && item->label < item->count, "label %d of %d", item->label, item->count);
        CLAIM(item->first + item->count <= task.rows, "rows %d + %d of %d", item->first, item->count, task.rows);
    }
    for (int i = 0; i < task.rows; i++) {
        const TaskRow *row = &task.row[i];
        CLAIM(row->targets > 0 && row->targets <= row->count && row->count <= 16, "%d targets in %d inputs",
              row->targets, row->count);
        for (int t = 0; t <= row->count; t++)
            CLAIM(row->token[t] > 0 && row->token[t] < 256, "token %d", row->token[t]);
    }
    task_free(&task);
}

static void read_task(const char *bytes, size_t size) {
    static const char *const names[] = { "multiple-choice", "hellaswag", "lambada", "multiple-choice" };
    if (!size) return;
    fuzz_file("FILE", bytes + 1, size - 1);
    fuzz_try(read_items, (void *)names[*bytes & 3], FREES_ALL, "FILE");
}

const FuzzTarget fuzz_targets[] = {
    { "json", read_json },
    { "safetensors", read_safetensors },
    { "index", read_index },
    { "weights", read_weights },
    { "checkpoint", read_checkpoint },
    { "tokens", read_tokens },
    { "options", read_options },
    { "log", read_log },
    { "page", read_page },
    { "bpe", read_bpe },
    { "texts", read_texts },
    { "task", read_task },
    {0}
};
