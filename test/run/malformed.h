/* malformed.h - Runs the real program on inputs that are malformed for sure. A case breaks something, says what,
   and lays out the words of the command; refused() then wants exit code 1, one line on stderr, and every file that was
   there as it was. What is drawn follows from the seed, the family and the number of the draw. */
#ifndef TEST_MALFORMED_H
#define TEST_MALFORMED_H
#include "../scratch.h"
#include <ctype.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>

enum { LONGEST_LINE = 2200, LIMIT_S = 20, MOST_WORDS = 80, MOST_CASES = 8192, SHOWN = 12 };
#define ANY(array)   ((array)[draw(COUNT(array))])

static char    *program;
static uint64_t seed = 1;
static int      stride = 1, phase;      /* case n runs if n % stride == phase */

/* ---- Random choices, and text of one case */

static const char *family = "";
static uint32_t    family_number;
static uint64_t    drawn, seen[MOST_CASES];
static int         family_cases, family_failures, cases, cases_run;

static int draw(int64_t below) {
    return (int)random_below(seed, RANDOM_TEST, family_number, drawn++, (uint64_t)below);
}

/* A text that lives until the case is over. */
static char *texts[64];
static int   text_count;

static char *text_keep(char *text) {
    if (text_count == COUNT(texts)) fail("too many texts in one case");
    return texts[text_count++] = text;
}

static char *format(const char *pattern, ...) __attribute__((format(printf, 1, 2)));
static char *format(const char *pattern, ...) {
    va_list arguments;
    char *text;
    va_start(arguments, pattern);
    if (vasprintf(&text, pattern, arguments) < 0) fail("out of memory");
    va_end(arguments);
    return text_keep(text);
}

/* ---- The command */

static char *word_list[MOST_WORDS + 2];
static int   word_count;

static void word(const char *text) {
    if (word_count == MOST_WORDS) fail("too many words in one case");
    word_list[++word_count] = strdup(text);      /* word 0 is the program */
}

/* Words with spaces between. */
static void words(const char *text) {
    for (text += strspn(text, " "); *text; text += strspn(text, " ")) {
        size_t length = strcspn(text, " ");
        char *one = strndup(text, length);
        word(one);
        free(one);
        text += length;
    }
}

static void clear_case(void) {
    for (int i = 1; i <= word_count; i++) free(word_list[i]);
    memset(word_list, 0, sizeof word_list);
    word_count = 0;
    while (text_count) free(texts[--text_count]);
}

static const char *const base[][2] = {
    { "data", "text.txt" }, { "layers", "1" }, { "heads", "2" }, { "channels", "16" }, { "context", "8" },
    { "batch", "2" }, { "steps", "4" }, { "save-every", "2" }, { "warmup", "1" }, { "threads", "1" },
};

/* The smallest run, without the options (" data steps ") that the case brings itself. */
static void base_without(const char *left_out) {
    for (int i = 0; i < COUNT(base); i++)
        if (!strstr(left_out, format(" %s ", base[i][0]))) words(format("--%s %s", base[i][0], base[i][1]));
}

typedef struct { int status; char out[65536], error[16384]; size_t out_bytes, error_bytes; } Ending;
static Ending ending;
static int    capture[3];      /* files in memory for stdout and stderr */

/* alarm() outlives the exec: a child that hangs ends by its signal. */
static void run_program(void) {
    word_list[0] = program;
    for (int i = 1; i <= 2; i++)
        if (ftruncate(capture[i], 0) || lseek(capture[i], 0, SEEK_SET)) fail("cannot empty the capture of a child");
    pid_t child = vfork();
    if (child == 0) {
        dup2(capture[0], 0);
        dup2(capture[1], 1);
        dup2(capture[2], 2);
        alarm(LIMIT_S);
        execv(program, word_list);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &ending.status, 0) != child) fail("cannot start %s", program);
    ssize_t out = pread(capture[1], ending.out, sizeof ending.out - 1, 0);
    ssize_t error = pread(capture[2], ending.error, sizeof ending.error - 1, 0);
    ending.out[ending.out_bytes = out > 0 ? (size_t)out : 0] = 0;
    ending.error[ending.error_bytes = error > 0 ? (size_t)error : 0] = 0;
    while (!strncmp(ending.error, "train_gpt: warning: ", 20) || !strncmp(ending.error, "seed ", 5) ||
           !strncmp(ending.error, "checkpoint ", 11)) {         /* no errors */
        size_t length = strcspn(ending.error, "\n") + 1;
        memmove(ending.error, ending.error + length, (ending.error_bytes -= length) + 1);
    }
}

