/* test_settings.c - The options of train_gpt: command lines good and bad, names of other programs, --config, settings
   written and read, --help. */
#include "../scratch.h"
#include "../../llmc/model/model_config.h"

/* The text of a file that was read stays behind. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:host_alloc\nleak:vasprintf"; }

static Settings s;
static Option   table[SETTINGS_ROWS];
static char    *config;         /* the path of a file */

typedef struct { const char *want, *text; const char *word[9]; } Case;

/* text: of the file, if any; word: after --config FILE on the command line. */
static void parse(const Case *c) {
    char *argv[13] = { "train_gpt" };
    int argc = 1;
    if (c->text) {
        put_text(config, c->text);
        argv[argc++] = "--config";
        argv[argc++] = config;
    }
    for (int i = 0; i < COUNT(c->word) && c->word[i]; i++) argv[argc++] = (char *)c->word[i];
    settings_parse(&s, table, argc, argv);
    settings_check(&s);
}

/* ---- The command line */

TEST(good_command_lines) {
    parse(&(Case){0});
    EXPECT(s.batch == 16 && s.lr == 1e-3 && !strcmp(s.schedule, "cosine") && !s.data && !*s.prompt && !s.deterministic,
           "the defaults");
    EXPECT(!options_find(table, "batch")->given, "a default is not given");
    EXPECT(!options_find(table, "batc") && !options_find(table, "Training"), "no such options");
    parse(&(Case){ .word = { "--batch", "65536", "--lr=2e-3", "--deterministic", "--data", "-" } });
    EXPECT(s.batch == 65536 && s.lr == 2e-3 && s.deterministic && !strcmp(s.data, "-"), "%g", s.lr);
    EXPECT(options_find(table, "batch")->given && !options_find(table, "seed")->given, "given");
    parse(&(Case){ .word = { "input.txt", "--weight_decay", "1k", "--out", "a_b" } });
    EXPECT(!strcmp(s.data, "input.txt") && s.weight_decay == 1000 && !strcmp(s.out, "a_b"), "%s, %s", s.data, s.out);
    EXPECT(s.batch == 16 && !s.deterministic, "what was set before is back at its default");
    parse(&(Case){ .word = { "--batch", "3", "--deterministic", "--batch=4", "--deterministic", "no", "a.bin",
                             "--data=b.bin" } });
    EXPECT(s.batch == 4 && !s.deterministic && !strcmp(s.data, "b.bin"), "the later value counts: %s", s.data);
    parse(&(Case){ .word = { "--zero", "1", "--attention_dropout=", "--batch=2" } });
    EXPECT(s.batch == 2 && !options_find_gone(table, "zero", "1"), "an option that is gone, where it did nothing");
    EXPECT(options_find_gone(table, "zero", "0") && !options_find_gone(table, "bs", "1"), "where it did something");
    parse(&(Case){ .word = { "--stop", "", "-h", "=" } });
    EXPECT(s.help && !*s.stop && !strcmp(s.data, "="), "help %d", s.help);
    parse(&(Case){ .word = { "--prompt=--x=y", "--seed", "9000000000000000", "--clip=-0", "--steps=007" } });
    EXPECT(!strcmp(s.prompt, "--x=y") && s.seed == 9000000000000000 && s.steps == 7, "prompt %s", s.prompt);
    EXPECT(s.clip == 0 && !signbit(s.clip), "negative zero becomes zero");
    parse(&(Case){ .word = { "--prompt", "\xc3\xa9\xf0\x9f\x99\x82", "--data", " a\nb\x01", "--schedule", "wsd" } });
    EXPECT(!strcmp(s.prompt, "\xc3\xa9\xf0\x9f\x99\x82") && !strcmp(s.data, " a\nb\x01") &&
           !strcmp(s.schedule, "wsd"), "texts are taken as they are");
    char *text = test_keep(command_line(5, (char *[]){ "./train_gpt", "--prompt=it's", "a b", "", "a\n\033[m" }));
    EXPECT(!strcmp(text, "./train_gpt '--prompt=it'\\''s' 'a b' '' 'a??[m'"), "%s", text);
}

