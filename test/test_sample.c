/* test/test_sample.c - Tokenizers, and text from a model. */
#include <fcntl.h>
#include <termios.h>
#include "../kernels/device.h"
#include "../llmc/json.h"
#include "../llmc/random.h"
#include "../llmc/generate.h"
#include "test.h"

#define SEED 20240520

/* ---- tokenizer */

typedef struct { Tokenizer tokenizer; const char *text; int V; } Encode;

static void encode(void *argument) {
    Encode *e = argument;
    int count;
    free(tokenizer_encode(e->tokenizer, e->text, e->V, &count));
}

static void text_to_tokens(void) {
    int count;
    int32_t *t = tokenizer_encode(TOKENIZER_BYTES, "a\xc3\xa9\n", 256, &count);
    EXPECT(count == 4 && t[0] == 'a' && t[1] == 0xc3 && t[2] == 0xa9 && t[3] == '\n', "%d tokens", count);
    free(t);
    t = tokenizer_encode(TOKENIZER_IDS, " 15496  995\t0\n50256 ", 50257, &count);
    EXPECT(count == 4 && t[0] == 15496 && t[1] == 995 && t[2] == 0 && t[3] == 50256, "%d tokens", count);
    free(t);
    for (int i = 0; i < 2; i++) {
        free(tokenizer_encode(i ? TOKENIZER_IDS : TOKENIZER_BYTES, "", 256, &count));
        EXPECT(count == 0, "%d tokens of an empty text", count);
        EXPECT(!strcmp(tokenizer_name(i ? TOKENIZER_IDS : TOKENIZER_BYTES), i ? "ids" : "bytes"), "the name of %d", i);
    }
    expect_fails("'12x' is no token id", encode, &(Encode){ TOKENIZER_IDS, "7 12x", 100 });
    expect_fails("'-1' is no token id",  encode, &(Encode){ TOKENIZER_IDS, "-1", 100 });
    expect_fails("'+1' is no token id",  encode, &(Encode){ TOKENIZER_IDS, "+1", 100 });
    expect_fails("'Hello' is no token id: want numbers", encode, &(Encode){ TOKENIZER_IDS, "Hello world", 100 });
    expect_fails("token id 100, want 0 to 99", encode, &(Encode){ TOKENIZER_IDS, "99 100", 100 });
    expect_fails("token id 4294967296, want 0 to 99", encode, &(Encode){ TOKENIZER_IDS, "4294967296", 100 });
    expect_fails("want 0 to 99", encode, &(Encode){ TOKENIZER_IDS, "99999999999999999999999999", 100 });
    expect_fails("byte 97 at position 1, want below 90", encode, &(Encode){ TOKENIZER_BYTES, "Aa", 90 });
}

/* GPT-2's letters: the space is U+0120, the newline U+010A, DEL U+0121, the soft hyphen the last of the others. */
static void bytes_for_huggingface(void) {
    static const struct { const char *letter; int byte; } letters[] = {
        { "\xc4\x80", 0 }, { "\xc4\x8a", '\n' }, { "\xc4\xa0", ' ' }, { "!", '!' }, { "\"", '"' }, { "\\", '\\' },
        { "~", '~' }, { "\xc4\xa1", 0x7F }, { "\xc5\x82", 0xA0 }, { "\xc2\xa1", 0xA1 }, { "\xc5\x83", 0xAD },
        { "\xc3\xbf", 0xFF },
    };
    char *text = tokenizer_file_text(TOKENIZER_BYTES, "tokenizer.json");
    Json *json = json_parse(text, strlen(text), "tokenizer.json");
    const Json *vocab = json_find(json_find(json, "model"), "vocab");
    EXPECT(vocab->count == 256, "%d letters", (int)vocab->count);
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++) {
        int64_t byte = json_integer(json_member(vocab, letters[i].letter, JSON_ANY), 0, 255);
        EXPECT(byte == letters[i].byte, "%s is %d, want %d", letters[i].letter, (int)byte, letters[i].byte);
    }
    json_free(json);
    free(text);
}

