#include "settings.h"

/* Writes the table that sets these settings, which must stay where they are. */
static void make_table(Settings *settings, Option table[SETTINGS_ROWS]) {
    static char names[SETTINGS_ROWS][32];
#define ARGUMENT(name)  .argument = name
#define RANGE(low, high) .min = low, .max = high
#define RANGE_OR_AUTO(low, high) .min = low, .max = high, .choices = "auto", .argument = "N|auto"
#define CHOICES(names)  .choices = names
#define NO_ARGUMENT     .argument = NULL
#define TITLE(title)    .help = title
#define ANSWER(names, answer)       .aliases = names, .help = answer
#define CONVERTED(names, to, answer) .aliases = names, .ours = to, .help = answer
#define GONE(names, values, answer) .aliases = names, .choices = values, .help = answer
#define TEXT_ROW(text)  { text },
#define ROW(kind, field, default_text, values, kept_as, ...) \
    { .name = #field, .type = OPTION_##kind, .value = &settings->field, .fallback = default_text, values, \
      .role = ROLE_##kept_as, .help = __VA_ARGS__ },        /* and aliases, the next member */
    const Option rows[SETTINGS_ROWS] = { SETTINGS(TEXT_ROW, ROW) {0} };
    memcpy(table, rows, sizeof rows);
    for (int i = 0; i < SETTINGS_ROWS; i++) {
        if (!rows[i].name) continue;
        table[i].name = strcpy(names[i], rows[i].name);
        for (char *c = names[i]; (c = strchr(c, '_')); ) *c = '-';
    }
}

/* The DIR of --resume DIR becomes --out=DIR. */
static void name_resumed(int argc, char **argv) {
    int at = 1;
    while (at + 1 < argc && (strcmp(argv[at], "--resume") || !file_is_dir(argv[at + 1]))) at++;
    if (at + 1 >= argc) return;
    char *dir = argv[at + 1];
    for (int i = 1; i < argc; i++)
        REQUIRE(strcmp(argv[i], "--out") && strncmp(argv[i], "--out=", 6), "--resume %s continues in that directory: "
                "want no --out; --init %s --out NEW starts a new run from its weights", dir, shell_word(dir));
    argv[at + 1] = format_string("--out=%s", dir);
}

/* Options that only the file of --config has get their defaults again. */
static void ignore_file(Option *table, const char *names) {
    for (Option *o = table; o->name || o->help; o++)
        if (o->given == IN_FILE && choice_index(names, o->name) >= 0) option_set(o, o->fallback);
}

void settings_parse(Settings *s, Option table[SETTINGS_ROWS], int argc, char **argv) {
    make_table(s, table);
    name_resumed(argc, argv);
    options_parse(table, "data", "config", argc, argv);
    REQUIRE(!s->sample || !option_is_typed(table, "data"), "--sample with '%s': it reads no data; the "
            "start of the text is --prompt 'SOME WORDS'", s->data);
    if (option_is_typed(table, "model")) ignore_file(table, "layers|heads|channels");
    if (s->eval || s->sample)            ignore_file(table, "gpus|context-parallel");   /* from a run on several GPUs */
    if (s->profile && !s->resume) s->out = "none";
}

void settings_help(FILE *file, const Option *table) {
    fputs("train_gpt trains GPT-2 models on text files and on token shards.\n\n"
          "  train_gpt book.txt                              train, into runs/book\n"
          "  train_gpt --resume runs/book --steps 4k         continue, here for more steps\n"
          "  train_gpt book.txt --tokenizer DIR              on its tokens; see ./tokenize\n"
          "  train_gpt --sample runs/book --prompt 'Once '   generate text\n"
          "  train_gpt --eval runs/book [other.txt]          val loss, or of another text\n"
          "  train_gpt --eval runs/book --task lambada FILE  accuracy on a task\n"
          "  train_gpt --config RUN/settings.txt --out DIR   the run again, in DIR\n\n"
          "Numbers: 2000, 2e3, 2k, 1.5M, 1G, and 4Ki, 1Mi, 1Gi with powers of 1024.\n"
          "A file for --config has lines such as lr = 2e-3, val-data = \"my file.txt\",\n"
          "deterministic = yes. A comment begins with #. Options on the command line win;\n"
          "of one that is there twice the later value counts.\n\n", file);
    options_help(file, table);
    fputs("\nSIGTERM, SIGINT and SIGHUP save and exit with 75, SIGUSR1 only saves.\n"
          "Ranks meet at MASTER_ADDR, port MASTER_PORT + 1, or one made of Slurm's job id.\n"
          "The environment variable TRAIN_GPT_SECRET, the same on all, keeps others out;\n"
          "it is sent as it is. Without it the job's id only guards against mistakes.\n", file);
}

char *settings_signature(const Option *table) {
    FileMap program = file_map("/proc/self/exe");
    const unsigned long long hash = xxh64(program.bytes, (size_t)program.size);
    file_unmap(program);
    char *signature = NULL, text[256];
    size_t size;
    FILE *file = string_open(&signature, &size, "the options");
    fprintf(file, "build = %s, %s, %016llx\n", VERSION, backend_name, hash);
    for (const Option *o = table; o->name || o->help; o++)
        if (o->name) fprintf(file, "--%s = %s\n", o->name, option_text(o, text));
    fclose(file);
    return signature;
}

void settings_check(const Settings *s) {
    REQUIRE(!s->eval || !s->sample, "--eval and --sample: want one of them");
    REQUIRE(!(s->eval || s->sample) || !(s->resume || s->init || strcmp(s->gpus, "1")),
            "--eval and --sample do not train, and use one GPU: want no --resume, --init, --gpus");
    REQUIRE(s->sample || (s->num_samples == 1 && !s->interactive && strcmp(s->prompt, "-")),
            "--num-samples, --interactive and --prompt -: want --sample CHECKPOINT");
    REQUIRE(!s->interactive || (s->num_samples == 1 && strcmp(s->prompt, "-")),
            "--interactive reads from stdin, and writes one sample: want no --prompt - and no --num-samples");
    REQUIRE(!s->task || s->eval, "--task %s: want --eval CHECKPOINT, the model", s->task);
    REQUIRE(!s->task || s->data || s->val_data, "--task %s: want a file of items, too: --eval %s --task %s FILE",
            s->task, s->eval, s->task);
    REQUIRE(!s->task || !s->out || !strcmp(s->out, "none") || !file_exists(s->out), "--out %s: exists; want a new "
            "file for the items of --task", s->out);
}