/* As they are typed: what a number with a unit or an exponent is worth. */
TEST(numbers_with_units) {
    static const struct { const char *text; double want; } numbers[] = {
        { "1e3", 1000 }, { "1k", 1000 }, { "1K", 1000 }, { "1.5k", 1500 }, { "1.005k", 1005 }, { "4.35k", 4350 },
        { "0.001k", 1 }, { "1M", 1e6 }, { "2.3M", 2300000 }, { "1.048576M", 1 << 20 }, { "1Ki", 1024 },
        { "1.5Ki", 1536 }, { "1Mi", 1 << 20 }, { "0.5Gi", 1 << 29 }, { "+3", 3 }, { "3.0", 3 }, { "2.5e1", 25 },
        { "100e-2", 1 }, { "1G", 1e9 }, { "1000000e9", 1e15 },
    };
    for (int i = 0; i < COUNT(numbers); i++) {
        const char *text = numbers[i].text;
        const int is_large = numbers[i].want > 1e9;
        parse(&(Case){ .word = { "--val-tokens", text, is_large ? NULL : "--clip", text } });
        EXPECT((double)s.val_tokens == numbers[i].want && (is_large || s.clip == numbers[i].want), "%s: %lld and %.17g",
               text, (long long)s.val_tokens, s.clip);
    }
}

#define LONG_WORD "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"

/* Values that an option does not take; a control character is shown as a question mark. */
static const struct { const char *name, *want; const char *values[24]; } bad_values[] = {
    { "num-samples", "an integer, 1 .. 65536", {
        "0", "65537", "-1", "-0", "1.5", "1.5555k", "1M", "1e-3", "1kb", "1m", "1ki", "k", "1e3k", "1ek",
        "1.0000000000000000001", "nan", "x", "3x", "0x10", " 3", "3 ", "-", "16 k" } },
    { "num-samples", "an integer, 1 .. 65536", { "3\n", "=3", "99999999999999999999" } },
    { "batch", "an integer, 1 .. 1048576, or auto", { "0", "aut" } },
    { "seed", "an integer, 0 .. 9e15", { "-1", "9223372036854775808" } },
    { "lr", "a number, 0 .. 1e6", { "-1", "1000000.1", "fast", "1e-4x", "1,5", "1e", ".", "nan", "-nan(0)" } },
    { "clip", "a number, 0 .. 1e9", {
        "inf", "-Infinity", "1e999", "-1e999", "1e-999", "0x1p3", "2G", "1e308Gi", " 1", "-1e-9" } },
    { "temperature", "a number", { "1 " } },
    { "schedule", "cosine|linear|wsd|constant", { "cosin", "cosine2", "Cosine", "cosine|linear", "|" } },
    { "deterministic", "yes|no", { "true", "1" } },
};

static Case bad_words[] = {
    { .want = "'b.bin': unexpected; options begin with --, a flag takes no value; a value of several words needs "
      "quotes, and so does a pattern that the shell must not expand, 'dir/*.bin' (--help",
      .word = { "a.bin", "b.bin" } },
    { .want = "'b.bin': unexpected; options begin with --", .word = { "--data", "a.bin", "b.bin", "c.bin" } },
    { .want = "'a time': unexpected; options begin with --", .word = { "--prompt", "once", "upon", "a time" } },
    { .want = "--data: want a value, got ''", .word = { "" } },
    { .want = "--deterministic true: want yes|no, or the flag alone", .word = { "--deterministic", "true" } },
    /* missing and empty values */
    { .want = "--prompt: want a value, got nothing", .word = { "book.txt", "--prompt" } },
    { .want = "--out: want a value, got nothing (one that begins with dashes: --out=VALUE)",
      .word = { "--out", "--resume" } },
    { .want = "--prompt: want a value, got nothing", .word = { "--prompt", "--" } },
    { .want = "--batch: want a value, got ''", .word = { "--batch", "" } },
    { .want = "--out: want a value, got ''", .word = { "--out=" } },
    { .want = "--deterministic: want a value, got ''", .word = { "--deterministic=" } },
    /* twice */
    { .want = "--batch x: want an integer", .word = { "--batch", "x", "--batch", "3" } },
    { .want = "--batch: want a value", .word = { "--batch=3", "--batch" } },
};

