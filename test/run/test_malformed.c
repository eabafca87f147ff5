/* test_malformed.c - Over 2,000 malformed inputs for the real program: options, token shards, checkpoints, texts. Each
   is a sound input with one flaw, made by the generator of its format, and must end with exit code 1, one line on
   stderr, and every file as it was; the sound inputs run first. Messages are checked where one process reads many
   files: test_options, test_files, test_data, test_checkpoint, test_import. The program is $BUILD/train_gpt; $TEST_SEED
   draws other values; $MALFORMED_STRIDE=4 runs every fourth case, from one that varies with the time, for a build that
   starts slowly. */
#include "../scratch.h"
#include <ctype.h>
#include <ftw.h>
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

/* ---- A run of the program */

/* The options of the smallest run; those behind it replace any. */
#define BASE "--data text.txt --layers 1 --heads 2 --channels 16 --context 8 --batch 2 --steps 4 --save-every 2 " \
             "--warmup 1 --threads 1"
static const char *command_line, *percent;     /* % of the command: this value, whatever characters that has */
static int        status;
static char       error[16384];

/* alarm() outlives the exec: a child that hangs ends by its signal. */
static void execute(void *keeps_stdout) {
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC), before = (int)strcspn(command_line, "%");
    const char *after = command_line + before + (command_line[before] == '%');
    dup2(null, 0);
    dup2(keeps_stdout ? 2 : null, 1);
    alarm(LIMIT_S);
    execl("/bin/sh", "sh", "-fc", STRING("exec '%s' %.*s%s%s", program, before, command_line,
          command_line[before] ? "\"$1\"" : "", after), "sh", percent, NULL);
    _exit(127);
}

static void run_program(const char *command, const char *value) {
    command_line = command, percent = value;
    test_in_child(execute, NULL, error, sizeof error, &status);
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
    if (WIFSIGNALED(status)) return STRING("ended by signal %d", WTERMSIG(status));
    if (WEXITSTATUS(status) != 1) return STRING("exit code %d, want 1", WEXITSTATUS(status));
    if (!length || strchr(error, '\n') != error + length - 1) return "not one line on stderr";
    if (length > LONGEST_LINE) return STRING("a line of %zu bytes, want at most %d", length, LONGEST_LINE);
    if (strncmp(error, "train_gpt: ", 11)) return "the line does not begin with \"train_gpt: \"";
    if (length < 11 + 12) return "the line says nothing";
    if (draws_controls(error)) return "control characters in the line";
    return strstr(error, want) ? NULL : STRING("the line does not say \"%s\"", want);
}

static void show_case(const char *what, const char *why) {
    test_errors++;
    if (++shown > SHOWN) return;
    printf("  case %d, %s: %s\n    %s, %% = ", cases, what, why, command_line);
    for (const char *c = percent; *c && c < percent + 120; c++)
        printf(isprint((unsigned char)*c) ? "%c" : "\\x%02x", (unsigned char)*c);
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
    uint64_t before = tree_hash();
    run_program(command, value);
    const char *why = complaint(want);
    if (why) show_case(what, why);
    if (tree_hash() != before) show_case(what, "files that were there have changed, or new ones appeared");
    remove_tree("new");
}

static void accepted(const char *command, const char *value) {
    run_program(command, value);
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

/* The blob = the sound file with `length` bytes in the place of `gone` at a byte. */
static void replace(const Blob *sound, size_t at, size_t gone, const void *bytes, size_t length) {
    REQUIRE(at + gone <= sound->size && sound->size + length - gone < sizeof blob.bytes, "byte %zu of a file", at);
    memcpy(blob.bytes, sound->bytes, at);
    memcpy(blob.bytes + at, bytes, length);
    memcpy(blob.bytes + at + length, sound->bytes + at + gone, sound->size - at - gone);
    blob.size = sound->size + length - gone;
}

/* Other programs' files, of 60 bytes; test_files has every kind. */
static const char foreign[][60] = { "\x80\x04\x95\x1b\0\0\0\0\0\0\0}\x94", "PK\3\4\0\0\x08\x08\0\0\0\0",
    "\x93NUMPY\1\0v\0{'d", "\x10\0\0\0\0\0\0\0{\"a\":", "GGUF\3\0\0\0\x22\0\0\0" };

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
    return STRING("%s is %s", path, no_file_kinds[kind]);
}

/* The file at path is each of these, for each reader. */
static void refuse_no_file(const char *path, const char *want, Text *readers, int count) {
    for (int i = 0; i < count * COUNT(no_file_kinds); i++)
        refused(want, no_file(path, i / count), readers[i % count], "");
    remove_tree(path);
}

/* The generator of every format: each of the first bits is turned, the file ends early, begins as one of another
   program, has bytes behind its end, and a control character at a place of its text, JSON, which ends at byte `data`;
   text -1: there is none. */
