#include "generate.h"
#include "../base/os.h"
#include "../ranks/rendezvous.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../kernels/check.h"
#include "../../kernels/comm.h"
#include "../base/files.h"
#include "../base/random.h"

/* ---- What the model sees */

typedef struct {
    GPT     *model;
    int      samples;
    int      count, cached;     /* tokens of each sample; the first so many are in the model's cache */
    int32_t *token;             /* (samples, context of the model) */
    int32_t *batch;             /* the same, of the tokens that are passed next */
} Context;

/* Tokens that a sample may have; an empty prompt starts from one. */
static int64_t tokens_of(int prompt_length, int64_t count) { return (prompt_length ? prompt_length : 1) + count; }

/* Room in the cache for them, between steps of training. To GENERATE it is always T: the room decides into how many
   parts a GPU splits the keys, so that the bits would depend on the length of the sample. */
static int room_for(const GPTConfig *config, int64_t tokens) { return tokens < config->T ? (int)tokens : config->T; }

static Context context_open(GPT *model, int samples, int room) {
    const size_t bytes = (size_t)samples * (size_t)room * sizeof(int32_t);
    gpt_set_cache(model, samples, room);
    return (Context){ .model = model, .samples = samples, .token = host_alloc(bytes, "the context of a sample"),
                      .batch = host_alloc(bytes, "the context of a sample") };
}

static void context_close(Context *c) {
    free(c->token);
    free(c->batch);
}

/* Before the text, which a message would interrupt. The model does not see the last of the tokens. */
static void warn_of_length(int T, int64_t tokens) {
    static int said;
    if (tokens - 1 > T && !said++)
        fprintf(stderr, "train_gpt: warning: a sample of up to %lld tokens is longer than the context of %d tokens: "
                "the model sees the last %d to %d\n", (long long)tokens, T, T / 2 + 1, T);
}

/* Adds n tokens to each sample, those of sample b at tokens + b * stride. Where they do not fit, half of the context
   stays, or as much as fits: the positions of the rest change, so that they have to be passed again. */
static void context_append(Context *c, const int32_t *tokens, int n, int stride) {
    const int T = c->model->context, added = n < T ? n : T;
    const int stays = c->count + added <= T ? c->count : T / 2 + added <= T ? T / 2 : T - added;
    for (int b = 0; b < c->samples; b++) {
        int32_t *row = c->token + (int64_t)b * T;
        memmove(row, row + c->count - stays, (size_t)stays * sizeof *row);
        memcpy(row + stays, tokens + (int64_t)b * stride + n - added, (size_t)added * sizeof *row);
    }
    if (stays < c->count) c->cached = 0;
    c->count = stays + added;
}

/* The next token of each sample, the index-th; of a single one possibly more of them, up to `most` and not beyond the
   end of the text. They are appended. Returns their number. */
static int context_next(Context *c, const Sample *s, int64_t step, int64_t index, int64_t most, int32_t end,
                        int32_t *next) {
    GPT *m = c->model;
    const int T = m->context, n = c->count - c->cached;
    const int64_t room = most < T - c->cached ? most : T - c->cached;
    const int count = c->samples > 1 ? 1 : room < GPT_TOKENS_AHEAD ? (int)room : GPT_TOKENS_AHEAD;
    double *uniform = host_alloc((size_t)(c->samples * count) * sizeof *uniform, "the random numbers of a token");
    for (int b = 0; b < c->samples; b++) {
        memcpy(c->batch + (int64_t)b * n, c->token + (int64_t)b * T + c->cached, (size_t)n * sizeof *c->batch);
        for (int i = 0; i < count; i++)
            uniform[b + i] = random_uniform(s->seed, RANDOM_SAMPLE, (uint32_t)step,
                                            (uint64_t)b << 40 | (uint64_t)(index + i));
    }
    gpt_set_window(m, c->cached, n);
    gpt_load(m, c->batch, NULL);
    int made = gpt_next(m, s->sampling, count, uniform, next);
    for (int i = 1; i < made; i++) if (next[i] < 0 || next[i - 1] == end) made = i;
    for (int b = 0; b < c->samples; b++)
        REQUIRE(next[b] >= 0, "sample: the logit of token %d is not finite: the model has diverged, take an earlier "
                "checkpoint", -1 - next[b]);
    for (int i = 0; i < made; i++) {
        c->cached = c->count;
        context_append(c, next + i, 1, 1);
    }
    free(uniform);
    return made;
}

/* ---- Text */

/* What is written: sample after sample, each as soon as its tokens and those of the samples before it are known. */
typedef struct {
    Tokenizer tokenizer;
    FILE     *file, *copy;
    int       samples, sample;      /* sample: the one that is written */
    int64_t   written;              /* tokens of it */
    int64_t  *length;               /* of each sample, INT64_MAX while it goes on */
    int32_t  *token;                /* (count, samples) */
    int64_t   count, room;
} Output;