/* What comes out of file when the bytes of text go into tokenizer_print one by one. */
static void print_all(const char *text, size_t size, FILE *file) {
    for (size_t i = 0; i < size; i++) tokenizer_print(TOKENIZER_BYTES, (unsigned char)text[i], file);
    tokenizer_print_end(TOKENIZER_BYTES, file);
    fflush(file);
}

static void tokens_to_text(void) {
    char got[256] = "";
    FILE *file = tmpfile();
    print_all("\x1b[2J\xe2\x82", 6, file);      /* not a terminal: raw */
    tokenizer_print(TOKENIZER_IDS, 15496, file);
    tokenizer_print(TOKENIZER_IDS, 995, file);
    rewind(file);
    size_t size = fread(got, 1, sizeof got, file);
    EXPECT(size == 16 && !memcmp(got, "\x1b[2J\xe2\x82" "15496 995 ", 16), "%d bytes: %s", (int)size, got);
    fclose(file);
}

static void open_reference(void *dir) { tokenizer_check(tokenizer_open(dir), 499); }

/* A character whose bytes are tokens of their own comes out whole. */
static void bpe_speaks_text(void) {
    static const char text[] = "the \xe2\x82\xac<|endoftext|>";
    char got[256] = "";
    int count;
    Tokenizer bpe = tokenizer_open("test/reference/bpe");
    int32_t *ids = tokenizer_encode(bpe, text, 500, &count);
    EXPECT(!strcmp(tokenizer_name(bpe), "bpe") && !strcmp(tokenizer_dir(bpe), "test/reference/bpe"), "its names");
    EXPECT(count > 4 && ids[count - 1] == 499 && tokenizer_start(bpe, 600) == 499, "%d tokens", count);
    FILE *file = tmpfile();
    for (int i = 0; i < count; i++) tokenizer_print(bpe, ids[i], file);
    tokenizer_print(bpe, 555, file);            /* of the model, not of its tokenizer */
    rewind(file);
    size_t size = fread(got, 1, sizeof got, file), want = strlen(text);
    EXPECT(size == want + 3 && !memcmp(got, text, want) && !memcmp(got + want, "\xef\xbf\xbd", 3), "%s", got);
    EXPECT(!tokenizer_file_text(TOKENIZER_IDS, "tokenizer.json"), "ids have no files");
    tokenizer_check(bpe, 500);
    expect_fails("a tokenizer of 500 tokens, the model has 499", open_reference, "test/reference/bpe");
    fclose(file);
    free(ids);
    tokenizer_close(bpe);
}

static void terminal_comes_to_no_harm(void) {
    static const struct { const char *text, *want; } cases[] = {
        { "plain\ttext\n", "plain\ttext\n" },
        { "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80" },     /* whole */
        { "\x1b[2J\x07\r\x7f", "\\x1b[2J\\x07\\x0d\\x7f" },
        { "\xc2\x9b" "2J", "\\x9b2J" },                                     /* U+009B is an escape of its own */
        { "\xe2\x82(", "\xef\xbf\xbd(" },                                   /* broken off by a byte that starts anew */
        { "\xe2\xc3\xa9", "\xef\xbf\xbd\xc3\xa9" },
        { "\x80\xff", "\xef\xbf\xbd\xef\xbf\xbd" },                         /* nothing starts so */
        { "\xc1\x9b\xe0\x80\x9b", "\xef\xbf\xbd\xef\xbf\xbd" },             /* longer than they need be */
        { "\xed\xa0\x80\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd" },     /* a surrogate; beyond U+10FFFF */
        { "x\xf0\x9f\x98", "x\xef\xbf\xbd" },                               /* the text ends inside */
    };
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    const char *name = master >= 0 && !grantpt(master) && !unlockpt(master) ? ptsname(master) : NULL;
    int slave = name ? open(name, O_RDWR | O_NOCTTY) : -1;
    struct termios settings;
    if (slave < 0 || tcgetattr(slave, &settings)) {
        test_skip_reason = "there is no pseudo-terminal here";
        return;
    }
    cfmakeraw(&settings);
    tcsetattr(slave, TCSANOW, &settings);
    FILE *file = fdopen(slave, "w");
    for (int i = 0; i < COUNT(cases); i++) {
        char got[64] = "";
        print_all(cases[i].text, strlen(cases[i].text), file);
        ssize_t size = read(master, got, sizeof got - 1);
        EXPECT(size > 0 && !strcmp(got, cases[i].want), "case %d: %s, want %s", i, got, cases[i].want);
    }
    fclose(file);
    close(master);
}

