/* test_options.c - What a user types: command lines good and bad, values as text, --help. */
#include "../test.h"
#include <float.h>
#include "../../llmc/options/options.h"

static const char *data, *out, *prompt, *schedule, *model, *note;
static int64_t batch, seed, layers, free_count;
static double lr, clip, temperature;
static int resume, help, shuffle;

static Option table[] = {
    { .help = "What to do" },
    { .name = "data", .type = OPTION_TEXT, .value = &data, .argument = "FILE", .help = "a text, or token shards" },
    { .name = "out", .type = OPTION_TEXT, .value = &out, .argument = "DIR",
      .help = "where log.csv and the checkpoints are written, a sentence that is long enough to be wrapped at the end "
              "of the line, and once more for good measure" },
    { .name = "resume", .type = OPTION_FLAG, .value = &resume, .help = "go on from the newest checkpoint" },
    { .name = "help", .type = OPTION_FLAG, .value = &help, .help = "print this" },
    { .name = "an-option-with-a-rather-long-name", .type = OPTION_INTEGER, .value = &free_count, .argument = "N",
      .min = -9e18, .max = 9e18, .help = "any number" },
    { .help = "Training" },
    { .name = "model", .type = OPTION_TEXT, .value = &model, .fallback = "d4", .argument = "NAME", .help = "size" },
    { .name = "batch", .type = OPTION_INTEGER, .value = &batch, .fallback = "12", .min = 1, .max = 65536,
      .argument = "N", .help = "sequences computed at a time", .aliases = "-b batch-size bs" },
    { .name = "seed", .type = OPTION_INTEGER, .value = &seed, .fallback = "1", .min = 0, .max = 9e18,
      .argument = "N", .help = "of all that is random" },
    { .name = "layers", .type = OPTION_INTEGER, .value = &layers, .min = 1, .max = 1000, .argument = "N",
      .help = "blocks", .aliases = "n-layer" },
    { .name = "learning-rate", .type = OPTION_REAL, .value = &lr, .fallback = "3e-4", .min = 0, .max = 1000,
      .argument = "X", .help = "peak" },
    { .name = "clip", .type = OPTION_REAL, .value = &clip, .fallback = "1", .min = 0, .max = 1e9,
      .argument = "X", .help = "maximum norm" },
    { .name = "temperature", .type = OPTION_REAL, .value = &temperature, .fallback = "0.8", .min = -DBL_MAX,
      .max = DBL_MAX, .argument = "X", .help = "of sampling" },
    { .name = "schedule", .type = OPTION_CHOICE, .value = &schedule, .fallback = "cosine",
      .choices = "cosine|linear|wsd", .help = "how the learning rate falls" },
    { .name = "prompt", .type = OPTION_TEXT, .value = &prompt, .argument = "TEXT",
      .help = "of a sample" },
    { .name = "note", .type = OPTION_TEXT, .value = &note, .fallback = "", .help = "any text" },
    { .name = "shuffle", .type = OPTION_FLAG, .value = &shuffle, .fallback = "yes", .help = "the order of the data",
      .aliases = "shuffled" },
    { .aliases = "dropout", .help = "dropout is not supported" },
    { .aliases = "old-rate older-rate", .choices = "0.1|", .help = "use --learning-rate" },
    {0}
};

typedef struct { const char *want; const char *word[9]; } CommandLine;

static void parse(void *command_line) {
    char *argv[11] = { "train_gpt" };
    int argc = 1;
    for (const char **word = ((CommandLine *)command_line)->word; *word; word++) argv[argc++] = (char *)*word;
    options_parse(table, "data", NULL, argc, argv);
}

#define LONG_WORD "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"

