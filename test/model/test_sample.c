/* test_sample.c - Tokenizers, and text from a model. */
#include <poll.h>
#include <pty.h>
#include "../../llmc/text/bpe_files.h"
#include "../../llmc/use/generate.h"
#include "models.h"
#include "../scratch.h"

#define SEED 20240520

/* ---- tokenizer */

typedef struct { Tokenizer *tokenizer; const char *text; int V; } Encode;

TEST(text_to_tokens) {
    static const struct { Encode encode; int count; int32_t want[4]; } good[] = {
        { { TOKENIZER_BYTES, "a\xc3\xa9\n", 256 }, 4, { 'a', 0xc3, 0xa9, '\n' } },
        { { TOKENIZER_IDS, " 15496  995\t0\n50256 ", 50257 }, 4, { 15496, 995, 0, 50256 } },
        { { TOKENIZER_BYTES, "", 256 }, 0, { 0 } }, { { TOKENIZER_IDS, "", 256 }, 0, { 0 } },
    };
    static const struct { Encode encode; const char *want; } bad[] = {
        { { TOKENIZER_IDS, "7 12x", 100 }, "'12x' is not a token id" },
        { { TOKENIZER_IDS, "-1", 100 }, "'-1' is not a token id" },
        { { TOKENIZER_IDS, "+1", 100 }, "'+1' is not a token id" },
        { { TOKENIZER_IDS, "Hello world", 100 }, "'Hello' is not a token id: want numbers" },
        { { TOKENIZER_IDS, "99 100", 100 }, "token id 100, want 0 to 99" },
        { { TOKENIZER_IDS, "4294967296", 100 }, "token id 4294967296, want 0 to 99" },
        { { TOKENIZER_IDS, "99999999999999999999999999", 100 }, "want 0 to 99" },
        { { TOKENIZER_BYTES, "Aa", 90 }, "token 1 is id 97, want below 90" },
    };
    int count;
    for (int i = 0; i < COUNT(good); i++) {
        const Encode *e = &good[i].encode;
        int32_t *t = test_keep(tokenizer_encode(e->tokenizer, e->text, e->V, &count));
        EXPECT(count == good[i].count && !memcmp(t, good[i].want, (size_t)count * sizeof *t), "case %d: %d tokens", i,
               count);
    }
    for (int i = 0; i < COUNT(bad); i++) {
        const Encode *e = &bad[i].encode;
        EXPECT_FAILS(bad[i].want, tokenizer_encode(e->tokenizer, e->text, e->V, &count));
    }
    static const int rows[][3] = {      /* V of a model of ids; first token of an empty prompt; end of text */
        { 50257, 50256, 50256 }, { 50304, 50256, 50256 }, { 50432, 50256, 50256 }, { 50256, 50255, -1 },
        { 128256, 128255, -1 },
    };
    for (int i = 0; i < COUNT(rows); i++)
        EXPECT(tokenizer_start(TOKENIZER_IDS, rows[i][0]) == rows[i][1] &&
               tokenizer_end_of_text(TOKENIZER_IDS, rows[i][0]) == rows[i][2], "%d rows", rows[i][0]);
    EXPECT(!strcmp(TOKENIZER_IDS->name, "ids") && !strcmp(TOKENIZER_BYTES->name, "bytes"), "names");
}

/* What tokenizer_print makes of tokens. */
static const char *printed_tokens(Tokenizer *tokenizer, const int32_t *ids, int count) {
    char *text;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    for (int i = 0; i < count; i++) tokenizer_print(tokenizer, ids[i], file);
    fclose(file);
    return test_keep(text);
}

/* What text_print makes of a text that becomes longer by some bytes at a time. */
static const char *printed_text(const char *text, size_t some) {
    char *printed;
    size_t size, length = strlen(text);
    FILE *file = open_memstream(&printed, &size);
    for (size_t at = 0, end = some; at < length; end += some)
        at += text_print(text + at, (end < length ? end : length) - at, end >= length, file);
    fclose(file);
    return test_keep(printed);
}

