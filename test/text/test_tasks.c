/* test_tasks.c - Tasks: rows of tokens from items, log-probabilities of batches compared with single rows, and the
   figures. test/text/check_tasks.py compares with PyTorch. */
#include "../../llmc/use/tasks.h"
#include "../model/models.h"
#include "../scratch.h"

enum { T = 24, SEED = 11 };

static GPTConfig tiny(DType dtype) {
    GPTConfig config = { .L = 2, .NH = 2, .C = 32, .T = T, .V = 256, .dtype = dtype };
    gpt_check(&config);
    return config;
}

static Task read_items(const char *name, const char *text, Tokenizer *tokenizer, const GPTConfig *config) {
    char *path = IN_SCRATCH("items.jsonl");
    put_text(path, text);
    return task_read(name, path, tokenizer, config);
}

/* ---- Rows */

/* The items of a line of text, with a context of 1000 bytes. want: the text of each choice's row, with | where its
   targets begin. */
typedef struct { const char *name, *line, *want[4]; int label, characters; } Case;

static const Case cases[] = {
    { "multiple-choice", "{\"context\": \"The sky is\", \"choices\": [\"blue.\", \"square.\"], \"label\": 1}",
      { "The sky is| blue.", "The sky is| square." }, 1, 5 },
    { "multiple-choice", "{\"x\": [NaN, \"\\u0000\"], \"label\": 2, \"label\": 0, "
      "\"choices\": [\"caf\\u00e9\", \" b\"], \"context\": \"\\u4f60\"}",
      { "\xe4\xbd\xa0| caf\xc3\xa9", "\xe4\xbd\xa0|  b" }, 0, 4 },
    { "multiple-choice", "{\"context\": \"a \\n\\u001f\\u00a0\", \"choices\": [\"b\", \"c\"], \"label\": 0}",
      { "a| \n\x1f\xc2\xa0 b", "a| \n\x1f\xc2\xa0 c" }, 0, 1 },
    { "multiple-choice", "{\"context\": \"\", \"choices\": [\"b\", \"c\"], \"label\": 0}", { "\n| b", "\n| c" }, 0, 1 },
    { "multiple-choice", "{\"context\": \"  \", \"choices\": [\"b\", \"c\"], \"label\": 0}",
      { "\n|   b", "\n|   c" }, 0, 1 },
    { "hellaswag", "{\"activity_label\": \"Roof\", \"ctx_a\": \"A man sits.\", \"ctx_b\": \"he PUTS\", \"ctx\": 7, "
      "\"endings\": [\"it down.\", \"[header] up [title] It [step] is\"], \"label\": 1}",
      { "Roof: A man sits. He puts| it down.", "Roof: A man sits. He puts|  up. It is" }, 1, 8 },
    { "hellaswag", "{\"activity_label\": \"\\u00a0[header] How\", \"ctx_a\": \"Do   [x\\n] it.\", \"ctx_b\": \"\", "
      "\"endings\": [\" a \", \"[b\", \"c]\", \"[d]\"], \"label\": \"3\"}",
      { " How: Do  [x\n] it.| a", " How: Do  [x\n] it.| [b", " How: Do  [x\n] it.| c]", " How: Do  [x\n] it.| " },
      3, 1 },
    { "hellaswag", "{\"activity_label\": \"Bare\", \"ctx\": \"A man. he\", \"endings\": [\"a\", \"b\"], \"label\": 0}",
      { "Bare: A man. he| a", "Bare: A man. he| b" }, 0, 1 },
    { "lambada", "{\"text\": \"the last word\"}", { "the last| word" }, 0, 4 },
    { "lambada", "{\"text\": \"two  \\u201cblanks\"}", { "two|  \u201cblanks" }, 0, 7 },
    { "lambada", "{\"text\": \"a\\n\\nline\"}", { "\n| a\n\nline" }, 0, 7 },
};

static void expect_row(const TaskRow *row, const char *want, int number) {
    const char *bar = strchr(want, '|');
    int context = (int)(bar - want), length = (int)strlen(want) - 1;
    EXPECT(row->count == length - 1 && row->targets == length - context, "case %d: %d inputs, %d targets: %s", number,
           row->count, row->targets, want);
    for (int i = 0; i < length && i <= row->count; i++) {
        int byte = (unsigned char)want[i + (i >= context)];
        EXPECT(row->token[i] == byte, "case %d: token %d is %d, want %d: %s", number, i, row->token[i], byte, want);
    }
}

