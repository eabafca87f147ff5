#include "generate.h"
#include <ctype.h>
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
#include "../ranks/rendezvous.h"

/* ---- Samples, side by side */

typedef struct {                /* a sample's prompt, if that is written, and answer */
    FILE  *stream;              /* to text */
    char  *text;
    size_t size, end, written;  /* end: before the first character that may begin how->stop */
    int    has_ended;
} Text;

typedef struct {
    GPT      *model;
    Tokenizer tokenizer;
    const Sample *how;
    int64_t   step;             /* the training step */
    FILE     *file;
    int       is_raw;           /* file gets the bytes of tokens as they are: no terminal, not the log of a run */
    int32_t  *token;            /* (count, samples): the context, also behind the end of a sample's text */
    size_t    count, room;
    size_t    first, cached;    /* the model's context begins at the first token; its cache has those up to cached */
    int64_t   index;            /* number of the next token to generate */
    Text     *text;             /* (samples): of the current prompt */
    int       open;             /* samples that have not ended */
} Samples;

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

/* Adds a token of the answer, which ends at tokenizer_end_of_text and before how->stop. */
static void add_to_text(Samples *s, Text *t, int32_t token) {
    const size_t length = strlen(s->how->stop);
    const int is_end = token == tokenizer_end_of_text(s->tokenizer, s->model->config.V);
    size_t left;
    if (t->has_ended) return;
    if (!is_end) tokenizer_print(s->tokenizer, token, t->stream, 1);
    fflush(t->stream);
    while ((left = t->size - t->end) && (is_end || !length ||
                                         memcmp(t->text + t->end, s->how->stop, left < length ? left : length)))
        t->end++;
    t->has_ended = is_end || (length && left >= length);
    s->open -= t->has_ended;
}

/* Generates the next token of each sample. */
static void generate(Samples *s) {
    const int samples = s->how->samples, n = (int)(s->count - s->cached);
    int32_t *batch = host_alloc((size_t)(samples * n) * sizeof *batch, "the context of a sample");
    double *uniform = host_alloc((size_t)samples * sizeof *uniform, "the random numbers of a token");
    int32_t *next = host_alloc((size_t)samples * sizeof *next, "the next tokens");
    for (int b = 0; b < samples; b++) {
        for (int i = 0; i < n; i++) batch[b * n + i] = s->token[(s->cached + (size_t)i) * (size_t)samples + (size_t)b];
        uniform[b] = random_uniform(s->how->seed, RANDOM_SAMPLE, (uint32_t)s->step,
                                    (uint64_t)b << 40 | (uint64_t)s->index);
    }
    gpt_set_window(s->model, (int)(s->cached - s->first), n);
    gpt_load(s->model, batch, NULL);
    gpt_next(s->model, s->how->sampling, uniform, next);
    for (int b = 0; b < samples; b++) {
        REQUIRE(next[b] >= 0, "sample: the logit of token %d is not finite: the model has diverged, take an earlier "
                "checkpoint", -1 - next[b]);
        add_to_text(s, &s->text[b], next[b]);
    }
    s->index++;
    s->cached = s->count;
    append(s, next, 1);
    make_room(s, 1);
    free(next);
    free(uniform);
    free(batch);
}

static void write_text(const Samples *s, Text *t) {
    for (; t->written < t->end; t->written++)
        tokenizer_print(TOKENIZER_BYTES, (unsigned char)t->text[t->written], s->file, s->is_raw);
    fflush(s->file);
}

static volatile sig_atomic_t is_answering, is_interrupted;      /* interactive mode on a terminal */

/* Continues all samples by the text and up to how->count generated tokens. An empty first text is a token that is not
   written. The first sample is written token by token, the others at the end. */