/* ---- The files: all that lies in the scratch directory but "new", the --out of runs that should not get far */

static uint64_t mix(uint64_t hash, const void *bytes, size_t size) {
    const unsigned char *from = bytes;
    for (; size; from += size < 8 ? size : 8, size -= size < 8 ? size : 8) {
        uint64_t part = size;
        memcpy(&part, from, size < 8 ? size : 8);
        hash = (hash ^ part) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash;
}

/* A sum over the files, whatever their order. Time and number of a file are in it: written anew is not untouched. */
static uint64_t tree_sum;

static int add_file(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)place;
    if (!strncmp(path, "./new", 5)) return 0;
    uint64_t hash = mix(1, path, strlen(path)) + (uint64_t)kind;
    if (S_ISREG(info->st_mode)) {
        hash = mix(hash, &info->st_mtim, sizeof info->st_mtim);
        hash = mix(hash, &info->st_ino, sizeof info->st_ino);
        hash = mix(hash, &info->st_size, sizeof info->st_size);
        FileMap map = file_map(path);
        hash = mix(hash, map.bytes, (size_t)map.size);
        file_unmap(map);
    }
    tree_sum += hash * hash | 1;
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
    if (access(path, F_OK)) unlink(path);      /* a link that leads nowhere, or nothing */
    else nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void make_dir(const char *path) {
    if (mkdir(path, 0777)) fail("%s: cannot prepare a test", path);
}

/* ---- The outcome */

/* Control characters: of ASCII, and U+0080 to U+009F, which a terminal obeys, too. */
static int has_controls(const char *text, size_t size) {
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)text[i], next = (unsigned char)text[i + 1];
        if (c < 32 || c == 127 || (c == 0xc2 && next >= 0x80 && next < 0xa0)) return 1;
    }
    return 0;
}

static const char *complaint(const char *want) {
    const char *error = ending.error, *newline = strchr(error, '\n');
    size_t size = ending.error_bytes;
    if (strstr(error, "Sanitizer") || strstr(error, "runtime error:")) return "a sanitizer's report";
    if (WIFSIGNALED(ending.status))
        return WTERMSIG(ending.status) == SIGALRM ? "took too long" : format("ended by signal %d",
            WTERMSIG(ending.status));
    if (WEXITSTATUS(ending.status) != 1) return format("exit code %d, want 1", WEXITSTATUS(ending.status));
    if (size == 0) return "nothing on stderr";
    if (!newline || newline != error + size - 1) return "not one line on stderr";
    if (size > LONGEST_LINE) return format("a line of %zu bytes, want at most %d", size, LONGEST_LINE);
    if (strncmp(error, "train_gpt: ", 11)) return "the line does not begin with \"train_gpt: \"";
    if (size < 11 + 12) return "the line says nothing";
    if (has_controls(error, size - 1)) return "control characters in the line";
    if (want && !strstr(error, want)) return format("the line does not say \"%s\"", want);
    return NULL;
}

static void show_case(const char *what, const char *why) {
    test_errors++;
    if (++family_failures > SHOWN) return;
    printf("  case %d, %s: %s: %s\n    train_gpt", cases, family, what, why);
    for (int i = 1; i <= word_count; i++) {
        size_t length = strlen(word_list[i]);
        printf(" '");
        for (size_t c = 0; c < length && c < 120; c++)
            printf(isprint((unsigned char)word_list[i][c]) ? "%c" : "\\x%02x", (unsigned char)word_list[i][c]);
        printf(length > 120 ? "...' (%zu bytes)" : "'", length);
    }
    printf("\n    status %d, stderr: %.600s%s", ending.status, ending.error, strchr(ending.error, '\n') ? "" : "\n");
    if (family_failures == SHOWN) printf("  ... the other failures of this family are not shown\n");
}

/* The command so far must be refused. want: a part of the line, or NULL. A case that was drawn twice counts once: what
   describes the flaw in full, the words tell the rest. */
static void refused(const char *want, const char *what) {
    uint64_t hash = mix(2, what, strlen(what));
    for (int i = 1; i <= word_count; i++) hash = mix(hash, word_list[i], strlen(word_list[i]));
    int known = 0;
    for (int i = 0; i < cases && !known; i++) known = seen[i] == hash;
    if (!known && cases < MOST_CASES) {
        seen[cases++] = hash;
        family_cases++;
        if (cases % stride == phase) {
            cases_run++;
            uint64_t before = tree_hash();
            run_program();
            const char *why = complaint(want);
            if (why) show_case(what, why);
            if (tree_hash() != before) show_case(what, "files that were there have changed, or new ones appeared");
            remove_tree("new");
        }
    }
    clear_case();
}

