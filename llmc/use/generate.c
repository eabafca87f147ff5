#include "generate.h"
#include "../ranks/launch.h"

typedef struct {
    GPT       *model;
    Tokenizer *tokenizer;
    const Settings *settings;
    Report    *report;          /* gets the sample as an event of the run; NULL = none */
    int64_t    step;            /* the training step */
    FILE      *file;
    int        is_raw;          /* file gets the bytes of tokens as they are: no terminal, not the log of a run */
    const char *stop;           /* text before which an answer ends; "" = none */
    int32_t   *token;           /* all so far, also those after the end of a text */
    size_t     count, room;
    size_t     first, cached;   /* the model's context begins at the first token; its cache has those up to cached */
    uint64_t   index;           /* index of the next random number: number of the sample << 40 | of its token */

    FILE      *stream;          /* to text: a prompt, if that is written, and its answer */
    char      *text;
    size_t     size, end, written;      /* end: before the first character that may begin stop */
    int        has_ended;
} Sampler;

static void append(Sampler *s, int32_t token) {
    s->token = host_grow(s->token, s->count, &s->room, sizeof token, "the tokens of a sample");
    s->token[s->count++] = token;
}

/* Where the last n tokens do not fit, half of the context before them stays, or as much as fits: its positions change,
   so it is passed again. */
static void make_room(Sampler *s, size_t n) {
    const size_t T = (size_t)s->model->context;
    if (s->count - s->first <= T) return;
    s->cached = s->first = s->count - (n + T / 2 < T ? n + T / 2 : T);
}

/* Adds a token of the answer, which ends at tokenizer_end_of_text and before stop. */
static void add_to_text(Sampler *s, int32_t token) {
    const size_t length = strlen(s->stop);
    const int is_end = token == tokenizer_end_of_text(s->tokenizer, s->model->config.V);
    size_t left;
    if (!is_end) tokenizer_print(s->tokenizer, token, s->stream);
    fflush(s->stream);
    while ((left = s->size - s->end) && (is_end || !length ||
                                         memcmp(s->text + s->end, s->stop, left < length ? left : length)))
        s->end++;
    s->has_ended = is_end || (length && left >= length);
}

/* Generates the next token. */
static void generate(Sampler *s) {
    const Settings *how = s->settings;
    const Sampling sampling = { how->temperature, (int)how->top_k, how->top_p };
    const double uniform = random_uniform((uint64_t)how->seed, RANDOM_SAMPLE, (uint32_t)s->step, s->index++);
    int32_t next;
    gpt_set_window(s->model, (int)(s->cached - s->first), (int)(s->count - s->cached));
    gpt_load(s->model, s->token + s->cached, NULL, NULL);
    gpt_next(s->model, sampling, &uniform, &next);
    REQUIRE(next >= 0, "sample: the logit of token %d is not finite: the model has diverged, take an earlier "
            "checkpoint", -1 - next);
    add_to_text(s, next);
    s->cached = s->count;
    append(s, next);
    make_room(s, 1);
}

static void write_text(Sampler *s) {
    const char *from = s->text + s->written;
    const size_t size = s->end - s->written;
    s->written += s->is_raw ? fwrite(from, 1, size, s->file) : text_print(from, size, s->has_ended, s->file);
    fflush(s->file);
}

static volatile sig_atomic_t is_answering, is_interrupted;      /* interactive mode on a terminal */

/* Continues the context by the text and up to --sample-tokens generated tokens, and writes them token by token. An
   empty first text is a token that is not written. */
static void answer(Sampler *s, const char *text) {
    const uint64_t end = s->index + (uint64_t)s->settings->sample_tokens;
    int length;
    int32_t *prompt = tokenizer_encode(s->tokenizer, text, s->model->config.V, &length);
    s->stream = string_open(&s->text, &s->size, "the text of a sample");
    for (int i = 0; i < length; i++) {
        append(s, prompt[i]);
        if (!s->settings->interactive) tokenizer_print(s->tokenizer, prompt[i], s->stream);
    }
    if (!s->count) append(s, tokenizer_start(s->tokenizer, s->model->config.V));
    make_room(s, (size_t)length);
    fflush(s->stream);
    s->end = s->size;
    s->written = 0;
    s->has_ended = 0;
    write_text(s);
    while (!s->has_ended && s->index < end && !is_interrupted && !stop_requested()) {
        generate(s);
        write_text(s);
    }
    if (!s->has_ended) s->end = s->size;
    s->has_ended = 1;
    write_text(s);
    putc('\n', s->file);
    fflush(s->file);
    fclose(s->stream);
    s->text[s->end] = 0;
    if (s->report) report_sample(s->report, s->step, s->text, s->end);
    free(s->text);
    free(prompt);
}