TEST(items_become_rows) {
    GPTConfig config = tiny(F32);
    config.T = 1000;
    for (int i = 0; i < COUNT(cases); i++) {
        const Case *c = &cases[i];
        Task task = read_items(c->name, STRING("\xef\xbb\xbf\n \t\r\n%s\r\n", c->line), TOKENIZER_BYTES, &config);
        int choices = 0;
        while (choices < 4 && c->want[choices]) choices++;
        EXPECT(task.items == 1 && task.rows == choices && task.item[0].line == 3 && task.item[0].label == c->label &&
               task.item[0].count == choices && !task.cut && !task.left_out, "case %d: %d items, %d rows, line %d, "
               "label %d", i, task.items, task.rows, (int)task.item[0].line, task.item[0].label);
        for (int j = 0; j < choices && j < task.rows; j++) expect_row(&task.row[j], c->want[j], i);
        EXPECT(task.row[0].characters == c->characters, "case %d: %d characters", i, task.row[0].characters);
        task_free(&task);
    }
}

TEST(tokens_are_split_behind_those_of_the_context) {
    static const struct { const char *context, *before, *whole; } cases[] = {
        { "The president of", "The president of", "The president of state's" },
        { "In the year  ", "In the year", "In the year   state's" }, { "", "<|endoftext|>", "<|endoftext|> state's" } };
    Tokenizer *bpe = tokenizer_open("test/reference/bpe");
    GPTConfig config = tiny(F32);
    config.V = 500;
    for (int i = 0; i < COUNT(cases); i++) {
        const char *line = STRING("{\"context\": \"%s\", \"choices\": [\"state's\", \"a\"], \"label\": 0}",
                                  cases[i].context);
        Task task = read_items("multiple-choice", line, bpe, &config);
        const TaskRow *row = &task.row[0];
        int all, before;
        int32_t *tokens = test_keep(tokenizer_encode(bpe, cases[i].whole, config.V, &all));
        free(tokenizer_encode(bpe, cases[i].before, config.V, &before));
        EXPECT(row->count == all - 1 && row->targets == all - before, "case %d: %d inputs, %d targets, want %d, %d", i,
               row->count, row->targets, all - 1, all - before);
        EXPECT(!memcmp(row->token, tokens, (size_t)all * sizeof *tokens), "case %d: other tokens", i);
        task_free(&task);
    }
    bpe_free(bpe);
}

/* A context of T = 24 bytes: inputs and targets together are 25. */
TEST(long_items_are_cut_or_left_out) {
    const GPTConfig config = tiny(F32);
    static const char items[] =
        "{\"context\": \"12345678901234567890\", \"choices\": [\"abcd\", \"ab\"], \"label\": 0}\n"       /* 25: fits */
        "{\"context\": \"123456789012345678901\", \"choices\": [\"ab\", \"abcd\"], \"label\": 0}\n"     /* 26 */
        "{\"context\": \"\", \"choices\": [\"12345678901234567890123\", \"b\"], \"label\": 0}\n"        /* 24 targets */
        "{\"context\": \"x\", \"choices\": [\"b\", \"123456789012345678901234\"], \"label\": 0}\n"      /* 25 targets */
        "{\"context\": \"12345678901234567890 1234\", \"choices\": [\"a\", \"b\"], \"label\": 1}";
    Task task = read_items("multiple-choice", items, TOKENIZER_BYTES, &config);
    static const char *const want[] = {
        "12345678901234567890| abcd", "12345678901234567890| ab", "123456789012345678901| ab",
        "23456789012345678901| abcd", "\n| 12345678901234567890123", "\n| b", "345678901234567890 1234| a",
        "345678901234567890 1234| b" };
    static const int lines[] = { 1, 2, 3, 5 };
    EXPECT(task.items == 4 && task.rows == 8 && task.cut == 2 && task.left_out == 1, "%d items, %d rows, %d cut, %d "
           "left out", task.items, task.rows, task.cut, task.left_out);
    for (int i = 0; i < task.rows && i < 8; i++) expect_row(&task.row[i], want[i], i);
    for (int i = 0; i < task.items && i < 4; i++)
        EXPECT(task.item[i].line == lines[i] && task.item[i].first == 2 * i, "item %d: line %d, first row %d", i,
               (int)task.item[i].line, task.item[i].first);
    task_free(&task);
}