static void put_tokens(const Output *o, const int32_t *token, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        tokenizer_print(o->tokenizer, token[i], o->file);
        if (o->copy) tokenizer_print(o->tokenizer, token[i], o->copy);
    }
}

/* next: NULL = no more. */
static void output_append(Output *o, const int32_t *next, int32_t end_of_text, const int32_t *prompt,
                          int prompt_length) {
    if (o->count == o->room) {
        o->room = o->room ? 2 * o->room : 256;
        o->token = realloc(o->token, (size_t)(o->room * o->samples) * sizeof *o->token);
        REQUIRE(o->token, "out of memory: %lld tokens of samples", (long long)(o->room * o->samples));
    }
    for (int b = 0; b < o->samples; b++) {
        if (next) o->token[o->count * o->samples + b] = next[b];
        if (o->length[b] == INT64_MAX && (!next || next[b] == end_of_text)) o->length[b] = o->count;
    }
    o->count += next != NULL;
    while (o->sample < o->samples) {
        const int64_t length = o->length[o->sample], known = length < o->count ? length : o->count;
        for (; o->written < known; o->written++) put_tokens(o, o->token + o->written * o->samples + o->sample, 1);
        if (length == INT64_MAX) break;
        tokenizer_print_end(o->tokenizer, o->file);
        putc('\n', o->file);
        o->written = 0;
        if (++o->sample == o->samples) break;
        fputs("---\n", o->file);
        put_tokens(o, prompt, prompt_length);
    }
    fflush(o->file);
}

static int all_ended(const Output *o) {
    for (int b = 0; b < o->samples; b++) if (o->length[b] == INT64_MAX) return 0;
    return 1;
}

void sample_text(GPT *model, Tokenizer tokenizer, const Sample *sample, int64_t step, FILE *file) {
    int V = model->config.V, length;
    const int32_t start = tokenizer_start(tokenizer, V), end = tokenizer_end_of_text(tokenizer, V);
    int32_t *prompt = tokenizer_encode(tokenizer, sample->prompt, V, &length);
    int32_t *next = host_alloc((size_t)(sample->samples + GPT_TOKENS_AHEAD) * sizeof *next, "the tokens of a step");
    const int64_t tokens = tokens_of(length, sample->count);
    const int room = model->purpose == GENERATE ? model->config.T : room_for(&model->config, tokens);
    Context context = context_open(model, sample->samples, room);
    Output output = { .tokenizer = tokenizer, .file = file, .copy = sample->copy, .samples = sample->samples,
                      .length = host_alloc((size_t)sample->samples * sizeof *output.length, "the samples") };
    for (int b = 0; b < sample->samples; b++) output.length[b] = INT64_MAX;
    warn_of_length(model->context, tokens);
    context_append(&context, length ? prompt : &start, length ? length : 1, 0);
    put_tokens(&output, prompt, length);
    fflush(file);
    for (int64_t i = 0; i < sample->count && !all_ended(&output) && !stop_requested();) {
        const int made = context_next(&context, sample, step, i, sample->count - i, end, next);
        for (int k = 0; k < made; k++) output_append(&output, next + k, end, prompt, length);
        i += made;
    }
    if (!all_ended(&output)) output_append(&output, NULL, end, prompt, length);
    context_close(&context);
    free(output.length);
    free(output.token);
    free(next);
    free(prompt);
}

/* ---- On a terminal */

static volatile sig_atomic_t answering, interrupted;

static void on_interrupt(int number) {
    if (answering && !interrupted++) return;
    if (isatty(STDIN_FILENO)) (void)!write(STDERR_FILENO, "\n", 1);         /* ends the line of the prompt */
    _exit(128 + number);
}

/* Continues the lines of stdin, each up to sample->count tokens, in one context, on stdout; the first follows the
   prompt. SIGINT ends an answer; the second, one before the next line is read, or the end of stdin the program. */