/* The command so far must do its work: what follows differs from it in the flaw alone. */
static void accepted(const char *what) {
    run_program();
    if (ending.status || ending.error_bytes) show_case(what, "a sound input is refused");
    clear_case();
}

static void begin_family(const char *name) {
    family = name;
    family_number++;
    drawn = 0;
    family_cases = family_failures = 0;
}

static void end_family(int least) {
    printf("     %s: %d cases\n", family, family_cases);
    EXPECT(family_cases >= least, "%s: %d different cases, want %d", family, family_cases, least);
}

/* ---- What the cases break: a text, shards, and two runs of the program itself */

typedef struct { unsigned char bytes[1 << 18]; size_t size; } Blob;
static Blob blob, config_json, model_file, optimizer_file, state_json, log_csv;
#define STEP "step-00000002"

static void load(Blob *to, const char *path) {
    FileMap map = file_map(path);
    if ((size_t)map.size >= sizeof to->bytes) fail("%s: too large for this test", path);
    memcpy(to->bytes, map.bytes, to->size = (size_t)map.size);
    to->bytes[to->size] = 0;
    file_unmap(map);
}

static void save(const char *path, const Blob *from) { put(path, from->bytes, from->size); }

static void blob_text(const char *text) { memcpy(blob.bytes, text, (blob.size = strlen(text)) + 1); }

enum { SHARD_TOKENS = 64, VOCAB = 100 };

static void word32(unsigned char *to, uint32_t value) {
    for (int i = 0; i < 4; i++) to[i] = (unsigned char)(value >> (8 * i));
}

static void blob_token(int width, int place, uint32_t id) {
    for (int i = 0; i < width; i++) blob.bytes[1024 + width * place + i] = (unsigned char)(id >> (8 * i));
}

/* A sound shard: ids below VOCAB in 2 or 4 bytes. */
static void blob_shard(int width, int count) {
    memset(blob.bytes, 0, 1024);
    word32(blob.bytes, width == 2 ? 20240520 : 20240801);
    word32(blob.bytes + 4, 1);
    word32(blob.bytes + 8, (uint32_t)count);
    for (int i = 0; i < count; i++) blob_token(width, i, (uint32_t)(i * 37 % VOCAB));
    blob.size = 1024 + (size_t)(width * count);
}

static void write_sound_inputs(void) {
    char text[601];
    for (int i = 0; i < 600; i++) text[i] = "the cat sat on a mat, and then it ran.\n"[i * 7 % 39];
    text[600] = 0;
    put_text("text.txt", text);
    blob_shard(2, SHARD_TOKENS), save("good16.bin", &blob);
    blob_shard(4, SHARD_TOKENS), save("good32.bin", &blob);
    make_dir("dir");
    put_text("dir/note.md", "a note\n");
}

static void sound_inputs(void) {
    begin_family("sound inputs");
    base_without(""), words("--out run");
    accepted("a run on a text");
    base_without(" data "), words("--data good16.bin --val-data good32.bin --vocab 100 --out ids");
    accepted("a run on shards of both widths");
    remove_tree("run/step-00000004");
    load(&config_json,    "run/" STEP "/config.json");
    load(&model_file,     "run/" STEP "/model.safetensors");
    load(&optimizer_file, "run/" STEP "/optimizer.safetensors");
    load(&state_json,     "run/" STEP "/state.json");
    load(&log_csv,        "run/log.csv");
}

/* ---- The options, as --help lists them, with the ranges of their error messages */

typedef struct { char name[64], argument[32], *help; double least, most; int has_range; } Listed;
static Listed listed[100];
static int    listed_count;

static int is_listed(const char *name) {
    for (int i = 0; i < listed_count; i++) if (!strcmp(listed[i].name, name)) return 1;
    return 0;
}

static int is_number(const Listed *o) { return !strcmp(o->argument, "N") || !strcmp(o->argument, "N|auto"); }

