/* test_malformed.c - Over 2,000 malformed inputs for the real program: options, token shards, checkpoints, texts. Each
   is a sound input with one flaw, made by the generator of its format, and must end with exit code 1, one line on
   stderr, and every file as it was; the sound inputs run first. Messages are checked where one process reads many
   files: test_options, test_files, test_data, test_checkpoint, test_import. The program is $BUILD/train_gpt; $TEST_SEED
   draws other values; $MALFORMED_STRIDE=4 runs every fourth case, from one that varies with the time, for a build that
   starts slowly. */
#include "../scratch.h"
#include <ctype.h>
#include <ftw.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

enum { LONGEST_LINE = 2200, LIMIT_S = 20, SHOWN = 12, SHARD_TOKENS = 64, VOCAB = 100 };
#define STEP "step-00000002"
typedef const char *const Text;

static char    *program;
static uint64_t seed = 1, drawn;
static int      stride = 1, phase, cases, cases_run, shown;        /* case n runs if n % stride == phase */

static int draw(int64_t below) { return (int)random_below(seed, RANDOM_TEST, 0, drawn++, (uint64_t)below); }
#define ANY(array) ((array)[draw(COUNT(array))])

/* A text that lives until 128 more are made. */
#define format(...) keep_for_a_case(format_string(__VA_ARGS__))
static char *keep_for_a_case(char *text) {
    static char *texts[128];
    static int next;
    free(texts[next %= COUNT(texts)]);
    return texts[next++] = text;
}

/* ---- A run of the program */

/* The options of the smallest run; those behind it replace any. */
#define BASE "--data text.txt --layers 1 --heads 2 --channels 16 --context 8 --batch 2 --steps 4 --save-every 2 " \
             "--warmup 1 --threads 1"
static char  *words[80];        /* word 0 is the program */
static int    word_count, status, capture[3];       /* files in memory for stdout and stderr */
static char   out[65536], error[16384];

/* Of the command, % stands for the value, whatever characters that has. */
static void set_command(const char *command, const char *value) {
    while (word_count) free(words[--word_count]);
    words[word_count++] = strdup(program);
    for (command += strspn(command, " "); *command; command += strspn(command, " ")) {
        int length = (int)strcspn(command, " "), before = (int)strcspn(command, "% ");
        REQUIRE(word_count < COUNT(words) - 1, "too many words: %s", command);
        words[word_count++] = before == length ? format_string("%.*s", length, command)
            : format_string("%.*s%s%.*s", before, command, value, length - before - 1, command + before + 1);
        command += length;
    }
    words[word_count] = NULL;
}

/* alarm() outlives the exec: a child that hangs ends by its signal. */
static void run_program(void) {
    for (int i = 1; i <= 2; i++)
        if (ftruncate(capture[i], 0) || lseek(capture[i], 0, SEEK_SET)) fail("cannot empty the capture of a child");
    pid_t child = vfork();
    if (child == 0) {
        for (int i = 0; i < 3; i++) dup2(capture[i], i);
        alarm(LIMIT_S);
        execv(program, words);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) fail("cannot start %s", program);
    ssize_t out_bytes = pread(capture[1], out, sizeof out - 1, 0);
    ssize_t error_bytes = pread(capture[2], error, sizeof error - 1, 0);
    out[out_bytes > 0 ? out_bytes : 0] = error[error_bytes > 0 ? error_bytes : 0] = 0;
    while (!strncmp(error, "train_gpt: warning: ", 20) || !strncmp(error, "checkpoint ", 11) ||
           !strncmp(error, "seed ", 5)) {       /* no errors */
        char *next = error + strcspn(error, "\n") + 1;
        memmove(error, next, strlen(next) + 1);
    }
}

static int draws_controls(const char *text) {       /* ASCII's, and U+0080 to U+009F, which a terminal obeys, too */
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if ((*c < 32 && *c != '\n') || *c == 127 || (*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0)) return 1;
    return 0;
}