/* ---- sampler */

static void sample_nan(void *argument) { sample_token(argument, 3, 0, 0, 0.5); }

static void tokens_from_logits(void) {
    enum { N = 100000 };
    float logits[6] = { 0.5f, 2, -1, 2, 0.5f, 0.5f };
    static const struct { double temperature; int top_k, kept; } cases[] = {        /* kept: the tokens that may come */
        { 1, 0, 077 }, { 0.7, 6, 077 }, { 1.5, 9, 077 }, { 1, 1, 002 }, { 1, 2, 012 }, { 1, 3, 013 }, { 1, 4, 033 },
        { 1e-300, 0, 012 },
    };
    for (int c = 0; c < COUNT(cases); c++) {
        int count[6] = { 0 };
        double p[6], sum = 0;
        for (uint64_t i = 0; i < N; i++) {
            double uniform = random_uniform(SEED, RANDOM_TEST, 9, i);
            count[sample_token(logits, 6, cases[c].temperature, cases[c].top_k, uniform)]++;
        }
        for (int i = 0; i < 6; i++)
            sum += p[i] = cases[c].kept >> i & 1 ? exp(((double)logits[i] - 2) / cases[c].temperature) : 0;
        for (int i = 0; i < 6; i++) {
            double want = N * p[i] / sum, sigma = sqrt(want * (1 - p[i] / sum));
            EXPECT(fabs(count[i] - want) <= 4 * sigma, "case %d: token %d comes %d times, want %.0f +- %.0f", c, i,
                   count[i], want, sigma);
        }
    }
    for (int i = 0; i < 5; i++)
        EXPECT(sample_token(logits, 6, 0, i, 0.999) == 1, "temperature 0 is not the lowest of the best");
    EXPECT(sample_token(logits, 6, 1, 0, 0x1.fffffffffffffp-1) == 5, "the largest number is not the last token");
    EXPECT(sample_token(logits, 6, 1, 0, 0) == 0, "the smallest number is not the first token");
    expect_fails("the logit of token 2 is nan", sample_nan, (float[3]){ 0, 1, NAN });
    expect_fails("the logit of token 1 is inf", sample_nan, (float[3]){ 0, INFINITY, 1 });
}

/* What sample_text writes, as a string. */
static void sampled(GPT *m, Tokenizer tokenizer, const char *prompt, int count, double temperature, int64_t step,
                    char text[256]) {
    Sample sample = { .prompt = prompt, .count = count, .temperature = temperature, .seed = SEED };
    FILE *file = tmpfile();
    sample_text(m, tokenizer, &sample, step, file);
    rewind(file);
    text[fread(text, 1, 255, file)] = 0;
    fclose(file);
}

enum { B = 2, T = 9, V = 256 };

/* A model whose every parameter is large enough to matter. */
static void lively_model(GPT *m) {
    gpt_create(m, (GPTConfig){ .L = 1, .NH = 2, .C = 16, .T = T, .V = V }, "auto", B, T, TRAIN);
    for (int i = 0; i < m->params.table.count; i++) {
        Tensor *t = m->params.table.entry[i].field;
        float *value = calloc((size_t)tensor_count(*t), sizeof *value);
        for (int64_t j = 0; j < tensor_count(*t); j++)
            value[j] = (float)random_normal(SEED, RANDOM_TEST, (uint32_t)i, (uint64_t)j) / 2;
        device_upload(t->data, value, tensor_bytes(*t));
        free(value);
    }
}