static void read_help(void) {
    word("--help");
    run_program();
    char *help = strdup(ending.out), *rest = help;
    clear_case();
    for (char *line; (line = strsep(&rest, "\n")); ) {
        Listed *o = &listed[listed_count];
        int end = 0, starts = !strncmp(line, "  --", 4) && listed_count < COUNT(listed);
        if (starts && sscanf(line, "  --%63[a-z0-9-]%n", o->name, &end) == 1) {
            if (line[end] && line[end + 1] != ' ') sscanf(line + end, " %31[A-Za-z0-9|]", o->argument);
            o->help = strdup(line + end);
            listed_count++;
        } else if (listed_count && line[0] == ' ' && line[1] == ' ') {      /* the help of one option goes on */
            char **before = &o[-1].help, *joined = format_string("%s %s", *before, line + strspn(line, " "));
            free(*before);
            *before = joined;
        }
    }
    free(help);
    for (Listed *o = listed; o < listed + listed_count; o++) {
        if (!is_number(o)) continue;
        word(format("--%s=x", o->name));
        run_program();
        const char *want = strstr(ending.error, ": want ");
        o->has_range = want && sscanf(want, ": want %*[^,], %lf .. %lf", &o->least, &o->most) == 2;
        clear_case();
    }
    EXPECT(listed_count > 35, "%d options in --help, want all of them", listed_count);
    EXPECT(is_listed("data") && is_listed("top-k") && is_listed("resume"),
        "--help does not list data, top-k and resume");
}

/* A value that the option takes. */
static const char *good_value(const Listed *o) {
    if (o->has_range) return format("%g", o->least);
    if (!strcmp(o->name, "model")) return "d2";
    return strchr(o->argument, '|') ? format("%.*s", (int)strcspn(o->argument, "|"), o->argument) : "text.txt";
}

/* ---- Files of other programs, by their first bytes */

typedef struct { const char *name, *bytes; int size; } Foreign;
#define FOREIGN(name, bytes) { name, bytes, (int)sizeof bytes - 1 }
static const Foreign foreign[] = {
    FOREIGN("pickle 2", "\x80\x02}q\0X\5\0\0\0model"), FOREIGN("pickle 4", "\x80\x04\x95\x1b\0\0\0\0\0\0\0}\x94"),
    FOREIGN("PyTorch zip", "PK\3\4\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\x12\0archive/data.pkl"),
    FOREIGN("zip", "PK\3\4\x14\0\0\0\x08\0\0\0!\0\0\0\0\0\0\0\0\0\0\0\0\0\x08\0\0\0book.txt"),
    FOREIGN("gzip", "\x1f\x8b\x08\x08\0\0\0\0\0\3book.txt\0"), FOREIGN("GGUF", "GGUF\3\0\0\0\x22\0\0\0\0\0\0\0"),
    FOREIGN("npy", "\x93NUMPY\1\0v\0{'descr': '<u2', 'fortran_order': False"),
    FOREIGN("llm.c model", "\xc6\xd7\x34\x01\3\0\0\0\0\4\0\0\x51\xc4\0\0"),
    FOREIGN("safetensors", "\x10\0\0\0\0\0\0\0{\"a\":{\"dtype\":1}"),
    FOREIGN("xz", "\xfd" "7zXZ\0\0\4\xe6\xd6\xb4\x46"), FOREIGN("zstd", "\x28\xb5\x2f\xfd\x04\x58\x01\0"),
    FOREIGN("bzip2", "BZh91AY&SY\x12\x34\x56\x78"), FOREIGN("PDF", "%PDF-1.7\n%\xe2\xe3"),
    FOREIGN("Parquet", "PAR1\x15\x04\x15\x10"), FOREIGN("Arrow", "ARROW1\0\0\xff\xff"),
    FOREIGN("git-lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:0"),
};

static void blob_noise(int size) {
    for (int i = 0; i < size; i++) blob.bytes[i] = (unsigned char)draw(256);
    blob.size = (size_t)size;
}

static const char *blob_foreign(void) {
    const Foreign *f = &ANY(foreign);
    blob_noise(64 + draw(2000));
    memcpy(blob.bytes, f->bytes, (size_t)f->size);
    return f->name;
}

/* What may stand where a file should be. Returns what it is. */
static const char *no_file(const char *path) {
    static const char *const kinds[] = {
        "missing", "empty", "a directory", "a link to nowhere", "a link to itself", "a pipe", "a device",
    };
    int kind = draw(COUNT(kinds)), bad = 0;
    if (kind == 1) put_text(path, "");
    if (kind == 2) make_dir(path);
    if (kind == 3) bad = symlink("nowhere", path);
    if (kind == 4) bad = symlink(strrchr(path, '/') ? strrchr(path, '/') + 1 : path, path);
    if (kind == 5) bad = mkfifo(path, 0600);
    if (kind == 6) bad = symlink("/dev/null", path);
    if (bad) fail("%s: cannot prepare a test", path);
    return kinds[kind];
}

#endif
