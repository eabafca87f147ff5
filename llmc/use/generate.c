#include "generate.h"
#include "../base/os.h"
#include "../base/terminal.h"
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

/* ---- Samples, side by side */

typedef struct {
    GPT      *model;
    Tokenizer tokenizer;
    const Sample *how;
    int64_t   step, index;      /* training step; number of the next token */
    FILE     *file;
    int       is_raw;           /* file gets the bytes of tokens as they are: no terminal, not the log of a run */
    int       samples;
    int       count, cached;    /* tokens of each sample in the model's context; the first `cached` are in its cache */
    int32_t  *token;            /* (samples, context of the model) */
    int32_t  *batch;            /* the tokens passed next, in the same layout */
    int32_t   end_of_text;      /* -1 = none */
    int32_t  *next;             /* (rows, samples): generated tokens; end_of_text from a sample's end on */
    size_t    rows, room;
    int       sample;           /* the one being written, after all before it have ended */
    size_t    written;          /* its tokens written so far */
} Samples;

static Samples samples_open(GPT *model, Tokenizer tokenizer, const Sample *how, int64_t step, FILE *file) {
    const int room = model->purpose == GENERATE ? model->config.T : model->config.cache_tokens;
    const size_t bytes = (size_t)how->samples * (size_t)room * sizeof(int32_t);
    gpt_set_cache(model, how->samples, room);
    return (Samples){ .model = model, .tokenizer = tokenizer, .how = how, .step = step, .samples = how->samples,
                      .file = file, .is_raw = !how->copy && !isatty(fileno(file)),
                      .token = host_alloc(bytes, "the context of a sample"),
                      .batch = host_alloc(bytes, "the context of a sample"),
                      .end_of_text = tokenizer_end_of_text(tokenizer, model->config.V) };
}

static void samples_close(Samples *s) {
    free(s->token);
    free(s->batch);
    free(s->next);
}

/* Prints before the text, which a message would interrupt. The last token is not passed to the model. */
static void warn_of_length(int T, int64_t tokens) {
    static int is_printed;
    if (tokens - 1 > T && !is_printed++)
        fprintf(stderr, "train_gpt: warning: a sample of up to %lld tokens is longer than the context of %d tokens: "
                "the model sees the last %d to %d\n", (long long)tokens, T, T / 2 + 1, T);
}

/* Adds n tokens to each sample, sample b's at tokens + b * stride. Where they do not fit, half of the context stays, or
   as much as fits: its positions change, so it is passed again. */
static void append(Samples *s, const int32_t *tokens, int n, int stride) {
    const int T = s->model->context, added = n < T ? n : T;
    const int stays = s->count + added <= T ? s->count : T / 2 + added <= T ? T / 2 : T - added;
    for (int b = 0; b < s->samples; b++) {
        int32_t *row = s->token + (int64_t)b * T;
        memmove(row, row + s->count - stays, (size_t)stays * sizeof *row);
        memcpy(row + stays, tokens + (int64_t)b * stride + n - added, (size_t)added * sizeof *row);
    }
    if (stays < s->count) s->cached = 0;
    s->count = stays + added;
}

static int32_t *row_of(const Samples *s, size_t row) { return s->next + row * (size_t)s->samples; }

static int has_ended(const Samples *s, int b) { return s->rows && row_of(s, s->rows - 1)[b] == s->end_of_text; }