static void damage_everywhere(const Blob *sound, void (*refuse)(const char *), int bits, int text, int data) {
    for (int bit = 0; bit < bits; bit++) {
        replace(sound, (size_t)bit / 8, 1, &(char){ (char)(sound->bytes[bit / 8] ^ 1 << bit % 8) }, 1);
        refuse(STRING("bit %d of the header is turned", bit));
    }
    for (int i = 0; i < 40; i++) {
        const size_t at = (size_t)(i % 4 ? i * ((int)sound->size - 4) / 40 : data - 2 + i / 4);
        if (at >= sound->size - 3) continue;
        replace(sound, at, sound->size - at, "", 0), refuse(STRING("ends after %zu bytes", at));
    }
    for (int i = 0; i < 16 && text >= 0; i++) {
        const size_t at = (size_t)(text + draw(data - text - 4));
        replace(sound, at, 1, &"\1\7\10\377"[i % 5], 1), refuse(STRING("a control character at %zu", at));
    }
    for (int i = 0; i < COUNT(foreign); i++)
        replace(sound, 0, sound->size, foreign[i], 60), refuse(STRING("of another program, number %d", i));
    replace(sound, sound->size, 0, foreign[0], 60), refuse("bytes behind its end");
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
    refused("", "an option that there is not", BASE " --%=1", STRING("%s_", name));
    refused(is_flag ? name : "want a value", is_flag ? "a flag with a value" : "no value at the end", BASE " --%",
            is_flag ? STRING("%s=maybe", name) : name);
    if (is_flag || (strcmp(argument, "N") && !strchr(argument, '|'))) return;
    for (int i = 0; i < COUNT(no_values_of_it); i++)
        refused(name, "no number, or no choice", STRING(i % 2 ? BASE " --%s=%%" : BASE " --%s %%", name),
                no_values_of_it[i]);
    refused(name, "100,000 characters", STRING(BASE " --%s %%", name), lengthy);
}

/* Commands with the line that they must end with; % is each of the values in turn. */
typedef struct { const char *want, *what; Text *command; int commands; Text *value; int values; } Refusal;
#define LIST(...) (Text[]){ __VA_ARGS__ }, COUNT(((Text[]){ __VA_ARGS__ }))

static void refuse_all(const Refusal *r, int count) {
    for (; count--; r++)
        for (int n = 0; n < r->commands * r->values; n++) {
            const char *command = r->command[n % r->commands], *value = r->value[n / r->commands];
            if (!strchr(command, '%')) command = STRING("%s %s", command, value);      /* values are commands, too */
            refused(r->want, r->what, command, value);
        }
}

static const Refusal refusals[] = {
    { "", "a stray word", LIST(BASE " %"), LIST(
        "word", "-X", "-", "--", "--=3", "", "steps=3", "\xe2\x80\x94steps", "-5", "-steps", "---steps", "/",
        "text.txt", "\x1b[31m", "\n", "a\nb", "--\x7f", "= 3", "?") },
    { "", "a path that leads to nothing of the kind",
        LIST(BASE " --data %", BASE " --val-data %", BASE " --init %", BASE " --eval %", BASE " --sample %"), LIST(
        "\x1b[31mred", "a\nb", "a\rb", "\x7f", "\302\2332J", "\xff\xfe", "%s%n%d", "[", "no*", "??", "/", ".", "..",
        "dir/", "text.txt/x", "nowhere/x", "~") },
    { "", "options that do not go together, or nothing to work on", LIST("--threads 1"), LIST(
        "--eval run --sample run --data text.txt", "--eval run --data text.txt --resume", "--sample run --init run",
        "--resume", "--resume --data nowhere", "--eval run --val-fraction 0", "--eval run --task lambada",
        "--dry-run --resume", "--layers 1", "--eval run --data nowhere", "--out run --data text.txt",
        "--eval run --val-data nowhere --data text.txt") },
    { "", "nothing of the kind", LIST("--resume --out % --threads 1", "--eval % --data text.txt", "--sample %",
        "--data text.txt --init %"), LIST("nowhere", "dir", "text.txt", "run/log.csv", "good16.bin", "/dev/null") },
    { "", "files of two kinds, or none", LIST(BASE), LIST(
        "--data text.txt --val-data good16.bin", "--data good16.bin --val-data text.txt", "--data good*.bin",
        "--data good32.bin --val-data text.txt", "--data good16.bin --vocab 99", "--data good32.bin --vocab 2",
        "--data none*.bin", "--data good16.bin --vocab 100 --val-data none*", "--data good16.bin --vocab 1",
        "--data directory --vocab 100") },
};