TEST(bad_items) {
#define GOOD "{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"label\": 0}\n"
    static const struct { const char *name, *text, *want; } bad[] = {
        { "multiple-choice", GOOD "\n" GOOD "{\"context\": \"a\",", "items.jsonl: line 4: byte 16: found the end" },
        { "multiple-choice", GOOD "[1]", "items.jsonl: line 2: begins with '[1]': this is not JSONL" },
        { "multiple-choice", GOOD GOOD "{\"choices\": [\"b\", \"c\"], \"label\": 0}",
          "line 3: \"context\" is missing" },
        { "multiple-choice", "{\"context\": \"a\", \"choices\": [\"b\"], \"label\": 0}",
          "\"choices\": want 2 elements or more, got 1" },
        { "multiple-choice", "{\"context\": \"a\", \"choices\": [\"b\", \"\"], \"label\": 0}",
          "want a text that is not empty" },
        { "multiple-choice", "{\"context\": \"a\", \"choices\": [\"b\", 3], \"label\": 0}", "line 1: \"choices\" is 3, "
          "want a text" },
        { "multiple-choice", GOOD "{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"label\": 2}",
          "line 2: \"label\" is 2, want an integer from 0 to 1" },
        { "multiple-choice", "{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"label\": \"1\"}",
          "line 1: \"label\" is \"1\", want" },
        { "multiple-choice", GOOD "{\"context\": \"a\\u0000\", \"choices\": [\"b\", \"c\"], \"label\": 0}",
          "line 2: \"context\" is \"a\", want one without \\u0000" },
        { "hellaswag", "{\"activity_label\": \"A\", \"ctx\": \"b\", \"endings\": [\"c\", \"d\"], \"label\": \"2\"}",
          "line 1: \"label\" is \"2\", want an integer from 0 to 1" },
        { "hellaswag", "{\"activity_label\": \"A\", \"ctx\": \"b\", \"endings\": [\"c\", \"d\"], \"label\": \"10\"}",
          "line 1: \"label\" is \"10\", want an integer from 0 to 1" },
        { "hellaswag", "{\"activity_label\": \"A\", \"ctx_a\": \"b\", \"endings\": [\"c\", \"d\"], \"label\": 0}",
          "line 1: \"ctx_b\" is missing" },
        { "hellaswag", GOOD, "line 1: \"activity_label\" is missing" },
        { "lambada", "{\"text\": \"a b \"}", "line 1: \"text\" is empty or ends with a blank, want a last word" },
        { "lambada", "\n \r\n", "items.jsonl: no item, want a line of JSON for each" },
        { "lambada", "\x1f\x8b\x08 gzip", "items.jsonl: this is a gzip archive, want a line of JSON" },
        { "lambada", "{\"text\": \"an 1234567890123456789012345\"}",
          "items.jsonl: no item fits: every one has a choice of more than 24 tokens" },
    };
    const GPTConfig config = tiny(F32);
    for (int i = 0; i < COUNT(bad); i++)
        EXPECT_FAILS(bad[i].want, read_items(bad[i].name, bad[i].text, TOKENIZER_BYTES, &config));
    EXPECT_FAILS("--task lambada: the tokenizer of the model is unknown, want --tokenizer DIR",
                 read_items("lambada", "{\"text\": \"a b\"}", TOKENIZER_IDS, &config));
}

/* ---- Scores */

/* Weights that make some tokens likely, and logits of about 5. */
static GPT *make_model(DType dtype, int B) {
    GPT *m = new_model(tiny(dtype), "auto", B, T, EVALUATE);
    gpt_init(m, SEED);
    fill_normally(m, SEED, 0.25, 1);
    return m;
}

/* Words of 1 to 9 letters, some with a context beyond T. The choices begin with tokens of high probability. */
static char *random_items(const char *name, int count) {
    const int is_lambada = !strcmp(name, "lambada");
    char *text = NULL;
    size_t size;
    uint64_t drawn = 0;
    FILE *file = open_memstream(&text, &size);
    for (int i = 0; i < count; i++) {
        const int length = (int)random_below(SEED, RANDOM_TEST, 1, drawn++, i % 8 ? 14 : 40);
        const int word = 1 + (int)random_below(SEED, RANDOM_TEST, 1, drawn++, 9);
        fprintf(file, is_lambada ? "{\"text\": \"" : "{\"label\": %d, \"context\": \"", i % 2);
        for (int j = 0; j < length + word; j++) {
            if (j == length) fputs(is_lambada ? " " : "\", \"choices\": [\"", file);
            fputc('a' + (int)random_below(SEED, RANDOM_TEST, 1, drawn++, 26), file);
        }
        fputs(is_lambada ? "\"}\n" : "\", \"other\"]}\n", file);
    }
    fclose(file);
    return test_keep(text);
}