static void sample_interactively(GPT *model, Tokenizer tokenizer, const Sample *sample) {
    const int32_t V = model->config.V, start = tokenizer_start(tokenizer, V), end = tokenizer_end_of_text(tokenizer, V);
    const int terminal = isatty(STDIN_FILENO);
    Context context = context_open(model, 1, model->config.T);
    Output output = { .tokenizer = tokenizer, .file = stdout };
    char *line = NULL, *text = format_string("%s", sample->prompt);
    size_t size = 0;
    int64_t index = 0;
    signal(SIGINT, on_interrupt);
    for (;;) {
        if (terminal) fputs("> ", stderr);
        ssize_t read = getline(&line, &size, stdin);
        if (read < 0) break;
        if (line[read - 1] == '\n') line[--read] = 0;
        REQUIRE(strlen(line) == (size_t)read, "--interactive: a line with a zero byte");
        char *all = format_string("%s%s", text, line);
        int32_t next[GPT_TOKENS_AHEAD];
        int length, made, ended = 0;
        int32_t *tokens = tokenizer_encode(tokenizer, all, V, &length);
        warn_of_length(model->context, (int64_t)context.count + length + sample->count);
        if (length) context_append(&context, tokens, length, 0);
        else if (!context.count) context_append(&context, &start, 1, 0);
        interrupted = 0;
        answering = 1;
        for (int i = 0; i < sample->count && !interrupted && !ended; i += made) {
            made = context_next(&context, sample, 0, index, sample->count - i, end, next);
            index += made;
            ended = next[made - 1] == end;
            put_tokens(&output, next, made - ended);
            fflush(stdout);
        }
        answering = 0;
        tokenizer_print_end(tokenizer, stdout);
        putchar('\n');
        fflush(stdout);
        *text = 0;              /* the prompt is part of the first line only */
        free(tokens);
        free(all);
    }
    if (terminal) putchar('\n');
    context_close(&context);
    free(text);
    free(line);
}

/* ---- By the settings */

static Sample sample_of(const Settings *s, const char *prompt) {
    return (Sample){ .prompt = prompt, .count = (int)s->sample_tokens, .samples = (int)s->num_samples,
                     .sampling = { s->temperature, (int)s->top_k, s->top_p, s->min_p }, .seed = (uint64_t)s->seed };
}

/* All of a file, NULL = stdin, without one newline at its end: a new string. */
static char *read_text(const char *path) {
    FILE *file = path ? fopen(path, "r") : stdin;
    char *text = NULL;
    size_t size = 0, length = 0;
    REQUIRE(file, "--prompt-file %s: %s", path, strerror(errno));
    do {
        if (size - length < 2) REQUIRE(text = realloc(text, size = 2 * size + 4096), "out of memory: the prompt");
        length += fread(text + length, 1, size - length - 1, file);
    } while (!feof(file) && !ferror(file));
    REQUIRE(!ferror(file), "%s: cannot be read: %s", path ? path : "--prompt -", strerror(errno));
    if (path) fclose(file);
    if (length && text[length - 1] == '\n') length--;
    text[length] = 0;
    REQUIRE(strlen(text) == length, "%s: a zero byte at position %zu, want text", path ? path : "--prompt -",
            strlen(text));
    return text;
}

/* \n, \t and \\ as a user types them; any other backslash stays. A new string. */
static char *unescape(const char *typed) {
    char *text = format_string("%s", typed), *to = text;
    for (const char *from = typed; *from; from++) {
        const char next = *from == '\\' ? from[1] : 0;
        *to++ = next == 'n' ? '\n' : next == 't' ? '\t' : *from;
        from += next == 'n' || next == 't' || next == '\\';
    }
    *to = 0;
    return text;
}

int sample_cache_tokens(const GPTConfig *config, Tokenizer tokenizer, const Settings *s) {
    char *prompt = unescape(s->prompt);
    int length;
    free(tokenizer_encode(tokenizer, prompt, config->V, &length));
    free(prompt);
    return room_for(config, tokens_of(length, s->sample_tokens));
}

void print_sample(GPT *model, Tokenizer tokenizer, const Settings *s, Report *report, int64_t step) {
    if (comm_rank) return;
    char *text = NULL, *prompt = unescape(s->prompt);
    size_t size;
    if (step) report_line(stdout, "step %lld: a sample", (long long)step);
    heartbeat_busy(1);             /* other ranks wait */
    Sample sample = sample_of(s, prompt);
    sample.copy = string_open(&text, &size, "a sample");
    sample_text(model, tokenizer, &sample, step, stdout);
    fclose(sample.copy);
    report_sample(report, step, text, size);
    free(prompt);
    free(text);
    heartbeat_busy(0);
}

void sample_checkpoint(GPT *model, Tokenizer tokenizer, const Settings *s, const char *note) {
    int is_stdin = !strcmp(s->prompt, "-");
    char *prompt = s->prompt_file || is_stdin ? read_text(s->prompt_file) : unescape(s->prompt);
    Sample sample = sample_of(s, prompt);
    free(tokenizer_encode(tokenizer, prompt, model->config.V, &(int){0}));      /* an error is the only line then */
    if (note) fprintf(stderr, "checkpoint %s\n", note);
    fprintf(stderr, "seed %lld\n", (long long)s->seed);
    if (s->interactive) sample_interactively(model, tokenizer, &sample);
    else                sample_text(model, tokenizer, &sample, 0, stdout);
    free(prompt);
}