TEST(tokens_to_text) {
    const char *ids = printed_tokens(TOKENIZER_IDS, (int32_t[]){ 15496, 995 }, 2);
    EXPECT(!strcmp(ids, "15496 995 "), "%s", ids);
    const char *raw = printed_tokens(TOKENIZER_BYTES, (int32_t[]){ 0x1b, '[', '2', 'J', 0xe2, 0x82 }, 6);
    EXPECT(!strcmp(raw, "\x1b[2J\xe2\x82"), "%s", raw);
}

/* A character whose bytes are tokens of their own comes out whole. */
TEST(bpe_speaks_text) {
    static const char text[] = "the \xe2\x82\xac<|endoftext|>";
    int count;
    Tokenizer *bpe = tokenizer_open("test/reference/bpe");
    int32_t ids[64], *encoded = test_keep(tokenizer_encode(bpe, text, 500, &count));
    memcpy(ids, encoded, (size_t)count * sizeof *ids);
    EXPECT(!strcmp(bpe->name, "bpe"), "its name");
    EXPECT(count > 4 && ids[count - 1] == 499 && tokenizer_start(bpe, 600) == 499, "%d tokens", count);
    ids[count] = 555;                              /* an id of the model, not of its tokenizer */
    const char *got = printed_tokens(bpe, ids, count + 1);
    EXPECT(!strcmp(got, STRING("%s\xef\xbf\xbd", text)), "%s", got);
    EXPECT(!bpe_file_text(TOKENIZER_IDS, "tokenizer.json", 64), "ids have no files");
    tokenizer_check(bpe, 500);
    EXPECT_FAILS("a tokenizer of 500 tokens, the model has 499", tokenizer_check(bpe, 499));
    bpe_free(bpe);
}

TEST(text_for_people) {
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
        { "\xe0\x9f\x80\xf0\x8f\x80\x80\xf5\x80\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xc2\xa0\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf",
          "\xc2\xa0\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf" },
    };
    for (int i = 0; i < 5 * COUNT(cases); i++) {
        const char *got = printed_text(cases[i / 5].text, (size_t)(i % 5 + 1)), *want = cases[i / 5].want;
        EXPECT(!strcmp(got, want), "case %d, %d bytes at a time: %s, want %s", i / 5, i % 5 + 1, got, want);
    }
}

/* ---- sampler */

/* Tokens drawn from logits with count numbers, each in a row of its own. */
static void draw(const float *logits, int V, Sampling sampling, const double *uniform, int count, int32_t *tokens) {
    int pitch = V + 3;
    float *rows = new_array(count * pitch, sizeof *rows);
    for (int b = 0; b < count; b++) memcpy(rows + b * pitch, logits, sizeof *rows * (size_t)V);
    Tensor t = tensor_of(new_device_memory(sizeof *rows * (size_t)(count * pitch)), F32, 2, count, V);
    Tensor u = tensor_of(new_device_memory(sizeof *uniform * (size_t)count), F64, 1, count);
    Tensor chosen = tensor_of(new_device_memory(sizeof *tokens * (size_t)count), I32, 1, count);
    t.pitch = pitch;
    device_upload(t.data, rows, sizeof *rows * (size_t)(count * pitch));
    device_upload(u.data, uniform, tensor_bytes(u));
    sample_tokens(chosen, t, u, V, sampling);
    device_download(tokens, chosen.data, tensor_bytes(chosen));
}

static int32_t draw_one(const float *logits, int V, Sampling sampling, double uniform) {
    int32_t token;
    draw(logits, V, sampling, &uniform, 1, &token);
    return token;
}