static const char *complaint(const char *want) {
    size_t length = strlen(error);
    if (strstr(error, "Sanitizer") || strstr(error, "runtime error:")) return "a sanitizer's report";
    if (WIFSIGNALED(status)) return format("ended by signal %d", WTERMSIG(status));
    if (WEXITSTATUS(status) != 1) return format("exit code %d, want 1", WEXITSTATUS(status));
    if (!length || strchr(error, '\n') != error + length - 1) return "not one line on stderr";
    if (length > LONGEST_LINE) return format("a line of %zu bytes, want at most %d", length, LONGEST_LINE);
    if (strncmp(error, "train_gpt: ", 11)) return "the line does not begin with \"train_gpt: \"";
    if (length < 11 + 12) return "the line says nothing";
    if (draws_controls(error)) return "control characters in the line";
    return strstr(error, want) ? NULL : format("the line does not say \"%s\"", want);
}

static void show_case(const char *what, const char *why) {
    test_errors++;
    if (++shown > SHOWN) return;
    printf("  case %d, %s: %s\n   ", cases, what, why);
    for (int i = 0; i < word_count; i++) {
        printf(" '");
        for (const char *c = words[i]; *c && c < words[i] + 120; c++)
            printf(isprint((unsigned char)*c) ? "%c" : "\\x%02x", (unsigned char)*c);
        printf("'");
    }
    printf("\n    status %d, stderr: %.600s\n", status, error);
}

/* A sum over all files but "new", the --out of runs that should not get far. Time and number of a file are in it:
   written anew is not untouched. */
static uint64_t tree_sum;
static int add_file(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)place;
    if (!strncmp(path, "./new", 5)) return 0;
    int is_file = S_ISREG(info->st_mode);
    char *line = format_string("%s %d %ld %ld.%ld %ld", path, kind, (long)info->st_ino * is_file, is_file ?
        (long)info->st_mtim.tv_sec : 0, is_file ? info->st_mtim.tv_nsec : 0, (long)info->st_size * is_file);
    tree_sum += xxh64(line, strlen(line));
    free(line);
    return 0;
}

static uint64_t tree_hash(void) {
    tree_sum = 0;
    if (nftw(".", add_file, 16, FTW_PHYS)) fail("cannot walk through the scratch directory");
    return tree_sum;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)info, (void)kind, (void)place;
    return remove(path);
}