/* A name that is none, and the one that is suggested; NULL: none is. */
static const char *const misspelled[][2] = {
    { "--lerning-rate", "learning-rate" }, { "--LEARNING-RATE", NULL }, { "--learning", "learning-rate" },
    { "--lay", "layers" }, { "--la", NULL }, { "--s", NULL }, { "--bacth", "batch" }, { "--sed", "seed" },
    { "--sde", NULL }, { "--learning_rat", "learning-rate" }, { "-seed", "seed" }, { "--b", NULL }, { "--size", NULL },
    { "-", NULL }, { "--resum", "resume" }, { "--resumee", "resume" }, { "--sheduler=wsd", "schedule" },
    { "--dta", "data" }, { "--seeds", "seed" }, { "--promt=x", "prompt" }, { "--no-resume", NULL },
    { "--" LONG_WORD, NULL }, { "--" LONG_WORD "=" LONG_WORD, NULL }, { "--\xc3\xa9\x01", NULL },
    { "-- batch", "batch" }, { "---batch", "batch" }, { "--batch ", "batch" }, { "--a\nb\tc", NULL }, { "--", NULL },
    { "--=3", NULL },
};

/* Values that an option does not take; a control character is shown as a question mark. */
static const struct { const char *name, *want; const char *values[24]; } bad_values[] = {
    { "batch", "an integer, 1 .. 65536", {
        "0", "65537", "-1", "-0", "1.5", "1.5555k", "1M", "1e-3", "1kb", "1m", "1ki", "k", "1e3k", "1ek",
        "1.0000000000000000001", "nan", "x", "3x", "0x10", " 3", "3 ", "-", "16 k" } },
    { "batch", "an integer, 1 .. 65536", { "3\n", "=3", "99999999999999999999" } },
    { "seed", "an integer, 0 .. 9e18", { "-1", "9223372036854775808" } },
    { "an-option-with-a-rather-long-name", "an integer", { "1.5" } },
    { "learning-rate", "a number, 0 .. 1000", {
        "-1", "1000.0001", "fast", "1e-4x", "1,5", "1e", ".", "nan", "-nan(0)" } },
    { "clip", "a number, 0 .. 1e9", {
        "inf", "-Infinity", "1e999", "-1e999", "1e-999", "0x1p3", "2G", "1e308Gi", " 1", "-1e-9" } },
    { "temperature", "a number", { "1 " } },
    { "schedule", "cosine|linear|wsd", { "cosin", "cosine2", "Cosine", "cosine|linear", "|" } },
    { "resume", "yes|no", { "true", "1" } },
};

static CommandLine bad[] = {
    /* words */
    { "'b.bin': unexpected; options begin with --, a flag takes no value; a value of several words needs quotes, and "
      "so does a pattern that the shell must not expand, 'dir/*.bin' (--help", { "a.bin", "b.bin" } },
    { "'b.bin': unexpected; options begin with --", { "--data", "a.bin", "b.bin", "c.bin" } },
    { "'a time': unexpected; options begin with --", { "--prompt", "once", "upon", "a time" } },
    { "--data: want a value, got ''", { "" } },
    { "--resume true: want yes|no, or the flag alone", { "--resume", "true" } },
    /* missing and empty values */
    { "--batch: want a value, got nothing", { "--batch" } },
    { "--out: want a value, got nothing (one that begins with dashes: --out=VALUE)", { "--out", "--resume" } },
    { "--prompt: want a value, got nothing", { "--prompt", "--" } },
    { "--batch: want a value, got ''", { "--batch", "" } },
    { "--out: want a value, got ''", { "--out=" } },
    { "--resume: want a value, got ''", { "--resume=" } },
    /* what is not UTF-8 */
    { "word 1 of the command line: byte 0xe9 after '--out=caf' is not UTF-8", { "--out=caf\xe9" } },
    { "word 2 of the command line: byte 0xe9 after 'caf\xc3\xa9/' is", { "--out", "caf\xc3\xa9/\xe9t\xe9" } },
    { "byte 0xff after '--' is", { "--\xff\xfe\x01" } },
    { "byte 0xed after 'x' is", { "--prompt", "x\xed\xa0\x80" } },
    /* twice */
    { "--batch x: want an integer", { "--batch", "x", "--batch", "3" } },
    { "--batch: want a value", { "--batch=3", "--batch" } },
};

static void a_command_can_be_given_again(void) {
    char *text = command_line(5, (char *[]){ "./train_gpt", "--prompt=it's", "a b", "", "a\n\033[m" });
    EXPECT(!strcmp(text, "./train_gpt '--prompt=it'\\''s' 'a b' '' 'a??[m'"), "%s", text);
    free(text);
}