/* Logits at token t of a row, from a batch of one row that ends there. */
static void logits_at(GPT *m, const TaskRow *row, int t, float logits[256]) {
    gpt_set_batch(m, 1, t + 1);
    gpt_load(m, row->token, NULL, NULL);
    gpt_forward(m);
    gpt_logits(m, t, logits);
}

/* Each target from a batch of one row that ends before it, by a softmax in double. Sets margin: how far the lead of a
   target over all other tokens, or of one of them over it, exceeds the rounding errors; below 0: undecided. */
static void score_alone(GPT *m, TaskRow *row, double *bound, double *margin) {
    float logits[256];
    const double u = tolerance(&m->config, 1, 1);
    double worst_lead = INFINITY, largest = 0;
    row->log_probability = *bound = 0;
    for (int t = row->count - row->targets; t < row->count; t++) {
        logits_at(m, row, t, logits);
        double sum = 0, other = -INFINITY, target = logits[row->token[t + 1]], max = 0;
        for (int v = 0; v < 256; v++) {
            sum += exp(logits[v] - target);
            max = fmax(max, fabs(logits[v]));
            if (v != row->token[t + 1]) other = fmax(other, logits[v]);
        }
        row->log_probability -= log(sum);
        worst_lead = fmin(worst_lead, target - other);
        largest = fmax(largest, max);
        *bound += 2 * u * max + 0x1p-23 * log(sum);     /* the target's logit and the mean of the others */
    }
    row->is_greedy = worst_lead > 0;
    *margin = fabs(worst_lead) - 2 * u * largest;
}

static void compare_batches(const char *name, DType dtype) {
    enum { ITEMS = 60 };
    GPT *alone = make_model(dtype, 1);
    char *text = random_items(name, ITEMS);
    Task want = read_items(name, text, TOKENIZER_BYTES, &alone->config);
    double *bound = new_array(want.rows, sizeof *bound), *margin = new_array(want.rows, sizeof *margin);
    int greedy = 0, lambada = !strcmp(name, "lambada");
    /* a quarter of the words become the model's prediction */
    for (int r = 0; r < want.rows && lambada; r += 4) {
        TaskRow *row = &want.row[r];
        for (int t = row->count - row->targets; t < row->count; t++) {
            float logits[256];
            int best = 0;
            logits_at(alone, row, t, logits);
            for (int v = 1; v < 256; v++) if (logits[v] > logits[best]) best = v;
            row->token[t + 1] = best;
        }
    }
    for (int r = 0; r < want.rows; r++) {
        score_alone(alone, &want.row[r], &bound[r], &margin[r]);
        greedy += want.row[r].is_greedy;
    }
    EXPECT(!lambada || greedy > 0, "no row is greedy");
    for (int B = 1; B <= 7; B += 3) {
        Task got = read_items(name, text, TOKENIZER_BYTES, &alone->config);
        for (int r = 0; r < got.rows; r++)
            memcpy(got.row[r].token, want.row[r].token, (size_t)(got.row[r].count + 1) * sizeof(int32_t));
        task_score(&got, make_model(dtype, B), B);
        for (int r = 0; r < got.rows; r++) {
            const TaskRow *a = &got.row[r], *b = &want.row[r];
            EXPECT(fabs(a->log_probability - b->log_probability) <= bound[r], "%s, B %d: row %d: %.9g, want %.9g +- "
                   "%.2g", name, B, r, a->log_probability, b->log_probability, bound[r]);
            EXPECT(!lambada || margin[r] < 0 || a->is_greedy == b->is_greedy, "%s, B %d: row %d: greedy is %d", name, B,
                   r, a->is_greedy);
        }
        task_free(&got);
    }
    task_free(&want);
}

TEST(batches_equal_single_rows) {
    for (DType dtype = F32; dtype <= BF16; dtype++) {
        if (device_refuse_dtype(dtype)) continue;
        compare_batches("multiple-choice", dtype);
        compare_batches("lambada", dtype);
    }
}