/* Generates the next token of each sample; for a single sample possibly several, up to max and the end of the text. */
static void generate_rows(Samples *s, int64_t max) {
    GPT *m = s->model;
    const int T = m->context, n = s->count - s->cached, samples = s->samples;
    const int64_t room = max < T - s->cached ? max : T - s->cached;
    const int count = samples > 1 ? 1 : room < GPT_TOKENS_AHEAD ? (int)room : GPT_TOKENS_AHEAD;
    double *uniform = host_alloc((size_t)(samples * count) * sizeof *uniform, "the random numbers of a token");
    int32_t *next = host_alloc((size_t)(samples * count) * sizeof *next, "the tokens of a step");
    for (int b = 0; b < samples; b++) {
        memcpy(s->batch + (int64_t)b * n, s->token + (int64_t)b * T + s->cached, (size_t)n * sizeof *s->batch);
        for (int i = 0; i < count; i++)
            uniform[b + i] = random_uniform(s->how->seed, RANDOM_SAMPLE, (uint32_t)s->step,
                                            (uint64_t)b << 40 | (uint64_t)(s->index + i));
    }
    gpt_set_window(m, s->cached, n);
    gpt_load(m, s->batch, NULL);
    int made = gpt_next(m, s->how->sampling, count, uniform, next);
    for (int i = 1; i < made; i++) if (next[i] < 0 || next[i - 1] == s->end_of_text) made = i;
    for (int b = 0; b < samples; b++)
        REQUIRE(next[b] >= 0, "sample: the logit of token %d is not finite: the model has diverged, take an earlier "
                "checkpoint", -1 - next[b]);
    for (int i = 0; i < made; i++) {
        s->cached = s->count;
        append(s, next + i, 1, 1);
        for (int b = 0; b < samples; b++) if (has_ended(s, b)) next[i + b] = s->end_of_text;
        s->next = host_grow(s->next, s->rows, &s->room, (size_t)samples * sizeof *next, "the tokens of samples");
        memcpy(row_of(s, s->rows++), next + i, (size_t)samples * sizeof *next);
    }
    s->index += made;
    free(next);
    free(uniform);
}

static void put_tokens(const Samples *s, const int32_t *token, int count) {
    for (int i = 0; i < count; i++) {
        tokenizer_print(s->tokenizer, token[i], s->file, s->is_raw);
        if (s->how->copy) tokenizer_print(s->tokenizer, token[i], s->how->copy, 1);
    }
}

/* Writes the tokens generated so far; is_all: they are complete. */
static void write_rows(Samples *s, const int32_t *prompt, int length, int is_all) {
    for (; s->sample < s->samples; s->sample++, s->written = 0) {
        if (s->sample && !s->written) fputs("---\n", s->file);
        if (s->sample && !s->written) put_tokens(s, prompt, length);
        for (; s->written < s->rows && row_of(s, s->written)[s->sample] != s->end_of_text; s->written++)
            put_tokens(s, &row_of(s, s->written)[s->sample], 1);
        if (s->written == s->rows && !is_all) break;
        tokenizer_print_end(s->file);
        putc('\n', s->file);
    }
    fflush(s->file);
}

static volatile sig_atomic_t is_answering, is_interrupted;      /* interactive mode on a terminal */

/* Continues all samples by the text and up to how->count generated tokens. An empty first text is a token that is not
   written. */
static void answer(Samples *s, const char *text, int is_echoed) {
    const int64_t end = s->index + s->how->count;
    const int32_t start = tokenizer_start(s->tokenizer, s->model->config.V);
    int length;
    int32_t *prompt = tokenizer_encode(s->tokenizer, text, s->model->config.V, &length);
    warn_of_length(s->model->context, s->count + (length || s->count ? length : 1) + s->how->count);
    if (length || !s->count) append(s, length ? prompt : &start, length ? length : 1, 0);
    const int echoed = is_echoed ? length : 0;
    put_tokens(s, prompt, echoed);
    fflush(s->file);
    s->rows = s->written = 0;
    s->sample = 0;
    for (int goes_on = 1; goes_on && s->index < end && !is_interrupted && !stop_requested(); ) {
        generate_rows(s, end - s->index);
        write_rows(s, prompt, echoed, 0);
        goes_on = 0;
        for (int b = 0; b < s->samples; b++) goes_on |= !has_ended(s, b);
    }
    write_rows(s, prompt, echoed, 1);
    free(prompt);
}

