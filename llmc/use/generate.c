#include "generate.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../kernels/check.h"
#include "../../kernels/comm.h"
#include "../base/files.h"
#include "../base/os.h"
#include "../base/random.h"
#include "../base/terminal.h"
#include "../ranks/rendezvous.h"

/* ---- Samples, side by side */

typedef struct {
    GPT      *model;
    Tokenizer tokenizer;
    const Sample *how;
    int64_t   step;             /* of training */
    FILE     *file;
    int       is_raw;           /* file gets the bytes of tokens as they are: no terminal, not the log of a run */
    int32_t   end_of_text;      /* -1 = none */
    int32_t  *token;            /* (count, samples): the text so far; end_of_text from a sample's end on */
    size_t    count, room;
    size_t    first, cached;    /* the model's context begins at the first token; its cache has those up to cached */
    int64_t   index;            /* number of the next token to generate */
    size_t    answer;           /* the first token generated for the current prompt */
} Samples;

static int32_t token_of(const Samples *s, size_t at, int b) {
    return s->token[at * (size_t)s->how->samples + (size_t)b];
}

static int has_ended(const Samples *s, int b) {
    return s->count > s->answer && token_of(s, s->count - 1, b) == s->end_of_text;
}

/* Adds a token to each sample; stride: from a sample's to the next one's. */
static void append(Samples *s, const int32_t *token, int stride) {
    const size_t samples = (size_t)s->how->samples;
    s->token = host_grow(s->token, s->count, &s->room, samples * sizeof *token, "the tokens of samples");
    for (size_t b = 0; b < samples; b++) s->token[s->count * samples + b] = token[b * (size_t)stride];
    s->count++;
}

/* Where the last n tokens do not fit, half of the context before them stays, or as much as fits: its positions change,
   so it is passed again. */
static void make_room(Samples *s, size_t n) {
    const size_t T = (size_t)s->model->context;
    if (s->count - s->first <= T) return;
    s->cached = s->first = s->count - (n + T / 2 < T ? n + T / 2 : T);
}

/* Generates the next token of each sample; for a single sample possibly several, up to max and the end of the text. */
static void generate(Samples *s, int64_t max) {
    GPT *m = s->model;
    const int samples = s->how->samples, n = (int)(s->count - s->cached), at = (int)(s->cached - s->first);
    const int64_t room = max < m->context - at ? max : m->context - at;
    const int count = samples > 1 ? 1 : room < GPT_TOKENS_AHEAD ? (int)room : GPT_TOKENS_AHEAD;
    int32_t *batch = host_alloc((size_t)(samples * n) * sizeof *batch, "the context of a sample");
    double *uniform = host_alloc((size_t)(samples * count) * sizeof *uniform, "the random numbers of a token");
    int32_t *next = host_alloc((size_t)(samples * count) * sizeof *next, "the tokens of a step");
    for (int b = 0; b < samples; b++) {
        for (int i = 0; i < n; i++) batch[b * n + i] = token_of(s, s->cached + (size_t)i, b);
        for (int i = 0; i < count; i++)
            uniform[b + i] = random_uniform(s->how->seed, RANDOM_SAMPLE, (uint32_t)s->step,
                                            (uint64_t)b << 40 | (uint64_t)(s->index + i));
    }
    gpt_set_window(m, at, n);
    gpt_load(m, batch, NULL);
    int made = gpt_next(m, s->how->sampling, count, uniform, next);
    for (int i = 1; i < made; i++) if (next[i] < 0 || next[i - 1] == s->end_of_text) made = i;
    for (int b = 0; b < samples; b++)
        REQUIRE(next[b] >= 0, "sample: the logit of token %d is not finite: the model has diverged, take an earlier "
                "checkpoint", -1 - next[b]);
    for (int i = 0; i < made; i++) {
        for (int b = 0; b < samples; b++) if (has_ended(s, b)) next[i + b] = s->end_of_text;
        s->cached = s->count;
        append(s, next + i, 1);
        make_room(s, 1);
    }
    s->index += made;
    free(next);
    free(uniform);
    free(batch);
}