static void remove_tree(const char *path) {
    if (access(path, F_OK)) unlink(path);       /* a link that leads nowhere, or nothing */
    else nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void make_dir(const char *path) { if (mkdir(path, 0777)) fail("%s: cannot prepare a test", path); }

/* The command must be refused with a line that holds want. */
static void refused(const char *want, const char *what, const char *command, const char *value) {
    if (++cases % stride != phase) return;
    cases_run++;
    set_command(command, value);
    uint64_t before = tree_hash();
    run_program();
    const char *why = complaint(want);
    if (why) show_case(what, why);
    if (tree_hash() != before) show_case(what, "files that were there have changed, or new ones appeared");
    remove_tree("new");
}

static void accepted(const char *command, const char *value) {
    set_command(command, value);
    run_program();
    if (status || *error) show_case(command, "a sound input is refused");
    remove_tree("new");
}

/* ---- Files, and what damages any of them */

typedef struct { unsigned char bytes[1 << 18]; size_t size; } Blob;
static Blob blob;       /* the one that is being damaged */

static void load(Blob *to, const char *path) {
    FileMap map = file_map(path);
    REQUIRE((size_t)map.size < sizeof to->bytes, "%s: too large for this test", path);
    memcpy(to->bytes, map.bytes, to->size = (size_t)map.size);
    to->bytes[to->size] = 0;
    file_unmap(map);
}

static void save(const char *path, const Blob *from) {
    remove_tree(path);
    put(path, from->bytes, from->size);
}

static void word32(size_t at, uint32_t value) {
    for (int i = 0; i < 4; i++) blob.bytes[at + (size_t)i] = (unsigned char)(value >> (8 * i));
}

/* Other programs' files, by their first 13 bytes; test_files has every kind. */
static Text foreign[] = { "\x80\x04\x95\x1b\0\0\0\0\0\0\0}\x94", "PK\3\4\0\0\x08\x08\0\0\0\0", "\x93NUMPY\1\0v\0{'d",
                          "\x10\0\0\0\0\0\0\0{\"a\":", "GGUF\3\0\0\0\x22\0\0\0" };
enum { CUT_OFF, BEHIND, CUT_OUT, CONTROL, OTHER_FORMAT, DAMAGES };

/* Damages the blob at a byte. CONTROL is for the text of JSON, in which no byte below 9 and no 0xff may stand. */
static const char *damage(int kind, int at) {
    const int count = 1 + draw(40), size = (int)blob.size;
    unsigned char *place = blob.bytes + at, byte = ANY(((const unsigned char[]){ 0, 1, 7, 8, 255 }));
    switch (kind) {
    case CUT_OFF: blob.size = (size_t)at; return format("ends after %d bytes", at);
    case CUT_OUT:
        memmove(place, place + 4, (size_t)(size - at - 4)), blob.size -= 4;
        return format("4 bytes are missing at %d", at);
    case CONTROL: *place = byte; return format("byte %d is %d", at, byte);
    case BEHIND: case OTHER_FORMAT:
        place = blob.bytes + (kind == BEHIND ? size : 0);
        for (int i = 0; i < 64 + count; i++) place[i] = (unsigned char)(i * 37 | 128);
        blob.size = (size_t)(place + 64 + count - blob.bytes);
        if (kind == BEHIND) return format("%d bytes behind its end", 64 + count);
        memcpy(blob.bytes, foreign[at % COUNT(foreign)], 13);
        return format("of another program, number %d", at % COUNT(foreign));
    }
    return NULL;
}

static Text no_file_kinds[] = { "missing", "empty", "a directory", "a link to nowhere", "a link to itself", "a pipe",
                                "a device" };

/* What may stand where a file should be. */
static const char *no_file(const char *path, int kind) {
    int bad = 0;
    remove_tree(path);
    if (kind == 1) put_text(path, "");
    if (kind == 2) make_dir(path);
    if (kind == 3) bad = symlink("nowhere", path);
    if (kind == 4) bad = symlink(strrchr(path, '/') ? strrchr(path, '/') + 1 : path, path);
    if (kind == 5) bad = mkfifo(path, 0600);
    if (kind == 6) bad = symlink("/dev/null", path);
    if (bad) fail("%s: cannot prepare a test", path);
    return format("%s is %s", path, no_file_kinds[kind]);
}

/* ---- Options: each of --help; test_options has more values, and names that there are not */

static char *lengthy;           /* 100,000 letters */

/* The line of --help behind "--": a name, and what stands for the value of an option that is no flag. */
static void damaged_option(const char *line) {
    static Text no_values_of_it[] = { "", "abc", "1x", "0x10", "nan", "1,5", "1\x1b[0m", "\xc2\xb2", "50%", "--1",
                                      "99999999999999999999999999999999", "-9223372036854775809" };
    char name[64] = "", argument[32] = "";
    sscanf(line, "%63[a-z0-9-] %31[A-Z|a-z0-9]", name, argument);
    const int is_flag = !strncmp(line + strlen(name), "  ", 2);
    refused("", "an option that there is not", BASE " --%=1", format("%s_", name));
    refused(is_flag ? name : "want a value", is_flag ? "a flag with a value" : "no value at the end", BASE " --%",
            is_flag ? format("%s=maybe", name) : name);
    if (is_flag || (strcmp(argument, "N") && !strchr(argument, '|'))) return;
    for (int i = 0; i < COUNT(no_values_of_it); i++)
        refused(name, "no number, or no choice", format(i % 2 ? BASE " --%s=%%" : BASE " --%s %%", name),
                no_values_of_it[i]);
    refused(name, "100,000 characters", format(BASE " --%s %%", name), lengthy);
}

/* Commands with the line that they must end with; % is each of the values in turn. */
typedef struct { const char *want, *what; Text *command; int commands; Text *value; int values; } Refusal;
#define LIST(...) (Text[]){ __VA_ARGS__ }, COUNT(((Text[]){ __VA_ARGS__ }))

static void refuse_all(const Refusal *r, int count) {
    for (; count--; r++)
        for (int n = 0; n < r->commands * r->values; n++) {
            const char *command = r->command[n % r->commands], *value = r->value[n / r->commands];
            if (!strchr(command, '%')) command = format("%s %s", command, value);      /* values are commands, too */
            refused(r->want, r->what, command, value);
        }
}

static const Refusal refusals[] = {
    { "", "a stray word", LIST(BASE " %"), LIST(
        "word", "-x", "-", "--", "--=3", "", "steps=3", "\xe2\x80\x94steps", "-5", "-steps", "---steps", "/",
        "text.txt", "\x1b[31m", "\n", "a\nb", "--\x7f", "= 3", "?") },
    { "", "a path that leads to nothing of the kind",
        LIST(BASE " --data %", BASE " --val-data %", BASE " --init %", BASE " --eval %", BASE " --sample %"), LIST(
        "\x1b[31mred", "a\nb", "a\rb", "\x7f", "\302\2332J", "\xff\xfe", "%s%n%d", "[", "no*", "??", "/", ".", "..",
        "dir/", "text.txt/x", "nowhere/x", "~") },
    { "want a divisor of --channels", "heads", LIST(BASE " --heads % --channels 50"), LIST("3", "4", "7", "40", "49") },
    { "heads", "more heads than channels", LIST(BASE " --channels 16 --heads %"), LIST("17", "32", "1000") },
    { "want a multiple", "a total batch in pieces", LIST(BASE " --total-batch %"), LIST("1", "15", "17", "1000") },
    { "256", "a vocabulary that bytes do not fit", LIST(BASE " --vocab %"), LIST("1", "2", "99", "128", "255") },
    { "", "options that do not go together, or nothing to work on", LIST("--threads 1"), LIST(
        "--eval run --sample run --data text.txt", "--eval run --data text.txt --resume", "--sample run --init run",
        "--resume", "--resume --data nowhere", "--eval run", "--eval run --sample-tokens 3", "--dry-run", "--layers 1",
        "--eval run --data nowhere", "--eval run --val-data nowhere --data text.txt", "--out run --data text.txt") },
    { "", "nothing of the kind", LIST("--resume --out % --threads 1", "--eval % --data text.txt", "--sample %",
        "--data text.txt --init %"), LIST("nowhere", "dir", "text.txt", "run/log.csv", "good16.bin", "/dev/null") },
    { "--batch", "a model that no memory holds", LIST("--data text.txt --threads 1 --context 16777216"), LIST(
        "--model d48", "--batch 1048576", "--layers 1000 --heads 512 --channels 65536", "--model d24 --dry-run",
        "--model d2 --attention naive") },
    { "prompt", "no list of ids below 100", LIST("--sample ids --sample-tokens 1 --threads 1 --prompt %"), LIST(
        "word", "1 2 x", "100", "99 100", "-1", "1,2", "+1", "\x1b[31m", "1\x07", "\xc2\x9b",
        "99999999999999999999999") },
    { "", "files of two kinds, or none", LIST(BASE), LIST(
        "--data text.txt --val-data good16.bin", "--data good16.bin --val-data text.txt", "--data good*.bin",
        "--data good32.bin --val-data text.txt", "--data good16.bin --vocab 99", "--data good32.bin --vocab 2",
        "--data none*.bin", "--data good16.bin --vocab 100 --val-data none*", "--data good16.bin --vocab 1",
        "--data directory --vocab 100") },
};

static void malformed_options(void) {
    int listed = 0;
    lengthy = memset(calloc(1, 100001), 'A', 100000);
    set_command("--help", "");
    run_program();
    char *help = strdup(out);
    for (const char *line = help; (line = strstr(line, "\n  --")); listed++) damaged_option(line += strlen("\n  --"));
    EXPECT(listed > 35, "%d options in --help, want all of them", listed);
    free(help);
    refuse_all(refusals, COUNT(refusals));
    refuse_all(&(Refusal){ "A: ", "a path of 100,000 bytes", LIST(BASE " --data %", BASE " --val-data %",
               BASE " --init %", BASE " --eval %", BASE " --out %"), LIST(lengthy) }, 1);
    refused("", "a name of 303 bytes", BASE " --out %", format("new%0300d", 0));
    free(lengthy);
}

/* ---- Token shards */

/* A sound one: ids below VOCAB in 2 or 4 bytes. */
static void blob_shard(int width, int count) {
    memset(blob.bytes, 0, sizeof blob.bytes);
    word32(0, width == 2 ? 20240520 : 20240801), word32(4, 1), word32(8, (uint32_t)count);
    for (int i = 0; i < count; i++) blob.bytes[1024 + width * i] = (unsigned char)(i * 37 % VOCAB);
    blob.size = 1024 + (size_t)(width * count);
}

static Text shard_readers[] = {
    BASE " --data broken.bin --vocab 100 --out new", "--eval ids --threads 1 --batch 2 --data broken.bin",
    BASE " --data set/*.bin --vocab 100 --out new",
    BASE " --data good16.bin --val-data broken.bin --vocab 100 --out new",
    "--eval ids --threads 1 --batch 2 --val-data broken.bin --data good16.bin",
};

/* The blob is read alone, for validation, as one of three files, and by --eval, in turn. */
static void refuse_shard(const char *what) {
    const char *reader = shard_readers[cases % COUNT(shard_readers)];
    const char *path = strstr(reader, "set/") ? "set/1.bin" : "broken.bin";
    save(path, &blob);
    refused("", format("%s: %s", path, what), reader, "");
}

/* Of each of the three words of the header every bit is turned. */
static void malformed_shards(void) {
    static const int bounds[] = { 0, 1, 4, 7, 12, 256, 1023, 1024, 1025, 1028, 1089 };
    make_dir("set");
    for (int width = 2; width <= 4; width += 2) {
        blob_shard(width, SHARD_TOKENS);
        const Blob sound = blob;
        const int last = (int)sound.size;
        for (int i = 0; i < 3; i++) save(format("set/%d.bin", i), &sound);
        for (int bit = 0; bit < 96; bit++, blob = sound) {
            blob.bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
            refuse_shard(format("bit %d of the header is turned", bit));
        }
        for (int i = 0; i < DAMAGES * COUNT(bounds); i++, blob = sound) {
            const int at = bounds[i % COUNT(bounds)];
            if (i / COUNT(bounds) != CONTROL) refuse_shard(damage(i / COUNT(bounds), at < last ? at : last - 5));
        }
        for (int i = 0; i < SHARD_TOKENS; i += 3, blob = sound) {
            const uint32_t id = VOCAB + (uint32_t)draw(width == 2 ? 65536 - VOCAB : INT32_MAX);
            for (int b = 0; b < width; b++) blob.bytes[1024 + width * i + b] = (unsigned char)(id >> 8 * b);
            refuse_shard(format("token %d has id %u", i, id));
        }
        word32(0, width == 2 ? 20240801 : 20240520), blob.size -= (size_t)(width == 4);
        for (int i = 0; i < COUNT(shard_readers); i++) refuse_shard("magic of the other width");
        blob_shard(6 - width, SHARD_TOKENS), save("set/1.bin", &blob);
        refused("", "a shard of the other width among them", shard_readers[2], "");
        blob_shard(width, 1), save("broken.bin", &blob);
        for (int i = 0; i < COUNT(shard_readers); i++) if (i != 2) refused("", "one token", shard_readers[i], "");
    }
    remove_tree("set");
    for (int i = 0; i < COUNT(no_file_kinds) * COUNT(shard_readers); i++)
        refused("", no_file("broken.bin", i % COUNT(no_file_kinds)), shard_readers[i / COUNT(no_file_kinds)], "");
    remove_tree("broken.bin");
}

/* ---- Checkpoints: a run like the sound one, of which one file is damaged */

static Blob config_json, model_file, optimizer_file, state_json, log_csv;
static const struct { const char *name; Blob *sound; } parts[] = {
    { "broken/" STEP "/config.json", &config_json }, { "broken/" STEP "/model.safetensors", &model_file },
    { "broken/" STEP "/optimizer.safetensors", &optimizer_file }, { "broken/" STEP "/state.json", &state_json },
    { "broken/log.csv", &log_csv },
};
enum { CONFIG, MODEL, OPTIMIZER, STATE, NO_PART };

static Text checkpoint_readers[] = {      /* the last reads all parts, the others the configuration and the model */
    "--eval % --data text.txt --batch 2 --threads 1", "--sample % --prompt a --sample-tokens 9 --threads 1",
    BASE " --init % --out new", "--out broken --resume --threads 1",
};

static void restore_parts(void) {
    remove_tree("broken"), make_dir("broken"), make_dir("broken/" STEP);
    for (int i = 0; i < COUNT(parts); i++) save(parts[i].name, parts[i].sound);
}

static void refuse_checkpoint(int part, const char *want, const char *what) {
    static Text names[] = { "broken", "broken/", "broken/" STEP, "broken/" STEP "/model.safetensors" };
    const char *reader = checkpoint_readers[part <= MODEL ? cases % COUNT(checkpoint_readers) : 3];
    refused(want, format("%s: %s", parts[part].name, what), reader, ANY(names));
}

/* The blob in the place of a part; the line must name the file. */
static void refuse_part(int part, const char *what) {
    save(parts[part].name, &blob);
    refuse_checkpoint(part, strrchr(parts[part].name, '/') + 1, what);
}

/* The first `old` of a part becomes `new`, of as many bytes in a safetensors file. test_checkpoint has more fields. */
static const struct { int part; const char *old, *new; } flaws[] = {
    { CONFIG, "`n_layer`: 1", "`n_layer`: 0" }, { CONFIG, "`n_head`: 2", "`n_head`: 3" },
    { CONFIG, "`n_embd`: 16", "`n_embd`: 24" }, { CONFIG, "`n_embd`: 16", "`n_embd`: 1e99" },
    { CONFIG, "`n_positions`: 8", "`n_positions`: 4611686018427387904" },
    { CONFIG, "`n_positions`: 8", "`n_positions`: `8`" }, { CONFIG, "`vocab_size`: 256", "`vocab_size`: null" },
    { CONFIG, "`vocab_size`: 256", "`vocab_size`: 0x10" }, { CONFIG, "`vocab_size`", "`\\u009b2J`" },
    { CONFIG, "`gpt2`", "`\\u001b[31m`" }, { CONFIG, "}", "}}" },
    { MODEL, "`dtype`", "`dtyqe`" }, { MODEL, "`F32`", "`F64`" }, { MODEL, "`F32`", "`I32`" },
    { MODEL, "`shape`:[2", "`shape`:[9" }, { MODEL, "`shape`:[8,16]", "`shape`:[16,8]" },
    { MODEL, "`shape`:[8,16]", "`shape`:[8,-6]" }, { MODEL, "`data_offsets`:[0,", "`data_offsets`:[4," },
    { MODEL, "`data_offsets`:[16384,", "`data_offsets`:[99999," }, { MODEL, "wpe", "wte" }, { MODEL, ".h.0.", ".h.1." },
    { MODEL, "ln_1", "ln_3" }, { MODEL, "pt`}", "pt`]" }, { MODEL, "`__metadata__`:{`", "`__metadata__`:[`" },
    { OPTIMIZER, "exp_avg.", "exp_avh." }, { OPTIMIZER, "`F32`", "`F64`" }, { OPTIMIZER, "wpe", "wte" },
    { OPTIMIZER, "`shape`:[8,16]", "`shape`:[16,8]" }, { OPTIMIZER, "`data_offsets`:[0,", "`data_offsets`:[4," },
    { STATE, "`step`: 2", "`step`: 3" }, { STATE, "`step`: 2", "`step`: 1.5" },
    { STATE, "`sequences_seen`: ", "`sequences_seen`: -" }, { STATE, "`sequences_seen`", "`sequences`" },
    { STATE, "`tokens`: ", "`tokens`: -" }, { STATE, "`val_step`: -1", "`val_step`: 9" },
    { STATE, "`optimizer_step`: 2", "`optimizer_step`: 3" }, { STATE, "`nonfinite`: 0", "`nonfinite`: -1" },
    { STATE, "`spikes`: 0", "`spikes`: null" }, { STATE, "`window_loss`: [", "`window_loss`: [1, " },
    { STATE, "`train`: `", "`train`: `a" }, { STATE, "`settings`", "`setting`" },
    { STATE, "`settings`: ", "`settings`: 5, `x`: " }, { STATE, "`settings`: ", "`settings`: [], `x`: " },
    { STATE, "`batch`: `2`", "`batch`: 2" }, { STATE, "`batch`: `2`", "`batch`: `two`" },
    { STATE, "`layers`: `1`", "`layers`: `2`" }, { STATE, "`channels`: `16`", "`channels`: `32`" },
    { STATE, "`heads`: `2`", "`heads`: `3`" }, { STATE, "`steps`: `4`", "`steps`: `-1`" },
    { STATE, "`lr`: `", "`lr`: `nan" }, { STATE, "`clip`: `", "`clip`: `\\u0000" },
    { STATE, "`attention`: `", "`attention`: `x" }, { STATE, "`schedule`: `", "`schedule`: `\\u001b[1m" },
    { STATE, "`data`: `", "`data`: `nowhere/" }, { STATE, "`seed`: `", "`seed`: `-" },
};

static void flawed_part(int part, const char *old, const char *new) {
    const Blob *sound = parts[part].sound;
    const size_t length = strlen(old);
    const unsigned char *at = memmem(sound->bytes, sound->size, old, length);
    REQUIRE(at, "%s has no %s", parts[part].name, old);
    const size_t before = (size_t)(at - sound->bytes);
    blob = *sound;
    memcpy(blob.bytes + before, new, strlen(new));
    memcpy(blob.bytes + before + strlen(new), at + length, sound->size - before - length);
    blob.size = sound->size - length + strlen(new);
    save(parts[part].name, &blob);
    refuse_checkpoint(part, "", format("%s is %s", old, new));
}

/* Places from the beginning to the end; in a safetensors file half of them in the header, and no control character in
   its data. */
static void damaged_part(int part) {
    const Blob *sound = parts[part].sound;
    const int is_json = part == CONFIG || part == STATE, size = (int)sound->size - 4;
    const int header = is_json ? size : 8 + (sound->bytes[0] | sound->bytes[1] << 8);
    for (int i = 0; i < 60; i++) {
        const int kind = i % DAMAGES, in_header = kind == CONTROL || i % 2;
        if (is_json && kind == CUT_OUT) continue;       /* may be white space, or a member that is not read */
        blob = *sound;
        refuse_part(part, damage(kind, is_json || !in_header ? size * i / 60 : 8 + draw(header - 8)));
    }
    for (int i = 0; i < 6 && is_json; i++) {
        memset(blob.bytes, "[{\"-n "[i], blob.size = (size_t)(50 + draw(100000)));
        refuse_part(part, format("%zu times %c", blob.size, blob.bytes[0]));
    }
    for (int bit = 0; bit < 64 && !is_json; bit++) {
        blob = *sound, blob.bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        refuse_part(part, format("bit %d of the header's length is turned", bit));
    }
    for (int i = 0; i < 16 && !is_json; i++) {          /* the last tensor, 16 numbers */
        static const uint32_t nans[] = { 0x7fc00000, 0xffc00000, 0x7f800001 };
        blob = *sound, word32((size_t)(size - 4 * i), nans[i % 3]);
        refuse_part(part, format("number %d from the end is NaN", i));
    }
}

static const Refusal resumes[] = {
    { ": the model of", "another size", LIST("--out broken --resume --threads 1 %"), LIST(
        "--layers=2", "--layers=32", "--channels=32", "--channels=160", "--context=16", "--context=48") },
    { "", "a resume with an option that it cannot have", LIST("--out broken --resume --threads 1"), LIST(
        "--heads 4", "--heads 3", "--vocab 300", "--model d5", "--dtype bf16", "--data nowhere", "--data good16.bin",
        "--val-data good16.bin", "--data dir", "--min-lr 0.5", "--total-batch 17", "--init nowhere", "--out none") },
};

static void malformed_checkpoints(void) {
    restore_parts();
    for (int i = 0; i < COUNT(checkpoint_readers); i++) accepted(checkpoint_readers[i], "broken");
    restore_parts();
    refuse_all(resumes, COUNT(resumes));
    for (int part = CONFIG; part < NO_PART; part++) {
        restore_parts();
        damaged_part(part);
        for (int i = 0; i < COUNT(flaws); i++)
            if (flaws[i].part == part) flawed_part(part, quoted(flaws[i].old), quoted(flaws[i].new));
    }
    for (int i = 0; i < 4 * NO_PART * COUNT(no_file_kinds); i++) {
        const int part = i / 4 % NO_PART;
        restore_parts();
        refuse_checkpoint(part, "broken", no_file(parts[part].name, i / 4 / NO_PART));
    }
    remove_tree("broken");
}

/* ---- Texts, and where the results should go */

static Text text_readers[] = {
    BASE " --data broken.txt --out new", BASE " --val-data broken.txt --out new",
    "--eval run --threads 1 --batch 2 --data broken.txt",
    "--eval run --threads 1 --batch 2 --data text.txt --val-data broken.txt",
};
static const Refusal places[] = {
    { "", "an --out where nothing can be written", LIST(BASE " --out %"), LIST(
        "text.txt", "text.txt/", "text.txt/a/b/c", "/proc/none", "/dev/null", "/dev/null/x", "run", "run/",
        "dir/../run", "dangling", "itself", "pipe", "run/log.csv", "run/" STEP "/config.json", "/proc/self/fd/none") },
    { "", "an --out where nothing can be written", LIST(BASE " --init run --out %",
        BASE " --data good16.bin --vocab 100 --out %"), LIST("text.txt/x", "ids", "run", "itself") },
};

static void malformed_texts(void) {
    static Text floors[] = { "", "abc", "-1", "nan", "inf", "1e400", "nats 1.5", "\n\n", "\x1b[31m",
                             "{\"floor\": 1}", "\xff\xfe", "x1.5", "7.5", "\x80\x02" };
    for (int i = 0; i < 4 * COUNT(foreign); i++) {
        const char *what = damage(OTHER_FORMAT, i / 4);
        save("broken.txt", &blob);
        refused("broken.txt", what, text_readers[i % 4], "");
    }
    for (int i = 0; i < 4 * COUNT(no_file_kinds); i++)
        refused("broken.txt", no_file("broken.txt", i / 4), text_readers[i % 4], "");
    remove_tree("broken.txt");
    for (int count = 1; count < 20; count++) {          /* one byte; a validation part of at most one */
        put_text("broken.txt", format("%0*d", count, 7));
        refused(count == 1 ? "broken.txt" : "too few", format("%d bytes", count), count == 1 ? text_readers[1]
                : format("%s --val-fraction %.6f", text_readers[0], 0.95 / count), "");
    }
    for (int i = 0; i < 12; i++) {
        load(&blob, "text.txt");
        memset(blob.bytes, ' ', blob.size);
        blob.bytes[draw(500)] = (unsigned char)(VOCAB + draw(156));
        save("broken.txt", &blob);
        refused("broken.txt", "a byte beyond the vocabulary", "--eval ids --threads 1 --batch 2 --data broken.txt", "");
    }
    load(&blob, "text.txt"), save("broken.txt", &blob);
    for (int i = 0; i < COUNT(floors); i++) {
        put_text("broken.txt.floor", floors[i]);
        refused("", format("a floor of %s", floors[i]), text_readers[1], "");
    }
    refused("", no_file("broken.txt.floor", 2), text_readers[1], "");
    if (symlink("nowhere", "dangling") || symlink("itself", "itself") || mkfifo("pipe", 0600)) fail("no link, no pipe");
    refuse_all(places, COUNT(places));
    make_dir("new"), make_dir("new/log.csv");
    refused("log.csv", "a directory in the place of the log", BASE " --out new", "");
}

static void sound_inputs(void) {
    char text[601];
    for (int i = 0; i < 600; i++) text[i] = "the cat sat on a mat, and then it ran.\n"[i * 7 % 39];
    text[600] = 0;
    put_text("text.txt", text);
    blob_shard(2, SHARD_TOKENS), save("good16.bin", &blob);
    blob_shard(4, SHARD_TOKENS), save("good32.bin", &blob);
    make_dir("dir"), put_text("dir/note.md", "a note\n");
    accepted(BASE " --out run", "");
    accepted(BASE " --data good16.bin --val-data good32.bin --vocab 100 --out ids", "");
    remove_tree("run/step-00000004");
    for (int i = 0; i < COUNT(parts); i++) load(parts[i].sound, format("run%s", parts[i].name + strlen("broken")));
}

static void all_cases(void) {
    printf("     %d cases, %d of them run, seed %llu\n", cases, cases_run, (unsigned long long)seed);
    EXPECT(cases >= 2000, "%d cases, want 2,000", cases);
    EXPECT(cases_run >= cases / stride, "%d cases run of %d, every %d", cases_run, cases, stride);
}

int main(void) {
    const char *other_seed = getenv("TEST_SEED"), *other_stride = getenv("MALFORMED_STRIDE");
    char *path = built("train_gpt"), *home = getcwd(NULL, 0);
    program = realpath(path, NULL);
    if (!program || !home) fail("no program to test: want BUILD=FOLDER with train_gpt in it");
    if (other_seed) seed = strtoull(other_seed, NULL, 10);
    if (other_stride && atoi(other_stride) > 1) stride = atoi(other_stride);
    phase = (int)(time(NULL) % stride);
    setenv("OMP_NUM_THREADS", "1", 1);
    capture[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (int i = 1; i <= 2; i++) capture[i] = memfd_create("captured", MFD_CLOEXEC);
    scratch_open();
    if (chdir(scratch)) fail("%s: cannot go there", scratch);
    RUN(sound_inputs);
    if (!test_failed) {
        RUN(malformed_options);
        RUN(malformed_shards);
        RUN(malformed_checkpoints);
        RUN(malformed_texts);
        RUN(all_cases);
    }
    if (chdir(home)) fail("%s: cannot go back there", home);
    while (word_count) free(words[--word_count]);
    for (int i = 0; i < 128; i++) format("%s", "");
    free(home);
    free(program);
    return test_close();
}
