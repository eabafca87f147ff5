/* test_choices.c - Choices made by measurement: their text, which of them count, the cache file, and ranks. */
#include <dirent.h>
#include <sys/stat.h>
#include "../../llmc/train/choice_cache.h"
#include "../ranks/ranks.h"
#include "../scratch.h"

/* Everything that was chosen is replaced by what the lines say. */
static void replace(const char *lines) {
    EXPECT(choices_adopt(STRING("%s\n%s", choices_machine(), lines), CHOICES_REPLACE), "%s", lines);
}

static void test_choices_text(void) {
    EXPECT(choices_find("a 1x2") == -1 && !choices_added(), "none yet");
    char *none = choices_text(0);
    EXPECT(!*none, "no choice, no text: %s", none);
    free(none);
    choices_add("a 1x2", 3);
    choices_add("b", 100);
    char *text = choices_text(1);
    EXPECT(choices_added() == 2 && !strcmp(text, STRING("%s\na 1x2: 3\nb: 100\n", choices_machine())), "%s", text);
    int version = choices_version;
    replace("c: 5\n");
    EXPECT(choices_version == version + 1 && choices_find("a 1x2") == -1 && choices_find("c") == 5, "replaced");
    EXPECT(choices_adopt(text, CHOICES_USED) && choices_find("a 1x2") == 3 && choices_find("b") == 100
           && choices_find("c") == 5, "added");
    free(text);
}

static void test_choices_used(void) {
    replace("used: 1\n");
    EXPECT(choices_adopt(STRING("%s\nknown: 2\nused: 9\n", choices_machine()), CHOICES_KNOWN), "adopted");
    char *text = choices_text(1);
    EXPECT(choices_find("used") == 1, "one that is known does not replace one that is used");
    EXPECT(choices_find("known") == -1 && !strstr(text, "known"), "outside training only used ones count");
    free(text);
    choices_measuring = 1;
    EXPECT(choices_find("known") == 2, "training uses it");
    choices_measuring = 0;
    text = choices_text(1);
    EXPECT(choices_find("known") == 2 && strstr(text, "known: 2\n"), "and from then on all do: %s", text);
    free(text);
    EXPECT(choices_adopt(STRING("%s\nused: 4\n", choices_machine()), CHOICES_USED) && choices_find("used") == 4,
           "a checkpoint's choice rules");
}

static void test_choices_malformed(void) {
    static const char *const lines[] = {
        "x", "x: 1", "x 1\n", ": 1\n", "x: \n", "x: -1\n", "x: 1000\n", "x: 1 \n", "x: 1\ny\n", "x: 1\n\n", "x: 0x1\n",
        "x: 1\r\n", "\n", "x\n: 1\n",
    };
    replace("x: 7\n");
    for (int i = 0; i < COUNT(lines); i++)
        EXPECT(!choices_adopt(STRING("%s\n%s", choices_machine(), lines[i]), CHOICES_REPLACE), "%s", lines[i]);
    char name[300];
    memset(name, 'n', sizeof name);
    EXPECT(!choices_adopt(STRING("%s\n%.*s: 1\n", choices_machine(), 299, name), CHOICES_REPLACE), "a long name");
    EXPECT(!choices_adopt("", CHOICES_REPLACE) && !choices_adopt("x: 1\n", CHOICES_REPLACE)
           && !choices_adopt(STRING("%s other\nx: 1\n", choices_machine()), CHOICES_REPLACE)
           && !choices_adopt(choices_machine(), CHOICES_REPLACE), "another machine");
    EXPECT(choices_find("x") == 7, "nothing was adopted");
}

/* ---- The cache file */

static const char *cache_file(void) {
    DIR *dir = opendir(IN_SCRATCH("cache/train_gpt"));
    const char *path = "";
    for (struct dirent *entry; dir && (entry = readdir(dir)); )
        if (*entry->d_name != '.') {
            EXPECT(!*path, "a second file: %s", entry->d_name);
            path = IN_SCRATCH("cache/train_gpt/%s", entry->d_name);
        }
    if (dir) closedir(dir);
    return path;
}

/* The number that is stored for a name; -1: none. */
static int cached(const char *name) {
    replace("other: 1\n");
    choice_cache_load();
    choices_measuring = 1;
    int choice = choices_find(name);
    choices_measuring = 0;
    return choice;
}