TEST(bad_command_lines) {
    for (int i = 0; i < COUNT(bad_words); i++) EXPECT_FAILS(bad_words[i].want, parse(&bad_words[i]));
    for (int i = 0; i < COUNT(bad_values); i++)
        for (const char *const *value = bad_values[i].values; *value; value++) {
            const char *name = STRING("--%s", bad_values[i].name), *word = STRING("%s=%s", name, *value);
            char *want = STRING("%s %s: want %s", name, *value, bad_values[i].want);
            if (strchr(want, '\n')) *strchr(want, '\n') = '?';
            EXPECT_FAILS(want, parse(&(Case){ .word = { word } }));
            if (strcmp(name, "--deterministic")) EXPECT_FAILS(want, parse(&(Case){ .word = { name, *value } }));
        }
}

/* ---- Names */

/* Names of other programs: a line with this part among those on stderr, of which a command is the last. */
static void expect_answer(const char *part, Case *c) {
    char text[4096];
    int status;
    if (test_child_begin()) parse(c);
    test_child_end(text, sizeof text, &status);
    const char *last = STRING("\n%s%swhat has a counterpart here: train_gpt ", c->text ? config : "",
                              c->text ? ": " : "");
    EXPECT(status && strstr(text, part) && strstr(text, last), "want %s, got %s", part, text);
}