void sample_text(GPT *model, Tokenizer tokenizer, const Sample *sample, int64_t step, FILE *file) {
    Samples s = samples_open(model, tokenizer, sample, step, file);
    answer(&s, sample->prompt, 1);
    samples_close(&s);
}

/* Text from stdin as a new string: a line, NULL at the end, or all without the newline at its end. CRLF is a newline; a
   byte order mark is skipped. */
static char *read_prompt(int is_line) {
    enum { MAX = 1 << 24 };
    const char *option = is_line ? "--interactive" : "--prompt -";
    char *text = host_alloc(MAX + 1, "the prompt");
    size_t size = 0;
    int c;
    while ((c = getchar()) != EOF && !(is_line && c == '\n')) {
        REQUIRE(c, "%s: a zero byte at position %zu, want text", option, size);
        REQUIRE(size < MAX, "%s: more than %d bytes, want a shorter text", option, MAX);
        if (c == '\n' && size && text[size - 1] == '\r') size--;
        text[size++] = (char)c;
    }
    REQUIRE(!ferror(stdin), "%s: cannot be read: %s", option, strerror(errno));
    const int is_end = is_line && c == EOF && !size;
    if (size && text[size - 1] == '\n') size--;
    if (size && text[size - 1] == '\r') size--;
    text[size] = 0;
    char *prompt = is_end ? NULL : format_string("%s", text + utf8_mark(text, size));
    free(text);
    return prompt;
}

static void on_interrupt(int number) {
    if (is_answering && !is_interrupted++) return;
    if (isatty(STDIN_FILENO)) (void)!write(STDERR_FILENO, "\n", 1);         /* ends the line of the prompt */
    _exit(128 + number);
}

/* Continues the lines of stdin, each up to sample->count tokens, in one context, on stdout; the first follows the
   prompt. SIGINT ends an answer; the second, one before the next line is read, or the end of stdin the program. */
static void sample_interactively(GPT *model, Tokenizer tokenizer, const Sample *sample) {
    const int is_terminal = isatty(STDIN_FILENO);
    Samples s = samples_open(model, tokenizer, sample, 0, stdout);
    const char *text = sample->prompt;
    signal(SIGINT, on_interrupt);
    for (;; text = "") {            /* the prompt is part of the first line only */
        if (is_terminal) fputs("> ", stderr);
        char *line = read_prompt(1);
        if (!line) break;
        char *all = format_string("%s%s", text, line);
        is_interrupted = 0;
        is_answering = 1;
        answer(&s, all, 0);
        is_answering = 0;
        free(all);
        free(line);
    }
    if (is_terminal) putchar('\n');
    samples_close(&s);
}

/* ---- By the settings */

static Sample sample_of(const Settings *s, const char *prompt) {
    return (Sample){ .prompt = prompt, .count = (int)s->sample_tokens, .samples = (int)s->num_samples,
                     .sampling = { s->temperature, (int)s->top_k, s->top_p }, .seed = (uint64_t)s->seed };
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
    const int64_t tokens = (length ? length : 1) + s->sample_tokens;
    return tokens < config->T ? (int)tokens : config->T;
}

void print_sample(GPT *model, Tokenizer tokenizer, const Settings *s, Report *report, int64_t step) {
    if (comm_rank) return;
    char *text = NULL, *prompt = unescape(s->prompt);
    size_t size;
    if (step) print_line(stdout, "step %lld: a sample", (long long)step);
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
    char *prompt = strcmp(s->prompt, "-") ? unescape(s->prompt) : read_prompt(0);
    Sample sample = sample_of(s, prompt);
    free(tokenizer_encode(tokenizer, prompt, model->config.V, &(int){0}));      /* an error is then the only output */
    if (note) fprintf(stderr, "checkpoint %s\n", note);
    fprintf(stderr, "seed %lld\n", (long long)s->seed);
    if (s->interactive) sample_interactively(model, tokenizer, &sample);
    else                sample_text(model, tokenizer, &sample, 0, stdout);
    free(prompt);
}