TEST(extreme_numbers_and_logits) {
    static const float logits[6] = { 0.5f, 2, -1, 2, 0.5f, 0.5f };
    const Sampling all = { 1, 0, 1 };
    for (int i = 0; i < 5; i++)
        EXPECT(draw_one(logits, 6, (Sampling){ 0, i, 0.5 }, 0.999) == 1, "temperature 0: not the first");
    EXPECT(draw_one(logits, 6, all, 0x1.fffffffffffffp-1) == 5, "the largest number: not the last");
    EXPECT(draw_one(logits, 6, all, 0) == 0, "the smallest number: not the first");
    EXPECT(draw_one((float[4]){ 0, 1, NAN, INFINITY }, 4, all, 0.5) == -3, "a NaN is not found");
    EXPECT(draw_one((float[4]){ 0, -INFINITY, 2, NAN }, 4, (Sampling){ 0, 0, 1 }, 0.5) == -2, "an infinity");
    EXPECT(draw_one((float[4]){ 0, 1, 2, NAN }, 3, (Sampling){ 0, 0, 1 }, 0.5) == 2, "a logit behind V is read");
}

static const double *sorted_weight;
static int by_weight(const void *a, const void *b) {
    double x = sorted_weight[*(const int *)a], y = sorted_weight[*(const int *)b];
    return (x < y) - (x > y);
}

/* By the definition: sorted, cut by rank, by share, by ratio; equal tokens stay or go together. The number must lie in
   the interval of the token that it chose, within 2e-5: weights in f32 err by 1e-6 and sums of them by less than 1e-5.
   Cuts at which two tokens are closer than that are moved by the choice of k and p. */
TEST(tokens_from_logits) {
    static const float few[6] = { 0.5f, 2, -1, 2, 0.5f, 0.5f };      /* weights 1, 1, 0.22 three times, 0.05 */
    static const struct { int V; double spread; Sampling sampling; } cases[] = {
        { 6, 0, { 1, 0, 1 } }, { 6, 0, { 0.7, 6, 1 } }, { 6, 0, { 1.5, 9, 1 } }, { 6, 0, { 1e-300, 0, 1 } },
        { 6, 0, { 1, 1, 1 } }, { 6, 0, { 1, 2, 1 } }, { 6, 0, { 1, 3, 1 } }, { 6, 0, { 1, 5, 1 } },
        { 6, 0, { 1, 0, 0.5 } }, { 6, 0, { 1, 0, 0.8 } }, { 6, 0, { 1, 0, 0.999 } },
        { 6, 0, { 1, 0, 1e-9 } }, { 6, 0, { 1, 5, 0.74 } },
        { 1000, 3, { 1, 0, 1 } }, { 1000, 3, { 0.8, 50, 1 } }, { 1031, 1, { 1, 0, 0.9 } },
        { 50257, 3, { 1, 0, 1 } }, { 50257, 3, { 1, 40, 1 } }, { 50257, 3, { 1.2, 0, 0.95 } },
        { 50257, 2, { 0.7, 20000, 0.5 } }, { 50257, 1, { 1, 500, 0.9 } },
        { 70001, 2, { 1, 0, 0.99 } }, { 70001, 2, { 1, 70000, 1 } }, { 33, 2, { 1, 32, 0.97 } },
        { 50257, 0.5, { 0.8, 50, 0.95 } }, { 50257, 0, { 1, 100, 0.5 } },      /* untrained; all equal */
    };
    for (int c = 0; c < COUNT(cases); c++) {
        enum { N = 200 };
        int V = cases[c].V, kept = V, *order = new_array(V, sizeof *order), draws = V == 6 ? N : 20;
        Sampling s = cases[c].sampling;
        float *logits = new_array(V, sizeof *logits);
        double *weight = new_array(V, sizeof *weight), total = 0, passed = 0, max = -INFINITY, uniform[N];
        int32_t tokens[N];
        for (int i = 0; i < V; i++) {
            const double normal = normal_of(philox(SEED, RANDOM_TEST, 0, (uint32_t)c, (uint64_t)i));
            logits[i] = V == 6 ? few[i] : (float)(cases[c].spread * normal - 30);
            max = fmax(max, logits[i]);
            order[i] = i;
        }
        for (int i = 0; i < V; i++) weight[i] = exp((logits[i] - max) / s.temperature);
        sorted_weight = weight;
        qsort(order, (size_t)V, sizeof *order, by_weight);
        if (s.top_k && s.top_k < V) {
            kept = s.top_k;
            while (kept < V && weight[order[kept]] > weight[order[kept - 1]] * (1 - 1e-5)) kept++;
            if (V > 6) s.top_k = kept;
        }
        for (int i = 0; i < kept; i++) total += weight[order[i]];
        if (s.top_p < 1) {
            int n = 0;
            while (n < kept && passed < s.top_p * total) passed += weight[order[n++]];
            while (n < kept && weight[order[n]] > weight[order[n - 1]] * (1 - 1e-5)) passed += weight[order[n++]];
            if (V > 6) s.top_p = (passed - weight[order[n - 1]] / 2) / total;
            kept = n;
        }
        for (int i = kept; i < V; i++) weight[order[i]] = 0;
        total = 0;
        for (int i = 0; i < V; i++) total += weight[i];
        for (int i = 0; i < draws; i++)
            uniform[i] = i == 0 ? 0 : i == 1 ? 0x1.fffffffffffffp-1
                       : random_uniform(SEED, RANDOM_TEST, 99, (uint64_t)i);
        draw(logits, V, s, uniform, draws, tokens);
        for (int i = 0; i < draws; i++) {
            double before = 0;
            int token = tokens[i] < 0 || tokens[i] >= V ? 0 : tokens[i];
            for (int t = 0; t < token; t++) before += weight[t] / total;
            EXPECT(tokens[i] == token && weight[token] > 0, "case %d: token %d is not one of the %d kept", c, tokens[i],
                   kept);
            EXPECT(uniform[i] > before - 2e-5 && uniform[i] < before + weight[token] / total + 2e-5,
                   "case %d: %.6f gives token %d, of %.6f to %.6f", c, uniform[i], token, before,
                   before + weight[token] / total);
        }
    }
}