/* Many short rows in the memory for a few long ones: an attention may pad each row to a tile. */
TEST(short_rows) {
    const DType dtype = device_refuse_dtype(BF16) ? F32 : BF16;
    GPTConfig config = { .L = 1, .NH = 2, .C = 128, .T = 1024, .V = 256, .dtype = dtype };
    char *text = random_items("multiple-choice", 300);
    GPT *m = new_model(config, "auto", 4, config.T, EVALUATE);
    gpt_init(m, 1);
    Task task = read_items("multiple-choice", text, TOKENIZER_BYTES, &m->config);
    task_score(&task, m, 4);
    for (int r = 0; r < task.rows; r++)
        EXPECT(task.row[r].log_probability < 0, "row %d: %g", r, task.row[r].log_probability);
    task_free(&task);
}

/* An overflow fails. */
TEST(infinite_activations) {
    GPT *m = make_model(F32, 1);
    float *huge = new_array(m->config.C, sizeof *huge);
    for (int i = 0; i < m->config.C; i++) huge[i] = 3e38f;
    device_upload(m->params.lnfw.data, huge, tensor_bytes(m->params.lnfw));
    Task task = read_items("lambada", "{\"text\": \"a b\"}", TOKENIZER_BYTES, &m->config);
    EXPECT_FAILS("items.jsonl: a log-probability is ", task_score(&task, m, 1));
    task_free(&task);
}

/* ---- Figures */

static int close_to(double a, double b) { return fabs(a - b) <= 1e-12 * fabs(b); }

static void expect_figure(const TaskFigure *f, const char *name, double value, double error) {
    EXPECT(!strcmp(f->name, name) && close_to(f->value, value), "%s %g, want %s %g", f->name, f->value, name, value);
    EXPECT(isnan(error) ? isnan(f->error) : close_to(f->error, error), "%s +- %g, want %g", name, f->error, error);
}

TEST(figures_of_choices) {
    TaskRow rows[] = {
        { .log_probability = -4, .characters = 2 }, { .log_probability = -5, .characters = 5 },     /* 0; norm 1 */
        { .log_probability = -3, .characters = 3 }, { .log_probability = -3, .characters = 3 },     /* equal: 0, 0 */
        { .log_probability = -9, .characters = 9 }, { .log_probability = -1, .characters = 0 },     /* 1; norm 0 */
        { .log_probability = -2, .characters = 1 }, { .log_probability = -1, .characters = 1 },     /* 1, 1 */
    };
    TaskItem items[] = { { 1, 0, 2, 1 }, { 2, 2, 2, 0 }, { 3, 4, 2, 1 }, { 4, 6, 2, 1 } };
    Task task = { .name = "multiple-choice", .item = items, .row = rows, .items = 4, .rows = 8 };
    TaskFigure f[2];
    task_figures(&task, f);
    expect_figure(&f[0], "acc",      0.75, sqrt(0.75 * 0.25 / 3));
    expect_figure(&f[1], "acc_norm", 0.75, sqrt(0.75 * 0.25 / 3));
    items[3].label = 0;
    task_figures(&task, f);
    expect_figure(&f[0], "acc",      0.5, sqrt(0.5 * 0.5 / 3));
    expect_figure(&f[1], "acc_norm", 0.5, sqrt(0.5 * 0.5 / 3));
    task.items = 1;
    task_figures(&task, f);
    expect_figure(&f[0], "acc",      0, NAN);
    expect_figure(&f[1], "acc_norm", 1, NAN);
}

TEST(figures_of_words) {
    TaskRow rows[] = {
        { .log_probability = -1, .is_greedy = 1 }, { .log_probability = -2 }, { .log_probability = -6 } };
    TaskItem items[] = { { 1, 0, 1, 0 }, { 2, 1, 1, 0 }, { 3, 2, 1, 0 } };
    Task task = { .name = "lambada", .item = items, .row = rows, .items = 3, .rows = 3 };
    TaskFigure f[2];
    task_figures(&task, f);
    expect_figure(&f[0], "acc", 1.0 / 3, sqrt(2.0 / 9 / 2));
    expect_figure(&f[1], "perplexity", exp(3), exp(3) * sqrt(14.0 / 2 / 3));
}

int main(void) {
    test_device_open((DeviceOptions){ .threads = 1 });      /* OpenMP's threads do not survive the fork of a child */
    scratch_open();
    return test_all();
}