static void answer(Samples *s, const char *text) {
    const int64_t end = s->index + s->how->count;
    int length;
    int32_t *prompt = tokenizer_encode(s->tokenizer, text, s->model->config.V, &length);
    for (int i = 0; i < length; i++) append(s, prompt + i, 0);
    if (!s->count) append(s, &(int32_t){ tokenizer_start(s->tokenizer, s->model->config.V) }, 0);
    make_room(s, (size_t)length);
    for (Text *t = s->text; t < s->text + s->how->samples; t++) {
        *t = (Text){0};
        t->stream = string_open(&t->text, &t->size, "the text of a sample");
        for (int i = 0; i < length && !s->how->is_interactive; i++)
            tokenizer_print(s->tokenizer, prompt[i], t->stream, 1);
        fflush(t->stream);
        t->end = t->size;
    }
    s->open = s->how->samples;
    write_text(s, s->text);
    while (s->open && s->index < end && !is_interrupted && !stop_requested()) {
        generate(s);
        write_text(s, s->text);
    }
    for (Text *t = s->text; t < s->text + s->how->samples; t++) {
        if (t > s->text) fputs("---\n", s->file);
        if (!t->has_ended) t->end = t->size;
        write_text(s, t);
        tokenizer_print_end(s->file);
        putc('\n', s->file);
        if (s->how->copy) fwrite(t->text, 1, t->end, s->how->copy);
        fclose(t->stream);
        free(t->text);
    }
    fflush(s->file);
    free(prompt);
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
        if (is_line && c == '\33') {        /* a key of a terminal, such as an arrow: ESC [ 1 ; 5 C, ESC O P */
            while ((c = getchar()) != EOF && strchr("[O;0123456789", c)) { }
            if (!isalpha(c) && c != '~') ungetc(c, stdin);
            continue;
        }
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
    if (is_terminal)
        fputs("Enter continues the text, Ctrl-D ends; rlwrap in front of the command edits lines\n", stderr);
    for (char *line; ; text = "", free(line)) {        /* the prompt is part of the first line only */
        if (is_terminal) fputs("> ", stderr);
        if (!(line = read_prompt(1))) break;
        char *all = format_string("%s%s", text, line);
        is_interrupted = 0;
        is_answering = 1;
        answer(s, all);
        is_answering = 0;
        free(all);
    }
    if (is_terminal) putchar('\n');
}

void sample_text(GPT *model, Tokenizer tokenizer, const Sample *sample, int64_t step, FILE *file) {
    Samples s = { .model = model, .tokenizer = tokenizer, .how = sample, .step = step, .file = file,
                  .is_raw = !sample->copy && !isatty(fileno(file)),
                  .text = host_alloc((size_t)sample->samples * sizeof *s.text, "the text of samples") };
    gpt_set_cache(model, sample->samples, model->purpose == GENERATE ? model->config.T : model->config.cache_tokens);
    if (sample->is_interactive) answer_lines(&s);
    else                        answer(&s, sample->prompt);
    free(s.text);
    free(s.token);
}

/* ---- By the settings */

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

/* Made once. Fails where prompt or --stop do not suit the tokenizer. */
static Sample sample_of(const Settings *s, Tokenizer tokenizer, const GPTConfig *config, int *length) {
    static Sample sample;
    const int is_first = !sample.prompt, T = config->T;
    if (is_first)
        sample = (Sample){ .prompt = strcmp(s->prompt, "-") ? unescape(s->prompt) : read_prompt(0),
                           .stop = unescape(s->stop), .count = (int)s->sample_tokens, .samples = (int)s->num_samples,
                           .is_interactive = s->interactive, .seed = (uint64_t)s->seed,
                           .sampling = { s->temperature, (int)s->top_k, s->top_p } };
    REQUIRE(!*s->stop || tokenizer != TOKENIZER_IDS, "--stop '%s': the text of token ids is not known; want "
            "--tokenizer DIR", s->stop);
    free(tokenizer_encode(tokenizer, sample.prompt, config->V, length));
    if (is_first && *length > T && !comm_rank)
        print_line(stderr, "warning: the prompt has %d tokens, the context %d: the model sees the last %d to %d",
                   *length, T, T / 2 + 1, T);
    return sample;
}

int sample_cache_tokens(const GPTConfig *config, Tokenizer tokenizer, const Settings *s) {
    int length;
    sample_of(s, tokenizer, config, &length);
    const int64_t tokens = (length ? length : 1) + s->sample_tokens;
    return tokens < config->T ? (int)tokens : config->T;
}

void print_sample(GPT *model, Tokenizer tokenizer, const Settings *s, Report *report, int64_t step) {
    if (comm_rank) return;
    char *text = NULL;
    size_t size;
    if (step) print_line(stdout, "step %lld: a sample", (long long)step);
    heartbeat_busy(1);             /* other ranks wait */
    Sample sample = sample_of(s, tokenizer, &model->config, &(int){0});
    sample.copy = string_open(&text, &size, "a sample");
    sample_text(model, tokenizer, &sample, step, stdout);
    fclose(sample.copy);
    report_sample(report, step, text, size);
    free(text);
    heartbeat_busy(0);
}

void sample_checkpoint(GPT *model, Tokenizer tokenizer, const Settings *s, const char *note) {
    const Sample sample = sample_of(s, tokenizer, &model->config, &(int){0});
    if (note) fprintf(stderr, "checkpoint %s\n", note);
    if (s->temperature > 0) fprintf(stderr, "seed %lld\n", (long long)s->seed);
    sample_text(model, tokenizer, &sample, 0, stdout);
}