static int spaces_of(const char *text) {
    int count = 0;
    for (; *text; text++) count += *text == ' ';
    return count;
}

/* What sample_text writes, as a string; report: of the run. */
static int samples = 1;
static Report *report;
static const char *stop = "";

static void sampled(GPT *m, Tokenizer *tokenizer, const char *prompt, int count, double temperature, int64_t step,
                    char text[256]) {
    Settings settings = { .stop = stop, .sample_tokens = count, .num_samples = samples, .seed = SEED,
                          .temperature = temperature, .top_p = 1 };
    FILE *file = tmpfile();
    sample_text(m, tokenizer, &settings, prompt, report, step, file);
    rewind(file);
    text[fread(text, 1, 255, file)] = 0;
    fclose(file);
}

enum { B = 2, T = 9, V = 256 };

/* A model whose every parameter is large enough to matter. */
static GPT *lively_model(int V) {
    const GPTConfig config = { .L = 1, .NH = 2, .C = 16, .T = T, .V = V, .cache_tokens = T };
    GPT *m = new_model(config, "auto", B, T, TRAIN);
    fill_normally(m, SEED, 0.5, 0);
    return m;
}

static void losses_of_a_batch(GPT *m, float losses[B * T]) {
    int32_t tokens[B * T], targets[B * T];
    for (int i = 0; i < B * T; i++) {
        tokens[i]  = i * 7 % V;
        targets[i] = i * 11 % V;
    }
    gpt_set_batch(m, B, T);
    gpt_load(m, tokens, targets, NULL);
    gpt_forward(m);
    gpt_loss(m);
    device_download(losses, m->acts.losses.data, B * T * sizeof *losses);
}