static void test_choices_cache(void) {
    setenv("XDG_CACHE_HOME", IN_SCRATCH("cache"), 1);
    choice_cache_load();
    EXPECT(!file_exists(IN_SCRATCH("cache")), "a load makes nothing");
    choices_add("a", 1);
    choice_cache_save();
    EXPECT(cached("a") == 1, "stored in %s", cache_file());
    choices_add("b", 2);
    choice_cache_save();                    /* "other" and "b" are in memory, "a" in the file */
    EXPECT(cached("a") == 1 && cached("b") == 2, "the choices of both");

    static const char *const damage[] = { "", "x", "train_gpt choices 2: another\na: 5\n", "\xff\xff" };
    for (int i = 0; i < COUNT(damage); i++) {
        put_text(cache_file(), damage[i]);
        EXPECT(cached("a") == -1, "%s", damage[i]);
        choices_add("a", 3);
        choice_cache_save();
        EXPECT(cached("a") == 3, "a damaged file is replaced");
    }
    const char *path = cache_file();
    struct stat info;
    stat(path, &info);
    truncate(path, info.st_size - 2);
    EXPECT(cached("a") == -1, "cut short");
    unlink(path);
    mkdir(path, 0777);
    EXPECT(cached("a") == -1, "a directory");
    choices_add("a", 4);
    choice_cache_save();
    EXPECT(!strcmp(cache_file(), path), "which stays");
    rmdir(path);

    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", IN_SCRATCH("home"), 1);
    choice_cache_save();
    EXPECT(file_is_dir(IN_SCRATCH("home/.cache/train_gpt")), "a relative XDG_CACHE_HOME does not count");
    put_text(IN_SCRATCH("file"), "");
    setenv("XDG_CACHE_HOME", IN_SCRATCH("file"), 1);
    choice_cache_save();
    setenv("XDG_CACHE_HOME", "/proc/nowhere", 1);
    choice_cache_save();
    EXPECT(cached("a") == -1, "a directory that cannot be made");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    choice_cache_save();
    EXPECT(cached("a") == -1, "no directory");
}

/* Each of eight processes adds 20 choices and saves after each: the file is complete whenever it is read. */
static void test_choices_cache_of_many(void) {
    enum { PROCESSES = 8, SAVES = 20 };
    setenv("XDG_CACHE_HOME", IN_SCRATCH("cache"), 1);
    choices_add("first", 1);
    choice_cache_save();
    fflush(NULL);
    for (int p = 0; p < PROCESSES; p++)
        if (fork() == 0) {
            int missing = 0;
            for (int i = 0; i < SAVES; i++) {
                choices_add(STRING("%d of %d", i, p), i);
                choice_cache_save();
                missing += cached("first") != 1;
            }
            _exit(missing);
        }
    for (int p = 0; p < PROCESSES; p++) {
        int status;
        wait(&status);
        EXPECT(status == 0, "a process read an incomplete file");
    }
    EXPECT(cached("first") == 1, "the file %s", cache_file());
    int last = 0;
    for (int p = 0; p < PROCESSES; p++) last += cached(STRING("%d of %d", SAVES - 1, p)) == SAVES - 1;
    EXPECT(last >= 1, "the last that saved has stored all of its choices");
}

/* ---- Ranks */

static void agree(void *unused) {
    (void)unused;
    choices_add("gemm", 10 + comm_rank);
    if (comm_rank) choices_add("of this rank", 1);
    for (int i = 0; i < 50 && !comm_rank; i++) choices_add(STRING("a shape of rank 0, number %d", i), i);
    choices_agree();
    EXPECT(choices_find("gemm") == 10 && choices_find("a shape of rank 0, number 49") == 49, "rank 0's choices");
    EXPECT(choices_find("of this rank") == -1 && choices_version == (comm_rank > 0), "and no others");
}

static void test_choices_of_ranks(void) {
    const int gpus = ranks_devices(), size = !strcmp(backend_name, "cpu") ? 3 : gpus < 3 ? gpus : 3;
    if (size < 2) { test_skip_reason = "fewer than two GPUs"; return; }
    ranks_run(size, agree, NULL);
    for (int r = 0; r < size; r++) EXPECT(ranks_status[r] == 0, "rank %d: status %#x", r, ranks_status[r]);
}

int main(void) {
    scratch_open();
    RUN(test_choices_of_ranks);         /* first: the ranks open the device */
    test_device_open((DeviceOptions){ .threads = 1 });
    RUN(test_choices_text);
    RUN(test_choices_used);
    RUN(test_choices_malformed);
    RUN(test_choices_cache);
    RUN(test_choices_cache_of_many);
    return test_close();
}