static void bad_command_lines(void) {
    for (int i = 0; i < COUNT(bad); i++) expect_fails(bad[i].want, parse, &bad[i]);
    for (int i = 0; i < COUNT(misspelled); i++) {
        const char *name = misspelled[i][0], *meant = misspelled[i][1];
        char want[400];
        if (meant) snprintf(want, sizeof want, "no such option; did you mean --%s?", meant);
        else       snprintf(want, sizeof want, "no such option (--help lists the options)");
        expect_fails(want, parse, &(CommandLine){ NULL, { name, strchr(name, '=') ? NULL : "1" } });
    }
    for (int i = 0; i < COUNT(bad_values); i++)
        for (const char *const *value = bad_values[i].values; *value; value++) {
            char want[200], word[100];
            snprintf(want, sizeof want, "--%s %s: want %s", bad_values[i].name, *value, bad_values[i].want);
            if (strchr(want, '\n')) *strchr(want, '\n') = '?';
            snprintf(word, sizeof word, "--%s=%s", bad_values[i].name, *value);
            expect_fails(want, parse, &(CommandLine){ NULL, { word } });
            snprintf(word, sizeof word, "--%s", bad_values[i].name);
            if (bad_values[i].values != bad_values[COUNT(bad_values) - 1].values)
                expect_fails(want, parse, &(CommandLine){ NULL, { word, *value } });
        }
}

/* A line for each, for each error behind the first of them, and the command. */
static void all_names_of_other_programs_are_answered(void) {
#define BATCH ": use --batch N (sequences computed at a time)\n"
#define SAME  "what has a counterpart here: train_gpt"
    static const CommandLine lines[] = {
        { "train_gpt: --batch-size" BATCH SAME " --batch 4\n", { "--batch-size", "4" } },
        { "train_gpt: --batch_size" BATCH SAME " --batch 4\n", { "--batch_size=4" } },
        { "train_gpt: -b" BATCH SAME " --batch 4\n", { "-b", "4" } },
        { "train_gpt: bs" BATCH SAME " --batch 4\n", { "bs", "4" } },
        { "train_gpt: dropout: dropout is not supported\n" SAME " x.bin\n", { "dropout", "x.bin" } },
        { "train_gpt: --shuffled: use --shuffle (the order of the data)\ntrain_gpt: --batch 0: want an integer, 1 .. "
          "65536\n" SAME " FILE\n", { "--shuffled", "--batch=0" } },
        { "train_gpt: --old_rate: this option is gone; use --learning-rate\n" SAME " FILE\n", { "--old_rate=0.2" } },
        { "train_gpt: --older-rate: this option is gone; use --learning-rate\n" SAME " FILE\n", { "--older-rate" } },
        { "train_gpt: --bs" BATCH "train_gpt: --batch x: want an integer, 1 .. 65536\ntrain_gpt: --n_layer: use "
          "--layers N (blocks)\ntrain_gpt: --dropout: dropout is not supported\n" SAME " 'a word' --batch 3 --shuffle "
          "no\n",
          { "--bs", "3", "a word", "--batch=x", "another", "--shuffle=no", "--n_layer", "--dropout=1" } },
    };
    for (int i = 0; i < COUNT(lines); i++) {
        char text[4096];
        int status;
        text[test_in_child(parse, (void *)&lines[i], text, sizeof text, &status)] = 0;
        EXPECT(!strcmp(text, lines[i].want), "%s", text);
    }
}