TEST(text_from_a_model) {
    GPT *m = lively_model(V);
    float before[B * T], after[B * T];
    char text[256], again[256], want[256], prompt[256], *second;
    losses_of_a_batch(m, before);

    sampled(m, TOKENIZER_IDS, "72 105", 40, 1, 3, text);
    sampled(m, TOKENIZER_IDS, "72 105", 40, 1, 3, again);
    EXPECT(!strcmp(text, again), "the same seed and step: %s and %s", text, again);
    EXPECT(!strncmp(text, "72 105 ", 7) && text[strlen(text) - 1] == '\n', "%s", text);
    EXPECT(spaces_of(text) == 42, "want 2 + 40 tokens: %s", text);
    samples = 2;                                    /* the first is that of a single one, the second another */
    sampled(m, TOKENIZER_IDS, "72 105", 20, 1, 3, again);
    samples = 1;
    sampled(m, TOKENIZER_IDS, "72 105", 20, 1, 3, text);
    second = again + strlen(text);
    EXPECT(!strncmp(text, again, strlen(text)) && !strncmp(second, "---\n72 105 ", 11) && strcmp(second + 4, text) &&
           spaces_of(second) == 22 && second[strlen(second) - 1] == '\n', "%s, of two: %s", text, again);

    /* so hot that every token is as likely as the other: the draws alone decide */
    for (int64_t step = 5; step < 7; step++) {
        int size = 0;
        for (uint64_t i = 0; i < 12; i++)
            size += sprintf(want + size, "%d ", (int)(V * random_uniform(SEED, RANDOM_SAMPLE, (uint32_t)step, i)));
        sampled(m, TOKENIZER_IDS, "", 12, 1e30, step, text);       /* the token that "" starts from is not written */
        EXPECT(!strncmp(text, want, (size_t)size) && !strcmp(text + size, "\n"), "%s, want %s", text, want);
    }
    /* random bytes: whole characters in the log of a run, as they are elsewhere */
    Report reports[1] = {0};
    for (int i = 0; i < 2; i++) {
        size_t at = 0, length = 1;
        report = i ? NULL : reports;
        sampled(m, TOKENIZER_BYTES, "a", 30, 1e30, 3, text);
        while (text[at] && (length = utf8_length((unsigned char *)text + at, strlen(text + at)))) at += length;
        EXPECT(length == !i, "case %d: %s", i, text);
    }
    /* the last T tokens of a long prompt count; "" is the last id, for bytes a newline */
    sampled(m, TOKENIZER_IDS, "9 9 9 1 2 3 4 5 6 7 8 10", 20, 1, 3, text);
    sampled(m, TOKENIZER_IDS, "1 2 3 4 5 6 7 8 10", 20, 1, 3, again);
    EXPECT(!strcmp(text + 6, again), "%s and %s", text, again);
    sampled(m, TOKENIZER_IDS, "255", 5, 1, 3, text);
    sampled(m, TOKENIZER_IDS, "", 5, 1, 3, again);
    EXPECT(!strcmp(text + 4, again), "%s and %s", text, again);
    sampled(m, TOKENIZER_BYTES, "\n", 20, 1, 3, text);
    sampled(m, TOKENIZER_BYTES, "", 20, 1, 3, again);
    EXPECT(!memcmp(text + 1, again, 20), "the bytes after a newline and after nothing differ");
    /* when the context is full, its younger half, rounded down, and the new token go on */
    for (int first = 1; first < 200; first += 20) {
        int seen[5], used = 0;
        for (int i = 0; i < T; i++) used += sprintf(prompt + used, "%d ", first + 3 * i);
        sampled(m, TOKENIZER_IDS, prompt, 2, 0, 3, text);
        sscanf(text, "%*d %*d %*d %*d %*d %d %d %d %d %d", seen, seen + 1, seen + 2, seen + 3, seen + 4);
        sprintf(prompt, "%d %d %d %d %d", seen[0], seen[1], seen[2], seen[3], seen[4]);
        sampled(m, TOKENIZER_IDS, prompt, 1, 0, 3, again);
        EXPECT(strlen(text) > strlen(again) && !strcmp(text + strlen(text) - strlen(again), again),
               "%s does not end in %s", text, again);
    }
    losses_of_a_batch(m, after);
    EXPECT(!memcmp(before, after, sizeof before), "the losses differ after sampling");
}