static void malformed_options(void) {
    int listed = 0;
    lengthy = memset(calloc(1, 100001), 'A', 100000);
    command_line = "--help";
    test_in_child(execute, program, error, sizeof error, &status);
    char *help = strdup(error);
    for (const char *line = help; (line = strstr(line, "\n  --")); listed++) damaged_option(line += strlen("\n  --"));
    EXPECT(listed > 35, "%d options in --help, want all of them", listed);
    free(help);
    refuse_all(refusals, COUNT(refusals));
    refuse_all(&(Refusal){ "A: ", "a path of 100,000 bytes", LIST(BASE " --data %", BASE " --val-data %",
               BASE " --init %", BASE " --eval %", BASE " --out %"), LIST(lengthy) }, 1);
    refused("", "a name of 303 bytes", BASE " --out %", STRING("new%0300d", 0));
    free(lengthy);
}

/* ---- Token shards */

/* The blob = a sound one: ids below VOCAB in 2 or 4 bytes. */
static void blob_shard(int width, int count) {
    const uint32_t head[3] = { width == 2 ? 20240520 : 20240801, 1, (uint32_t)count };
    memset(blob.bytes, 0, sizeof blob.bytes);
    memcpy(blob.bytes, head, sizeof head);
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
    refused("", STRING("%s: %s", path, what), reader, "");
}