static void good_command_lines(void) {
    parse(&(CommandLine){ NULL, { NULL } });
    EXPECT(batch == 12 && lr == 3e-4 && !strcmp(schedule, "cosine") && shuffle, "the defaults");
    EXPECT(!data && !prompt && !resume && !layers, "what has no default");
    EXPECT(!options_find(table, "batch")->given, "a default is not given");
    EXPECT(!options_find(table, "batc") && !options_find(table, "What to do"), "no such options");

    parse(&(CommandLine){ NULL, { "--batch", "65536", "--learning-rate=1e-3", "--resume", "--data", "-" } });
    parse(&(CommandLine){ NULL, { "--batch", "65536", "--learning-rate=1e-3", "--resume", "--data", "-" } });
    EXPECT(batch == 65536 && lr == 1e-3 && resume == 1 && !strcmp(data, "-"), "batch %d lr %g", (int)batch, lr);
    EXPECT(options_find(table, "batch")->given && !options_find(table, "seed")->given, "given");

    parse(&(CommandLine){ NULL, { "input.txt", "--learning_rate", "1k", "--out", "a_b" } });
    EXPECT(!strcmp(data, "input.txt") && lr == 1000 && !strcmp(out, "a_b"), "%s, %g, %s", data, lr, out);
    parse(&(CommandLine){ NULL, { "--batch", "3", "--resume", "--batch=4", "--resume", "no", "a.bin",
                                  "--data=b.bin" } });
    EXPECT(batch == 4 && !resume && !strcmp(data, "b.bin"), "the later value counts: %d, %s", (int)batch, data);
    parse(&(CommandLine){ NULL, { "--old-rate", "0.1", "--older_rate=", "--batch=2" } });
    EXPECT(batch == 2 && !options_find_gone(table, "old-rate", "0.1"), "an option that is gone, where it did nothing");
    EXPECT(options_find_gone(table, "old-rate", "1") && !options_find_gone(table, "bs", "1"), "where it did something");
    parse(&(CommandLine){ NULL, { "--note", "", "-h", "=" } });
    EXPECT(help && !*note && !strcmp(data, "="), "help %d", help);

    parse(&(CommandLine){ NULL, { "--prompt=--x=y", "--seed", "9000000000000000000", "--shuffle=no", "--clip=-0" } });
    EXPECT(!strcmp(prompt, "--x=y") && seed == 9000000000000000000 && !shuffle, "prompt %s", prompt);
    EXPECT(clip == 0 && !signbit(clip), "negative zero becomes zero");
    EXPECT(batch == 12 && !resume && !data, "what was set before is back at its default");

    parse(&(CommandLine){ NULL, { "--prompt", "\xc3\xa9\xf0\x9f\x99\x82", "--data", " a\nb\x01",
                                  "--schedule", "wsd" } });
    EXPECT(!strcmp(prompt, "\xc3\xa9\xf0\x9f\x99\x82") && !strcmp(data, " a\nb\x01") && !strcmp(schedule, "wsd"),
           "texts are taken as they are");

    parse(&(CommandLine){ NULL, { "--temperature", "-1.5E+2", "--an-option-with-a-rather-long-name", "-007",
                                  "--layers=1000" } });
    EXPECT(temperature == -150 && free_count == -7 && layers == 1000, "%g %d", temperature, (int)free_count);
}

/* As they are typed: what a number with a unit or an exponent is worth. */
static void numbers_with_units(void) {
    static const struct { const char *text; double want; } numbers[] = {
        { "1e3", 1000 }, { "1k", 1000 }, { "1K", 1000 }, { "1.5k", 1500 }, { "1.005k", 1005 }, { "4.35k", 4350 },
        { "0.001k", 1 }, { "1M", 1e6 }, { "2.3M", 2300000 }, { "1.048576M", 1 << 20 }, { "2G", 2e9 }, { "1Ki", 1024 },
        { "1.5Ki", 1536 }, { "1Mi", 1 << 20 }, { "0.5Gi", 1 << 29 }, { "+3", 3 }, { "3.0", 3 }, { "2.5e1", 25 },
        { "-2k", -2000 }, { "100e-2", 1 }, { "1000000e9", 1e15 },
    };
    for (int i = 0; i < COUNT(numbers); i++) {
        const char *text = numbers[i].text;
        parse(&(CommandLine){ NULL, { "--an-option-with-a-rather-long-name", text, "--temperature", text } });
        EXPECT((double)free_count == numbers[i].want && temperature == numbers[i].want, "%s: %lld and %.17g", text,
               (long long)free_count, temperature);
    }
}

static void bad_default(void *ignored) {
    (void)ignored;
    Option wrong[] = {
        { .name = "batch", .type = OPTION_INTEGER, .value = &batch, .fallback = "0", .min = 1, .max = 2 },
        {0}
    };
    options_parse(wrong, NULL, NULL, 1, (char *[]){ "train_gpt", NULL });
}