/* The first size bytes of a text after its prompt, up to the stop. */
static int size_before_stop(const char *text, int size) {
    const char *found = memmem(text + 1, (size_t)size - 1, stop, strlen(stop));
    return found ? (int)(found - text) : size;
}

/* Every part of an answer, which begins and ends inside of tokens, too. */
TEST(text_ends_before_a_stop) {
    GPT *m = lively_model(500);
    char both[256], got[256], part[8];
    Tokenizer *bpe = tokenizer_open("test/reference/bpe");
    sampled(m, bpe, "a", 20, 1, 3, got);
    const int first = (int)strlen(got) - 1;
    samples = 2;
    sampled(m, bpe, "a", 20, 1, 3, both);
    const char *second = both + first + 5;
    const int rest = (int)strlen(second) - 1;
    for (int at = 1, n = 1; at + n <= first; n % 7 ? n++ : (at += n = 1)) {
        snprintf(part, sizeof part, "%.*s", n, both + at);
        stop = part;
        sampled(m, bpe, "a", 20, 1, 3, got);
        const char *want = STRING("%.*s\n---\n%.*s\n", size_before_stop(both, first), both,
                                  size_before_stop(second, rest), second);
        EXPECT(!strcmp(got, want), "stop '%s': %s, want %s", part, got, want);
    }
    EXPECT(first > 40 && first < 200 && rest > 40, "%d and %d bytes", first, rest);
    samples = 1;
    stop = "";
    bpe_free(bpe);
}

/* A model whose token at position p is followed by 300 + p, at position 13 by the end of the text. */
TEST(text_ends_at_its_end_token) {
    enum { C = 256, T = 64 };
    const DType dtype = device_refuse_dtype(BF16) ? F32 : BF16;
    const GPTConfig config = { .L = 1, .NH = 4, .C = C, .T = T, .V = 50257, .dtype = dtype };
    const float one = 1, much = 100;
    for (samples = 2; samples >= 1; samples--) {
        GPT *m = new_model(config, "auto", 1, T, GENERATE);
        char text[256], want[256] = "5 7 ";
        gpt_init(m, SEED);
        device_zero(m->master.wte.data, tensor_bytes(m->master.wte));
        device_zero(m->master.wpe.data, tensor_bytes(m->master.wpe));
        for (int p = 0; p < T; p++) {
            device_upload((float *)m->master.wpe.data + p * C + p, &much, sizeof much);
            device_upload((float *)m->master.wte.data + (p == 13 ? 50256 : 300 + p) * C + p, &one, sizeof one);
            if (p >= 1 && p < 13) sprintf(want + strlen(want), "%d ", 300 + p);
        }
        gpt_cast_params(m);
        sampled(m, TOKENIZER_IDS, "5 7", 40, 0, 0, text);
        EXPECT(!strcmp(text, samples == 1 ? STRING("%s\n", want) : STRING("%s\n---\n%s\n", want, want)),
               "%d samples: %s, want %s", samples, text, want);
    }
    samples = 1;
}

/* ---- the program on a terminal */

static const char *program;                 /* build/cpu/train_gpt */
static int terminal, errors;                /* the program's terminal, and what it writes to stderr */
static char heard[1 << 16];

/* Reads what the program writes until stderr has a prompt "> " and the terminal is silent, for a minute; returns
   whether there was a prompt. A long text is forgotten. */
static int wait_for_prompt(void) {
    size_t size = 0;
    int prompts = 0;
    for (int tenths = 0, silent = 0; !(prompts && silent) && tenths < 600; tenths++) {
        struct pollfd fds[2] = { { terminal, POLLIN, 0 }, { errors, POLLIN, 0 } };
        char bytes[4096];
        silent = poll(fds, 2, 100) == 0;
        if (fds[0].revents & POLLIN) {
            ssize_t n = read(terminal, heard + size, sizeof heard - 1 - size);
            if (n > 0) size = size + (size_t)n < sizeof heard / 2 ? size + (size_t)n : 0;
        }
        if (fds[1].revents & POLLIN) {
            ssize_t n = read(errors, bytes, sizeof bytes);
            for (ssize_t i = 0; i + 1 < n; i++) prompts += bytes[i] == '>' && bytes[i + 1] == ' ';
        }
    }
    heard[size] = 0;
    return prompts == 1;
}