/* Writes the tokens of a sample from `at` on, up to its end; returns the next one to write. */
static size_t write_tokens(const Samples *s, int b, size_t at) {
    for (; at < s->count && (at < s->answer || token_of(s, at, b) != s->end_of_text); at++) {
        tokenizer_print(s->tokenizer, token_of(s, at, b), s->file, s->is_raw);
        if (s->how->copy) tokenizer_print(s->tokenizer, token_of(s, at, b), s->how->copy, 1);
    }
    fflush(s->file);
    return at;
}

static volatile sig_atomic_t is_answering, is_interrupted;      /* interactive mode on a terminal */

/* Continues all samples by the text and up to how->count generated tokens. An empty first text is a token that is not
   written. The first sample is written token by token, the others at the end. */
static void answer(Samples *s, const char *text, int is_echoed) {
    static int is_warned;
    const int T = s->model->context;
    const int64_t end = s->index + s->how->count;
    const int32_t start = tokenizer_start(s->tokenizer, s->model->config.V);
    int length, goes_on = 1;
    int32_t *prompt = tokenizer_encode(s->tokenizer, text, s->model->config.V, &length);
    for (int i = 0; i < length; i++) append(s, prompt + i, 0);
    free(prompt);
    if (!s->count) append(s, &start, 0);
    s->answer = s->count;
    const size_t begin = is_echoed ? s->count - (size_t)length : s->count;
    /* before the text, which a message would interrupt; the last token is not passed to the model */
    const int64_t tokens = (int64_t)(s->count - s->first) + s->how->count;
    if (tokens - 1 > T && !is_warned++)
        fprintf(stderr, "train_gpt: warning: a sample of up to %lld tokens is longer than the context of %d tokens: "
                "the model sees the last %d to %d\n", (long long)tokens, T, T / 2 + 1, T);
    make_room(s, (size_t)length);
    size_t written = write_tokens(s, 0, begin);
    while (goes_on && s->index < end && !is_interrupted && !stop_requested()) {
        generate(s, end - s->index);
        written = write_tokens(s, 0, written);
        goes_on = 0;
        for (int b = 0; b < s->how->samples; b++) goes_on |= !has_ended(s, b);
    }
    for (int b = 0; b < s->how->samples; b++) {
        if (b) fputs("---\n", s->file), write_tokens(s, b, begin);
        tokenizer_print_end(s->file);
        putc('\n', s->file);
    }
    fflush(s->file);
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

/* Continues the lines of stdin, each up to how->count tokens, in one context; the first follows the prompt. SIGINT ends
   an answer; the second, one before the next line is read, or the end of stdin the program. */
static void answer_lines(Samples *s) {
    const int is_terminal = isatty(STDIN_FILENO);
    const char *text = s->how->prompt;
    signal(SIGINT, on_interrupt);
    for (char *line; ; text = "", free(line)) {        /* the prompt is part of the first line only */
        if (is_terminal) fputs("> ", stderr);
        if (!(line = read_prompt(1))) break;
        char *all = format_string("%s%s", text, line);
        is_interrupted = 0;
        is_answering = 1;
        answer(s, all, 0);
        is_answering = 0;
        free(all);
    }
    if (is_terminal) putchar('\n');
}

void sample_text(GPT *model, Tokenizer tokenizer, const Sample *sample, int64_t step, FILE *file) {
    Samples s = { .model = model, .tokenizer = tokenizer, .how = sample, .step = step, .file = file,
                  .is_raw = !sample->copy && !isatty(fileno(file)),
                  .end_of_text = tokenizer_end_of_text(tokenizer, model->config.V) };
    gpt_set_cache(model, sample->samples, model->purpose == GENERATE ? model->config.T : model->config.cache_tokens);
    if (sample->is_interactive) answer_lines(&s);
    else                        answer(&s, sample->prompt, 1);
    free(s.token);
}

/* ---- By the settings */

static Sample sample_of(const Settings *s, const char *prompt) {
    return (Sample){ .prompt = prompt, .count = (int)s->sample_tokens, .samples = (int)s->num_samples,
                     .is_interactive = s->interactive, .sampling = { s->temperature, (int)s->top_k, s->top_p },
                     .seed = (uint64_t)s->seed };
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
    sample_text(model, tokenizer, &sample, 0, stdout);
    free(prompt);
}