static void defaults_lie_in_their_range(void) {
    expect_fails("--batch 0: want an integer, 1 .. 2", bad_default, NULL);
}

static void text_sets_the_same_value(void) {
    static const struct { double value; const char *want; } reals[] = {
        { 3e-4, "0.0003" }, { 1e-5, "1e-5" }, { 1e6, "1e6" }, { 100, "100" }, { 0.1, "0.1" }, { 0, "0" },
        { 1.0 / 3, NULL }, { 1e-300, "1e-300" }, { 2.5e300, "2.5e300" }, { 65536, "65536" },
        { 123456789, "123456789" }, { 0.1 + 0.2, NULL }, { -1.5, "-1.5" }, { -2e-7, "-2e-7" },
        { 1.7976931348623157e308, NULL }, { 0.95, "0.95" },
        { 0x1.fffffffffffffp-1, NULL },
    };
    char text[256];
    Option *option = options_find(table, "temperature");
    for (int i = 0; i < COUNT(reals); i++) {
        temperature = reals[i].value;
        const char *shown = option_text(option, text);
        if (reals[i].want) EXPECT(!strcmp(shown, reals[i].want), "got %s, want %s", shown, reals[i].want);
        temperature = 99;
        option_set(option, shown);
        EXPECT(temperature == reals[i].value, "%s gives %.17g, want %.17g", shown, temperature, reals[i].value);
    }
    parse(&(CommandLine){ NULL, { "--seed=9007199254740993", "--data", LONG_WORD LONG_WORD LONG_WORD, "--resume",
                                  "--shuffle=no" } });
    EXPECT(!strcmp(option_text(options_find(table, "seed"), text), "9007199254740993"), "%s", text);
    EXPECT(strlen(option_text(options_find(table, "data"), text)) == 3 * strlen(LONG_WORD), "a long text is whole");
    EXPECT(!strcmp(option_text(options_find(table, "resume"), text), "yes"), "%s", text);
    EXPECT(!strcmp(option_text(options_find(table, "shuffle"), text), "no"), "%s", text);
    EXPECT(!strcmp(option_text(options_find(table, "schedule"), text), "cosine"), "%s", text);
    EXPECT(!*option_text(options_find(table, "out"), text), "a text that is not set");
    EXPECT(!*option_text(options_find(table, "layers"), text), "a number that is not set: %s", text);
}

static void help_is_complete_and_narrow(void) {
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    options_help(file, table);
    fclose(file);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        EXPECT(end - line <= 79, "%d columns: %.*s", (int)(end - line), (int)(end - line), line);
        EXPECT(end == line || end[-1] != ' ', "blanks at the end: %.*s", (int)(end - line), line);
    }
    for (const Option *o = table; o->name || o->help; o++) {
        char part[128];
        snprintf(part, sizeof part, "\n  --%s%s%s", o->name, o->argument ? " " : "", o->argument ? o->argument : "");
        if (o->name) EXPECT(strstr(text, part), "no %s in:\n%s", part + 1, text);
        else EXPECT(!strstr(text, o->help) == !!o->aliases, "the group %s, or an answer", o->help);
    }
    static const char *parts[] = {
        "--batch N             sequences computed at a time (default 12)\n", "any number\n", "(default d4)",
        "--schedule cosine|linear|wsd\n                        how the learning rate falls (default cosine)\n",
        "the order of the data (default yes)\n", "of a sample\n", "a text, or token shards\n" };
    for (int i = 0; i < COUNT(parts); i++)
        EXPECT(strstr(text, parts[i]), "no \"%s\" in:\n%s", parts[i], text);
    EXPECT(strstr(text, "  --an-option-with-a-rather-long-name N\n                        any number"),
           "a long name moves its help:\n%s", text);
    free(text);
}

int main(void) {
    RUN(good_command_lines);
    RUN(a_command_can_be_given_again);
    RUN(bad_command_lines);
    RUN(all_names_of_other_programs_are_answered);
    RUN(numbers_with_units);
    RUN(defaults_lie_in_their_range);
    RUN(text_sets_the_same_value);
    RUN(help_is_complete_and_narrow);
    return test_close();
}