/* Text from stdin as a new string: a line, NULL at the end, or all without the newline at its end. CRLF is a newline; a
   byte order mark is skipped. */
static char *read_prompt(int is_line) {
    enum { MAX = 1 << 24 };
    const char *option = is_line ? "--interactive" : "--prompt -";
    char *text = host_alloc(MAX + 2, option);
    size_t size = 0;
    for (int c = 0; size <= MAX && !(is_line && c == '\n') && (c = getchar()) != EOF; ) text[size++] = (char)c;
    REQUIRE(!ferror(stdin), "%s: cannot be read: %s", option, strerror(errno));
    if (is_line && !size) {
        free(text);
        return NULL;
    }
    REQUIRE(strlen(text) == size, "%s: a zero byte at position %zu, want text", option, strlen(text));
    REQUIRE(size <= MAX, "%s: more than %d bytes, want a shorter text", option, MAX);
    char *to = text;
    for (const char *from = text + utf8_mark(text, size); *from; from++) {
        if (is_line && *from == '\33') {        /* a key of a terminal, such as an arrow: ESC [ 1 ; 5 C, ESC O P */
            from += 1 + strspn(from + 1, "[O;0123456789");
            if (!isalpha((unsigned char)*from) && *from != '~') from--;
        } else if (*from != '\r' || (from[1] && from[1] != '\n')) {
            *to++ = *from;
        }
    }
    if (to > text && to[-1] == '\n') to--;
    *to = 0;
    return text;
}

static void on_interrupt(int number) {
    if (is_answering && !is_interrupted++) return;
    if (isatty(STDIN_FILENO)) (void)!write(STDERR_FILENO, "\n", 1);         /* ends the line of the prompt */
    _exit(128 + number);
}

/* Continues the lines of stdin in one context; the first follows the prompt. SIGINT ends an answer; the second, one
   before the next line is read, or the end of stdin the program. */
static void answer_lines(Sampler *s, const char *prompt) {
    const int is_terminal = isatty(STDIN_FILENO);
    signal(SIGINT, on_interrupt);
    if (is_terminal)
        fputs("Enter continues the text, Ctrl-D ends; rlwrap in front of the command edits lines\n", stderr);
    for (char *line; ; prompt = "", free(line)) {       /* the prompt is part of the first line only */
        if (is_terminal) fputs("> ", stderr);
        if (!(line = read_prompt(1))) break;
        char *text = format_string("%s%s", prompt, line);
        is_interrupted = 0;
        is_answering = 1;
        answer(s, text);
        is_answering = 0;
        free(text);
    }
    if (is_terminal) putchar('\n');
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

char *sample_prompt(const Settings *s, Tokenizer *tokenizer, GPTConfig *config) {
    char *prompt = strcmp(s->prompt, "-") ? unescape(s->prompt) : read_prompt(0);
    const int T = config->T;
    int length;
    REQUIRE(!*s->stop || tokenizer != TOKENIZER_IDS, "--stop '%s': the text of token ids is not known; want "
            "--tokenizer DIR", s->stop);
    free(tokenizer_encode(tokenizer, prompt, config->V, &length));
    if (length > T && !comm_rank)
        print_line(stderr, "warning: the prompt has %d tokens, the context %d: the model sees the last %d to %d",
                   length, T, T / 2 + 1, T);
    const int64_t tokens = (length ? length : 1) + s->sample_tokens;
    config->cache_tokens = tokens < T ? (int)tokens : T;
    return prompt;
}

void sample_text(GPT *model, Tokenizer *tokenizer, const Settings *settings, const char *prompt, Report *report,
                 int64_t step, FILE *file) {
    char *stop = unescape(settings->stop);
    Sampler s = { .model = model, .tokenizer = tokenizer, .settings = settings, .report = report, .step = step,
                  .file = file, .is_raw = !report && !isatty(fileno(file)), .stop = stop };
    gpt_set_cache(model, 1, model->purpose == GENERATE ? model->config.T : model->config.cache_tokens);
    if (settings->interactive) answer_lines(&s, prompt);
    for (int64_t i = 0; i < settings->num_samples && !settings->interactive; i++) {
        if (i) fputs("---\n", file);
        s.count = s.first = s.cached = 0;
        s.index = (uint64_t)i << 40;
        answer(&s, prompt);
    }
    free(s.token);
    free(stop);
}

void print_sample(GPT *model, Tokenizer *tokenizer, const Settings *s, const char *prompt, Report *report,
                  int64_t step) {
    if (comm_rank) return;
    print_line(stdout, "step %lld: a sample", (long long)step);
    heartbeat_busy(1);             /* other ranks wait */
    sample_text(model, tokenizer, s, prompt, report, step, stdout);
    heartbeat_busy(0);
}