static void malformed_shards(void) {
    static Blob sound;
    make_dir("set");
    for (int width = 2; width <= 4; width += 2) {
        blob_shard(width, SHARD_TOKENS);
        sound = blob;
        for (int i = 0; i < 3; i++) save(STRING("set/%d.bin", i), &sound);
        damage_everywhere(&sound, refuse_shard, 96, -1, 1024);
        for (int i = 0; i < SHARD_TOKENS; i += 3) {
            const uint32_t id = VOCAB + (uint32_t)draw(width == 2 ? 65536 - VOCAB : INT32_MAX);
            replace(&sound, (size_t)(1024 + width * i), (size_t)width, &id, (size_t)width);
            refuse_shard(STRING("token %d has id %u", i, id));
        }
    }
    remove_tree("set");
    refuse_no_file("broken.bin", "", shard_readers, COUNT(shard_readers));
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

static int part;                /* the one that is damaged */

static void refuse_checkpoint(const char *want, const char *what) {
    static Text names[] = { "broken", "broken/", "broken/" STEP, "broken/" STEP "/model.safetensors" };
    const char *reader = checkpoint_readers[part <= MODEL ? cases % COUNT(checkpoint_readers) : 3];
    refused(want, STRING("%s: %s", parts[part].name, what), reader, ANY(names));
}

/* The blob in the place of the part; the line must name the file. */
static void refuse_part(const char *what) {
    save(parts[part].name, &blob);
    refuse_checkpoint(strrchr(parts[part].name, '/') + 1, what);
}

/* Members of JSON, each by another name and with values of another type, too small and too large. */
static const struct { int part; const char *key; } members[] = {
    { CONFIG, "n_layer" }, { CONFIG, "n_head" }, { CONFIG, "n_embd" }, { CONFIG, "n_positions" },
    { CONFIG, "vocab_size" }, { STATE, "step" }, { STATE, "sequences_seen" }, { STATE, "tokens" },
    { STATE, "val_step" }, { STATE, "optimizer_step" }, { STATE, "nonfinite" }, { STATE, "spikes" },
};
static Text wrong_values[] = { "null", "`\\u009b2J`", "-5", "1.5", "1e99", "[]", "0x10" };

/* The first `old` of a part becomes `new`, of as many bytes in a safetensors file. */
static const struct { int part; const char *old, *new; } flaws[] = {
    { CONFIG, "`n_positions`: 8", "`n_positions`: 4611686018427387904" }, { CONFIG, "`n_embd`: 16", "`n_embd`: 24" },
    { CONFIG, "}", "}}" }, { MODEL, "`dtype`", "`dtyqe`" },
    { MODEL, "`shape`:[8,16]", "`shape`:[8,-6]" }, { MODEL, "`__metadata__`:{`", "`__metadata__`:[`" },
    { OPTIMIZER, "exp_avg.", "exp_avh." }, { OPTIMIZER, "`data_offsets`:[0,", "`data_offsets`:[4," },
    { STATE, "`step`: 2", "`step`: 3" }, { STATE, "`optimizer_step`: 2", "`optimizer_step`: 3" },
    { STATE, "`window_loss`: [", "`window_loss`: [1, " },
    { STATE, "`train`: `", "`train`: `a" }, { STATE, "`settings`", "`setting`" },
    { STATE, "`settings`: ", "`settings`: 5, `x`: " }, { STATE, "`settings`: ", "`settings`: [], `x`: " },
    { STATE, "`batch`: `2`", "`batch`: 2" }, { STATE, "`batch`: `2`", "`batch`: `two`" },
    { STATE, "`layers`: `1`", "`layers`: `2`" }, { STATE, "`channels`: `16`", "`channels`: `32`" },
    { STATE, "`heads`: `2`", "`heads`: `3`" }, { STATE, "`steps`: `4`", "`steps`: `-1`" },
    { STATE, "`lr`: `", "`lr`: `nan" }, { STATE, "`clip`: `", "`clip`: `\\u0000" },
    { STATE, "`attention`: `", "`attention`: `x" }, { STATE, "`schedule`: `", "`schedule`: `\\u001b[1m" },
    { STATE, "`data`: `", "`data`: `nowhere/" }, { STATE, "`seed`: `", "`seed`: `-" },
};

/* The text from `old` up to one of the characters of until becomes new; NULL: old alone. */
static void flawed_part(const char *old, const char *until, const char *new) {
    const Blob *sound = parts[part].sound;
    const unsigned char *at = memmem(sound->bytes, sound->size, old, strlen(old));
    REQUIRE(at, "%s has no %s", parts[part].name, old);
    const size_t length = strlen(old) + (until ? strcspn((const char *)at + strlen(old), until) : 0);
    replace(sound, (size_t)(at - sound->bytes), length, new, strlen(new));
    save(parts[part].name, &blob);
    refuse_checkpoint("", STRING("%s is %s", old, new));
}

static void damaged_part(void) {
    const Blob *sound = parts[part].sound;
    const int is_json = part == CONFIG || part == STATE, size = (int)sound->size;
    damage_everywhere(sound, refuse_part, is_json ? 0 : 64, is_json ? 0 : 8,
                      is_json ? size : 8 + (sound->bytes[0] | sound->bytes[1] << 8));
    for (int i = 0; i < COUNT(members) * (COUNT(wrong_values) + 1); i++) {
        const char *key = members[i % COUNT(members)].key, *colon = STRING("\"%s\": ", key);
        const int value = i / COUNT(members) - 1;
        if (members[i % COUNT(members)].part != part) continue;
        if (value < 0) flawed_part(colon, NULL, STRING("\"%s_\": ", key));
        else           flawed_part(colon, ",\n}", STRING("%s%s", colon, quoted(wrong_values[value])));
    }
    for (int i = 0; i < COUNT(flaws); i++)
        if (flaws[i].part == part) flawed_part(quoted(flaws[i].old), NULL, quoted(flaws[i].new));
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
    for (part = CONFIG; part < NO_PART; part++) {
        restore_parts();
        damaged_part();
    }
    for (int i = 0; i < 4 * NO_PART * COUNT(no_file_kinds); i++) {
        part = i / 4 % NO_PART;
        restore_parts();
        refuse_checkpoint("broken", no_file(parts[part].name, i / 4 / NO_PART));
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
        put("broken.txt", foreign[i / 4], sizeof foreign[0]);
        refused("broken.txt", STRING("of another program, number %d", i / 4), text_readers[i % 4], "");
    }
    refuse_no_file("broken.txt", "broken.txt", text_readers, COUNT(text_readers));
    for (int count = 1; count < 20; count++) {          /* one byte; a validation part of at most one */
        put_text("broken.txt", STRING("%0*d", count, 7));
        refused(count == 1 ? "broken.txt" : "too few", STRING("%d bytes", count), count == 1 ? text_readers[1]
                : STRING("%s --val-fraction %.6f", text_readers[0], 0.95 / count), "");
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
        refused("", STRING("a floor of %s", floors[i]), text_readers[1], "");
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
    for (int i = 0; i < COUNT(parts); i++) load(parts[i].sound, STRING("run%s", parts[i].name + strlen("broken")));
}

static void all_cases(void) {
    printf("     %d cases, %d of them run, seed %llu\n", cases, cases_run, (unsigned long long)seed);
    EXPECT(cases >= 2000, "%d cases, want 2,000", cases);
    EXPECT(cases_run >= cases / stride, "%d cases run of %d, every %d", cases_run, cases, stride);
}

int main(void) {
    const char *other_seed = getenv("TEST_SEED"), *other_stride = getenv("MALFORMED_STRIDE");
    char *home = getcwd(NULL, 0);
    program = realpath(built("train_gpt"), NULL);
    if (!program || !home) fail("no program to test: want BUILD=FOLDER with train_gpt in it");
    if (other_seed) seed = strtoull(other_seed, NULL, 10);
    if (other_stride && atoi(other_stride) > 1) stride = atoi(other_stride);
    phase = (int)(time(NULL) % stride);
    setenv("OMP_NUM_THREADS", "1", 1);
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
    free(home);
    free(program);
    return test_close();
}