TEST(unknown_names) {
    static const char *const cases[][2] = {      /* a word, and the answer behind its name */
        { "--learning_rate=1", "use --lr" }, { "--learning-rate=1e-3", "use --lr" }, { "--batchsize=3", "use --batch" },
        { "--block-size=64", "use --context" }, { "--n_layer=6", "use --layers" }, { "--max_iters=100", "use --steps" },
        { "--per-device-train-batch-size=8", "use --batch" },
        { "--eval_iters=20", "use --val-tokens N, in tokens: a batch has --batch x --context" },
        { "--gradient_accumulation_steps=4", "use --total-batch N, in tokens: a micro" },
        { "--bf16", "use --dtype auto|f32|bf16 (auto = bf16" },
        { "--wandb_log=True", "log.csv and log.jsonl are always written, remove it" },
        { "--log-jsonl", "this option is gone; log.jsonl is" }, { "--compile=False", "not needed, remove it" },
        { "--attn_pdrop=0.2", "use --dropout N (rate" }, { "--nproc_per_node=8", "use --gpus" },
        { "-i", "use --data" }, { "-x", "use --steps" }, { "-nk", "use --keep" }, { "-pr", "torchrun and srun set it" },
        { "-e", "use --model" }, { "-v", "use --val-every" }, { "-h", "use --eval CHECKPOINT FILE, also" },
        { "--chat", "use --sample CHECKPOINT --interactive" }, { "--rope", "the model is GPT-2's" },
        { "-pi", "torchrun and srun set it" }, { "--resume_from_checkpoint=out", "use --resume RUN, the directory" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        const char *word = cases[i][0], *want = STRING("%.*s: %s", (int)strcspn(word, "="), word, cases[i][1]);
        Case c = { .word = { word, word[1] == '-' ? NULL : "3" } };
        expect_answer(want, &c);
    }
    EXPECT_FAILS("--resume test continues in that directory: want no --out",
                 parse(&(Case){ .word = { "--resume", "test", "--out=x" } }));
    EXPECT_FAILS("--resume test: want yes|no, or the flag alone", parse(&(Case){ .word = { "--resume=test" } }));
}

/* A line for each, for each error behind the first of them, and the command. */
TEST(all_names_are_answered) {
    parse(&(Case){0});
    const char *batch = options_find(table, "batch")->help, *layers = options_find(table, "layers")->help;
    const char *const want = STRING(
        "train_gpt: bs: use --batch N|auto (%s)\ntrain_gpt: --batch x: want an integer, 1 .. 1048576, or auto\n"
        "train_gpt: --n_layer: use --layers N (%s)\n"
        "train_gpt: --zero: this option is gone; several ranks always have ZeRO-1\n"
        "what has a counterpart here: train_gpt 'a word' --deterministic no --batch 3\n",
        batch, layers);
    Case c = { .word = { "bs", "3", "a word", "--batch=x", "another", "--deterministic=no", "--n_layer", "--zero=0" } };
    char text[4096];
    int status;
    if (test_child_begin()) parse(&c);
    test_child_end(text, sizeof text, &status);
    EXPECT(!strcmp(text, want), "got %s, want %s", text, want);
}

TEST(suggestions) {
    static const char *const nonsense[] = {
        "--foo", "--frobnicate", "--x", "--size", "--save", "--sam", "--weights", "--loss", "--layout", "--cheese",
        "--sparse", "--moe-experts", "--z-loss", "--hello-world", "--test", "--debug", "--quick", "--loop", "--cutmix",
        "--reset", "--force", "--port", "--host", "--lora-rank", "--quantize", "--label-smoothing", "--ema",
        "--patience", "--streaming", "--cache", "--no-resume", "--LR", "--e", "--q", "--k", "--tr", "--TEMPERATURE",
        "--la", "--sde", "-steps", "--temper", "-", "--" LONG_WORD, "--" LONG_WORD "=" LONG_WORD,
        "--\xc3\xa9\x01", "--a\nb\tc", "--", "--=3" };
    for (int i = 0; i < COUNT(nonsense); i++)
        EXPECT_FAILS("no such option (--help lists the options)", parse(&(Case){ .word = { nonsense[i] } }));
}

/* Every option that an answer names exists, no foreign name is one of ours, none has two answers. */
TEST(answers_name_options) {
    static char seen[1024][48];
    int count = 0;
    parse(&(Case){0});
    for (int row = 0; row < SETTINGS_ROWS - 1; row++) {
        for (const char *at = table[row].help; (at = strstr(at, "--")); at += 2) {
            char *name = STRING("%.*s", (int)strcspn(at + 2, " ,;:)"), at + 2);
            EXPECT(options_find(table, name), "%s: there is no --%s", table[row].help, name);
        }
        for (const char *at = table[row].aliases; at && *at; at += strspn(at, " ")) {
            int length = (int)strcspn(at, " ");
            snprintf(seen[count], sizeof *seen, "%.*s", length, at);
            EXPECT(!options_find(table, seen[count]) && !strchr(seen[count], '_'), "%s is ours", seen[count]);
            for (int i = 0; i < count; i++) EXPECT(strcmp(seen[i], seen[count]), "%s: two answers", seen[i]);
            count++;
            at += length;
        }
    }
    EXPECT(count > 200, "%d names", count);
}

TEST(one_word_is_the_data) {
    parse(&(Case){ .word = { "input.txt", "--steps", "1e3", "--val_tokens", "1Mi" } });
    EXPECT(!strcmp(s.data, "input.txt") && s.steps == 1000 && s.val_tokens == 1 << 20, "%s", s.data);
    parse(&(Case){ .word = { "--eval", "runs/book", "other.txt" } });
    EXPECT(!strcmp(s.data, "other.txt") && !strcmp(s.eval, "runs/book"), "%s", s.data);
    Case sample = { .word = { "--sample", "runs/book", "Once" } };
    EXPECT_FAILS("--sample with 'Once': it reads no data; the start of the text is --prompt '", parse(&sample));
    parse(&(Case){ .word = { "help" } });
    EXPECT(s.help && !s.data, "help");
    parse(&(Case){ .word = { "-v" } });
    EXPECT(s.version, "-v");
    put_text(IN_SCRATCH("own.py"), "steps = 7\n");
    parse(&(Case){ .word = { IN_SCRATCH("own.py"), "--lr=1" } });
    EXPECT(s.steps == 7 && !s.data && s.lr == 1, "a file of options");
    put_text(IN_SCRATCH("text.py"), "def f():\n");
    EXPECT_FAILS("'def f():': want name = value", parse(&(Case){ .word = { IN_SCRATCH("text.py") } }));
    parse(&(Case){ .text = "data = a\n", .word = { "--sample", "runs/book" } });
    EXPECT(s.data && s.sample, "a file may have what --sample does not read");
}

/* A checkpoint with the sizes of d4, but another context and vocabulary. */
static GPTConfig saved = { .L = 4, .NH = 4, .C = 256, .T = 64, .V = 100 };

TEST(models) {
    parse(&(Case){ .text = "model = d12\nlayers = 3\nheads = 3\n", .word = { "--model", "d2", "--heads", "4" } });
    EXPECT(s.layers == 0 && s.heads == 4, "a file's %lld layers, %lld heads", (long long)s.layers, (long long)s.heads);
    parse(&(Case){ .text = "model = d12\nlayers = 3\n" });
    EXPECT(s.layers == 3, "%lld layers", (long long)s.layers);
    parse(&(Case){0});
    GPTConfig c = model_config(&s, NULL, NULL, 256);
    EXPECT(c.L == 4 && c.NH == 4 && c.C == 256 && c.T == 256 && c.V == 256, "without --model: d4");
    parse(&(Case){ .word = { "--model", "gpt2-medium", "--context=64" } });
    c = model_config(&s, NULL, NULL, 50257);
    EXPECT(c.L == 24 && c.NH == 16 && c.C == 1024 && c.T == 64 && c.V == 50257, "%d layers", c.L);

    static Case good[] = { { .word = { "--steps=3" } }, { .word = { "--model=d4" } },
                           { .word = { "--model=d12", "--layers=4", "--heads=4", "--channels=256" } } };
    for (int i = 0; i < COUNT(good); i++) {
        parse(&good[i]);
        c = model_config(&s, "C", &saved, 0);
        EXPECT(c.L == 4 && c.C == 256 && c.T == 64 && c.V == 100, "%s: that of the checkpoint", good[i].word[0]);
    }
    static Case bad[] = {
        { "--layers 12: the model of C has 4; remove --model", NULL, { "--model=gpt2" } },
        { "--heads 12: the model of C has 4; remove --model", NULL, { "--model=d12", "--layers=4" } },
        { "--layers 3: the model of C has 4; remove --layers", NULL, { "--model=d4", "--layers=3" } },
        { "--context 32: the model of C has 64; remove --context", NULL, { "--context=32" } },
        { "--model gpt: want one of d2, d4", NULL, { "--model=gpt" } },
    };
    for (int i = 0; i < COUNT(bad); i++) EXPECT_FAILS(bad[i].want, parse(&bad[i]); model_config(&s, "C", &saved, 0));
}

/* On other ranks the sequences of an update stay, and a batch becomes the next smaller one that divides them. */
TEST(a_resume_keeps_the_sequences) {
    parse(&(Case){ .word = { "--batch=12", "--total-batch=320" } });
    EXPECT(update_sequences(&s, 16, 1) == 20 && s.batch == 10, "batches of %lld", (long long)s.batch);
}

/* From d12 up: what is not given is that of the size, an update of whole micro-batches. */
TEST(recipes) {
    static const struct { const char *want, *word[5]; double lr; int64_t warmup, total_batch; } cases[] = {
        { "--lr 0.0006, --warmup 400, --total-batch 524288",
          { "--model=d12" }, 6e-4, 400, 1 << 19 },
        { "--lr 0.0003, --warmup 700, --total-batch 573440",
          { "--model=gpt2-medium", "--batch=112", "--steps=19k" }, 3e-4, 700, 5 * 112 * 1024 },  /* 4.6 rounded */
        { "--lr 0.0017, --warmup 4, --total-batch 524288",
          { "--model=d36", "--optimizer=muon", "--steps=20", "--batch=auto" }, 1.7e-3, 4, 1 << 19 },
        { "--total-batch 1048576", { "--model=gpt2-xl", "--lr=1", "--warmup=9", "--batch=1024" },
          1, 9, 1 << 20 },
        { NULL, { "--model=d8" }, 1e-3, 100, 0 },
        { NULL, { "--layers=12", "--channels=768", "--heads=12" }, 1e-3, 100, 0 },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        Case c = {0};
        memcpy(c.word, cases[i].word, sizeof cases[i].word);
        parse(&c);
        GPTConfig config = model_config(&s, NULL, NULL, 256);
        char *text = recipe_choose(&s, table, &config);
        EXPECT(text == cases[i].want || (text && cases[i].want && !strcmp(text, cases[i].want)), "%s", text);
        EXPECT(s.lr == cases[i].lr && s.warmup == cases[i].warmup && s.total_batch == cases[i].total_batch,
               "%s: %g, %lld, %lld", c.word[0], s.lr, (long long)s.warmup, (long long)s.total_batch);
        free(text);
    }
    EXPECT(!strcmp(s.dtype, device_refuse_dtype(BF16) ? "f32" : "bf16"), "--dtype auto: %s", s.dtype);
}

/* ---- --config */

TEST(values_in_a_file) {
    parse(&(Case){ .text = "\xef\xbb\xbf# a comment\nsteps = 1\n  \t\r\nsteps=1.5k\r\n"
                           "val_tokens = 0 # all of them\n\tlr\t=\t2e-3\t#x\n"
                           "prompt = \"a \\\"b\\\" \\\\ \\n\\t#'\" # y\nout = ' a\\n \"#'#\ndata = dir#1/a b.txt \n"
                           "deterministic = yes\nmodel = gpt2-xl\nval-data='x'\n"
                           "zero = 1\nring-order=zigzag # gone\nattention-dropout =",
                   .word = { NULL } });
    EXPECT(s.steps == 1500 && s.val_tokens == 0 && s.lr == 2e-3, "%lld %lld %g", (long long)s.steps,
           (long long)s.val_tokens, s.lr);
    EXPECT(!strcmp(s.prompt, "a \"b\" \\ \n\t#'"), "prompt %s", s.prompt);
    EXPECT(!strcmp(s.out, " a\\n \"#"), "out %s", s.out);
    EXPECT(!strcmp(s.data, "dir#1/a b.txt") && !strcmp(s.val_data, "x"), "data %s", s.data);
    EXPECT(s.deterministic && !strcmp(s.model, "gpt2-xl") && s.batch == 16, "the rest");
    EXPECT(options_find(table, "lr")->given == IN_FILE && !options_find(table, "batch")->given, "given");

    parse(&(Case){ .text = "steps = 7\nlr = 1\ndata = a\nprompt = Once\ndeterministic = yes\n",
                   .word = { "--lr=2", "b", "--prompt=", "--deterministic=no" } });
    EXPECT(s.steps == 7 && s.lr == 2 && !strcmp(s.data, "b") && !*s.prompt && !s.deterministic,
           "the command line wins: %g %s", s.lr, s.data);
    parse(&(Case){ .text = "", .word = { NULL } });
    EXPECT(s.steps == 2000 && !s.data, "an empty file");
}

TEST(bad_files) {
    static Case cases[] = {
        { ":1: --i: no such option (--help lists the options)", "i = x\n", { 0 } },
        { ":1: --steps x: want an integer, 0 .. 1e12", "steps = x\n", { 0 } },
        { ":1: --steps x: want an integer, 0 .. 1e12", "steps = x\n", { "--steps=3" } },
        { ":1: --deterministic True: want yes|no", "deterministic = True", { 0 } },
        { ":1: --steps: want a value", "steps =\n", { 0 } },
        { ":1: --steps: want a value", "steps = # none\n", { 0 } },
        { ":1: --steps: want a value", "steps = \"\"\n", { 0 } },
        { ":1: 'steps 3': want name = value", "steps 3\n", { 0 } },
        { ":1: 'deterministic': want name = value", "deterministic\n", { 0 } },
        { ":1: '= 3': want name = value", " = 3\n", { 0 } },
        { ":1: 'steps # = 3': want name = value", "steps # = 3\n", { 0 } },
        { ":2: 'prompt = \"abc': want name = value, the value as it is, in '...', or in \"...\" with \\n, "
          "\\t, \\\", \\\\ only",
          "steps = 3\nprompt = \"abc\n\"\n", { 0 } },
        { ":1: 'prompt = \"abc\\\"': want name = value", "prompt = \"abc\\\"", { 0 } },
        { ":1: 'prompt = \"\\x41\"': want name = value", "prompt = \"\\x41\"\n", { 0 } },
        { ":1: 'prompt = \"\\': want name = value", "prompt = \"\\\nsteps = 3\n", { 0 } },
        { ":1: 'prompt = \"ab\" c': want name = value", "prompt = \"ab\" c\n", { 0 } },
        { ":1: --eval belongs on the command line", "eval = runs/a\n", { 0 } },
        { ":1: --sample belongs on the command line", "sample = runs/a\n", { 0 } },
        { ":1: --resume belongs on the command line", "resume = yes\n", { 0 } },
        { ":1: --dry-run belongs on the command line", "dry_run = yes\n", { 0 } },
        { ":1: --config belongs on the command line", "config = b\n", { 0 } },
        { ":1: --help belongs on the command line", "help = yes\n", { 0 } },
        { ":1: --version belongs on the command line", "version = 1\n", { 0 } },
    };
    static Case foreign[] = {
        { ":1: --learning_rate: use --lr", "learning_rate = 1e-3 # nanoGPT\n", { 0 } },
        { ":3: --compile: not needed, remove it", "# x\n\ncompile = True\n", { 0 } },
        { ":2: --log-jsonl: this option is gone", "lr = 1\nlog-jsonl = x", { 0 } },
        { ":1: --keep-every: this option is gone; --keep 0 keeps all", "keep-every = 5000 # x\n", { 0 } },
        { ":2: --zero: this option is gone", "lr = 1\nzero = 0", { 0 } },
        { ":2: --n_layer: use --layers", "steps = 5\nn_layer = 6 # here\nno such line\n", { 0 } },
    };
    for (int i = 0; i < COUNT(foreign); i++) expect_answer(STRING("%s%s", config, foreign[i].want), &foreign[i]);
    for (int i = 0; i < COUNT(cases); i++) {
        cases[i].want = STRING("%s%s", config, cases[i].want);
        EXPECT_FAILS(cases[i].want, parse(&cases[i]));
    }
    put(config, "steps = 3\0\n", 11);
    Case zero = { .word = { "--config", config } }, none = { .word = { "--config", "/nowhere/x" } };
    EXPECT_FAILS(STRING("%s: has a zero byte, want a text of lines name = value", config), parse(&zero));
    EXPECT_FAILS("/nowhere/x: ", parse(&none));
}

/* ---- Settings written, and read again */

static uint64_t draw(uint32_t n, uint32_t which, uint64_t below) {
    return random_below(11, RANDOM_TEST, n, which, below);
}

/* A value in the option's range, by many orders of magnitude, any bits. */
static void set_randomly(Option *o, uint32_t n, uint32_t which) {
    static const char *hostile[] = {
        " leading", "trailing ", "\t", "a\nb", "#", "a #b", "'", "\"", "\"x\"", "it's \"so\"", "\\", "\\n", "a\\", "=",
        "a = b", "--x", "caf\xc3\xa9 \xf0\x9f\x99\x82", "\r", "a\r\nb", "\x01\x1b[m\x7f", "yes", "0", "%s%n",
        "dir/*.bin", "\n\n" };
    double fraction = (double)draw(n, which, 1ull << 53) / 0x1p53, real = o->min + fraction * (o->max - o->min);
    if (draw(n, which + 1, 2)) real = fmax(o->min, o->max * pow(fraction, 20));
    switch (o->type) {
    case OPTION_FLAG:    *(int *)o->value = (int)draw(n, which, 2); break;
    case OPTION_INTEGER: *(int64_t *)o->value = (int64_t)fmax(o->min, floor(real)); break;
    case OPTION_REAL:    *(double *)o->value = real; break;
    case OPTION_TEXT:    *(const char **)o->value = hostile[draw(n, which, COUNT(hostile))]; break;
    case OPTION_CHOICE: {
        const char *choice = o->choices;
        for (uint64_t skip = draw(n, which, 2); skip; skip--) choice = strchr(choice, '|') + 1;
        *(const char **)o->value = STRING("%.*s", (int)strcspn(choice, "|"), choice);
    } }
    o->given = ON_COMMAND_LINE;
}

static int same_text(const char *a, const char *b) { return a == b || (a && b && !strcmp(a, b)); }

TEST(written_settings_are_read_to_the_bit) {
    for (uint32_t n = 0; n < 200; n++) {
        parse(&(Case){0});
        for (int i = 0; i < SETTINGS_ROWS; i++)
            if (table[i].name && table[i].role != ROLE_COMMAND && draw(n, 1000 + (uint32_t)i, 4))
                set_randomly(&table[i], n, 2 * (uint32_t)i);
        Settings was = s;
        FILE *file = fopen(config, "w");
        fputs("# a comment\n", file);
        options_write(file, table);
        fclose(file);
        Option had[SETTINGS_ROWS];
        memcpy(had, table, sizeof had);
        Case again = { .word = { "--config", config } };
        parse(&again);
        for (int i = 0; i < SETTINGS_ROWS; i++) {
            if (!table[i].name || table[i].role == ROLE_COMMAND) continue;
            size_t at = (size_t)((char *)table[i].value - (char *)&s);
            const char *a = (const char *)&was + at, *b = (const char *)&s + at;
            int same = table[i].type == OPTION_FLAG ? !memcmp(a, b, sizeof(int))
                     : table[i].type == OPTION_INTEGER || table[i].type == OPTION_REAL ? !memcmp(a, b, 8)
                     : same_text(*(const char *const *)a, *(const char *const *)b);
            EXPECT(same, "%u: --%s is not the same", n, table[i].name);
            EXPECT(!had[i].given || table[i].given, "%u: --%s was given", n, table[i].name);
        }
    }
}

TEST(what_is_written) {
    char text[4096] = "";
    parse(&(Case){ .word = { "my book.txt", "--out=x", "--lr=2e-3", "--threads=2", "--resume", "--prompt=a\n\"b\"" } });
    FILE *file = fmemopen(text, sizeof text, "w");
    options_write(file, table);
    fclose(file);
    static const char *lines[] = { "data = \"my book.txt\"\n", "\nlr = 0.002\n", "\nsteps = 2000\n", "\nthreads = 2\n",
                                   "\nprompt = \"a\\n\\\"b\\\"\"\n", "\ndeterministic = no\n", "\nval-every = 250\n" };
    static const char *absent[] = { "\nout =", "resume =", "min-lr =", "help =", "model =" };
    for (int i = 0; i < COUNT(lines); i++) EXPECT(strstr(text, lines[i]), "no %s in\n%s", lines[i], text);
    for (int i = 0; i < COUNT(absent); i++) EXPECT(!strstr(text, absent[i]), "%s in\n%s", absent[i], text);
}

TEST(values_as_text) {
    static const struct { double value; const char *want; } reals[] = {
        { 3e-4, "0.0003" }, { 1e-5, "1e-5" }, { 1e6, "1e6" }, { 100, "100" }, { 0.1, "0.1" }, { 0, "0" },
        { 1e-300, "1e-300" }, { 65536, "65536" }, { 123456789, "123456789" }, { 0.95, "0.95" },
    };
    char text[256];
    parse(&(Case){ .word = { "--data", LONG_WORD LONG_WORD LONG_WORD, "--deterministic", "--batch=auto" } });
    for (int i = 0; i < COUNT(reals); i++) {
        s.clip = reals[i].value;
        const char *shown = option_text(options_find(table, "clip"), text);
        EXPECT(!strcmp(shown, reals[i].want), "got %s, want %s", shown, reals[i].want);
    }
    static const char *const others[][2] = {
        { "data", LONG_WORD LONG_WORD LONG_WORD }, { "deterministic", "yes" }, { "perturb", "no" }, { "batch", "auto" },
        { "schedule", "cosine" }, { "out", "" }, { "min-lr", "" },       /* not set */
    };
    for (int i = 0; i < COUNT(others); i++)
        EXPECT(!strcmp(option_text(options_find(table, others[i][0]), text), others[i][1]), "--%s", others[i][0]);
}

TEST(help_is_complete_and_narrow) {
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    parse(&(Case){ .word = { "-h" } });
    EXPECT(s.help, "-h");
    settings_help(file, table);
    fclose(file);
    int lines = 0, options = 0;
    for (const Option *o = table; o->name || o->help; o++) {
        options += o->name != NULL;
        if (o->name) EXPECT(strstr(text, STRING("\n  --%s ", o->name)), "no --%s in:\n%s", o->name, text);
        else EXPECT(!strstr(text, o->help) == !!o->aliases, "the group %s, or an answer", o->help);
    }
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1, lines++)
        EXPECT(end - line <= 79 && (end == line || end[-1] != ' '), "%.*s", (int)(end - line), line);
    /* what is no option's own line: usage, titles, longer texts */
    EXPECT(lines < options + 92, "%d lines for %d options", lines, options);
    static const char *const parts[] = {
        "\n  --warmup N            steps of linear warm-up (default 100)\n", "\n  --out DIR             of",
        "\n  --schedule " SCHEDULE_NAMES "\n                        of --lr; wsd = ",
        "\n  --deterministic       the same bits in every run, also on a GPU\n" };
    for (int i = 0; i < COUNT(parts); i++) EXPECT(strstr(text, parts[i]), "no \"%s\" in:\n%s", parts[i], text);
    free(text);
}

int main(void) {
    scratch_open();
    config = IN_SCRATCH("settings.txt");
    return test_all();
}