static void losses_of_a_batch(GPT *m, float losses[B * T]) {
    int32_t tokens[B * T], targets[B * T];
    for (int i = 0; i < B * T; i++) {
        tokens[i]  = i * 7 % V;
        targets[i] = i * 11 % V;
    }
    gpt_set_batch(m, B, T);
    gpt_load(m, tokens, targets);
    gpt_forward(m);
    gpt_loss(m);
    device_download(losses, m->acts.losses.data, B * T * sizeof *losses);
}

static void text_from_a_model(void) {
    GPT m;
    float before[B * T], after[B * T];
    char text[256], again[256], want[256], prompt[256];
    lively_model(&m);
    losses_of_a_batch(&m, before);

    sampled(&m, TOKENIZER_IDS, "72 105", 40, 1, 3, text);
    sampled(&m, TOKENIZER_IDS, "72 105", 40, 1, 3, again);
    EXPECT(!strcmp(text, again), "the same seed and step: %s and %s", text, again);
    EXPECT(!strncmp(text, "72 105 ", 7) && text[strlen(text) - 1] == '\n', "%s", text);
    int words = 0;
    for (char *c = text; *c; c++) words += *c == ' ';
    EXPECT(words == 42, "%d tokens, want 2 + 40: %s", words, text);

    /* so hot that every token is as likely as the other: the draws alone decide */
    for (int64_t step = 5; step < 7; step++) {
        int size = 0;
        for (uint64_t i = 0; i < 12; i++)
            size += sprintf(want + size, "%d ", (int)(V * random_uniform(SEED, RANDOM_SAMPLE, (uint32_t)step, i)));
        sampled(&m, TOKENIZER_IDS, "", 12, 1e30, step, text);       /* the token that "" starts from is not written */
        EXPECT(!strncmp(text, want, (size_t)size) && !strcmp(text + size, "\n"), "%s, want %s", text, want);
    }
    /* of a long prompt the last T tokens count, "" is the last id, "" of bytes a newline */
    sampled(&m, TOKENIZER_IDS, "9 9 9 1 2 3 4 5 6 7 8 10", 20, 1, 3, text);
    sampled(&m, TOKENIZER_IDS, "1 2 3 4 5 6 7 8 10", 20, 1, 3, again);
    EXPECT(!strcmp(text + 6, again), "%s and %s", text, again);
    sampled(&m, TOKENIZER_IDS, "255", 5, 1, 3, text);
    sampled(&m, TOKENIZER_IDS, "", 5, 1, 3, again);
    EXPECT(!strcmp(text + 4, again), "%s and %s", text, again);
    sampled(&m, TOKENIZER_BYTES, "\n", 20, 1, 3, text);
    sampled(&m, TOKENIZER_BYTES, "", 20, 1, 3, again);
    EXPECT(!memcmp(text + 1, again, 20), "the bytes after a newline and after nothing differ");
    /* when the context is full, its younger half, rounded down, and the new token go on */
    for (int first = 1; first < 200; first += 20) {
        int seen[5], used = 0;
        for (int i = 0; i < T; i++) used += sprintf(prompt + used, "%d ", first + 3 * i);
        sampled(&m, TOKENIZER_IDS, prompt, 2, 0, 3, text);
        sscanf(text, "%*d %*d %*d %*d %*d %d %d %d %d %d", seen, seen + 1, seen + 2, seen + 3, seen + 4);
        sprintf(prompt, "%d %d %d %d %d", seen[0], seen[1], seen[2], seen[3], seen[4]);
        sampled(&m, TOKENIZER_IDS, prompt, 1, 0, 3, again);
        EXPECT(strlen(text) > strlen(again) && !strcmp(text + strlen(text) - strlen(again), again),
               "%s does not end in %s", text, again);
    }
    losses_of_a_batch(&m, after);
    EXPECT(!memcmp(before, after, sizeof before), "the losses differ after sampling");
    gpt_free(&m);
}

int main(void) {
    device_open((DeviceOptions){ 0 });
    RUN(text_to_tokens);
    RUN(bytes_for_huggingface);
    RUN(tokens_to_text);
    RUN(bpe_speaks_text);
    RUN(terminal_comes_to_no_harm);
    RUN(tokens_from_logits);
    RUN(text_from_a_model);
    return test_close();
}