static pid_t start_on_terminal(const char *checkpoint, const char *tokens) {
    int pipe_ends[2];
    if (pipe(pipe_ends)) fail("no pipe");
    fflush(NULL);
    pid_t child = forkpty(&terminal, NULL, NULL, NULL);
    if (child == 0) {
        dup2(pipe_ends[1], 2);
        execl(program, program, "--sample", checkpoint, "--interactive", "--threads", "1", "--temperature", "0",
              "--dtype", "f32", "--prompt", "Once\\n", "--sample-tokens", tokens, (char *)NULL);
        _exit(127);
    }
    close(pipe_ends[1]);
    errors = pipe_ends[0];
    return child;
}

static void type(const char *keys) {
    if (write(terminal, keys, strlen(keys)) < 0) perror("write to the terminal");
}

static void expect_exit(pid_t child, int code) {
    int status = 0;
    char bytes[4096];
    for (int tenths = 0; tenths < 300 && waitpid(child, &status, WNOHANG) == 0; tenths++) {
        fcntl(terminal, F_SETFL, O_NONBLOCK);
        while (read(terminal, bytes, sizeof bytes) > 0) { }
        usleep(100000);
    }
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == code, "status %#x, want exit code %d", (unsigned)status, code);
    close(terminal);
    close(errors);
}

static void run_command(const char *command) { if (system(command)) fail("%s: it failed", command); }

static void interactive(void) {
    const char *text = IN_SCRATCH("text"), *run = IN_SCRATCH("run"), *output = IN_SCRATCH("output");
    put_text(text, STRING("%03000d", 0));
    run_command(STRING("%s %s --out %s --layers 1 --heads 1 --channels 16 --context 32 --batch 4 --steps 60 --warmup 1 "
                       "--lr 0.01 --val-every 0 --threads 1 --dtype f32 > /dev/null", program, text, run));
    /* what the same prompt gives, without a terminal */
    run_command(STRING("%s --sample %s --dtype f32 --prompt 'Once\\nee' --sample-tokens 10 --temperature 0 > %s",
                       program, run, output));
    const char *answer = text_of(output);
    EXPECT(strlen(answer) == 18 && !strncmp(answer, "Once\nee", 7), "%s", answer);
    const char *want = STRING("e^[[1;5A^[OAe\r\n%.10s\r\n", answer + 7);

    pid_t child = start_on_terminal(run, "10");
    EXPECT(wait_for_prompt(), "no prompt");
    type("e\33[1;5A\33OAe\n");                  /* with Ctrl and the arrow up, and the arrow alone */
    EXPECT(wait_for_prompt() && !strcmp(heard, want), "answer: %s, want %s", heard, want);
    type("eeee\n");
    EXPECT(wait_for_prompt() && strlen(heard) >= 18 && !strncmp(heard, "eeee\r\n", 6), "second answer: %s", heard);
    type("\4");                                 /* Ctrl-D */
    expect_exit(child, 0);

    child = start_on_terminal(run, "100000000");
    EXPECT(wait_for_prompt(), "no prompt");
    type("ee\n");
    usleep(500000);
    type("\3");                                 /* Ctrl-C ends the answer, a second one the program */
    EXPECT(wait_for_prompt(), "the answer did not end");
    type("\3");
    char end = 0;
    EXPECT(poll(&(struct pollfd){ errors, POLLIN, 0 }, 1, 10000) == 1 && read(errors, &end, 1) == 1 && end == '\n',
           "the line of the prompt does not end");
    expect_exit(child, 130);
}

int main(void) {
    program = built("train_gpt");
    scratch_open();
    RUN(interactive);           /* before this process opens the device */
    device_open((DeviceOptions){ 0 });
    return test_all();
}
