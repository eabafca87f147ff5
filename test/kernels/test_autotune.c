/* test_autotune.c - Choices made by measurement: their text, which of them count, the cache file, and ranks. */
#include <dirent.h>
#include <sys/stat.h>
#include "../../kernels/autotune.h"
#include "../../llmc/train/autotune_cache.h"
#include "../ranks/ranks.h"
#include "../scratch.h"

static int adopts(const char *lines) { return autotune_adopt(STRING("%s\n%s", autotune_machine(), lines)); }

TEST(test_autotune_text) {
    EXPECT(autotune_find("a 1x2") == -1 && !*autotune_text(), "none yet, no text");
    autotune_add("a 1x2", 3);
    autotune_add("b", 100);
    const char *text = STRING("%s\na 1x2: 3\nb: 100\n", autotune_machine());
    EXPECT(!strcmp(autotune_text(), text), "%s", autotune_text());
    const int version = autotune_version();
    EXPECT(adopts("c: 5\n") && autotune_version() != version, "adopted, and to be looked up again");
    EXPECT(autotune_find("a 1x2") == -1 && autotune_find("c") == 5, "replaced");
    EXPECT(autotune_adopt(text) && autotune_find("a 1x2") == 3 && autotune_find("b") == 100, "and back");
    EXPECT(adopts("") && !*autotune_text(), "a text without a choice");
}

TEST(test_autotune_cached) {
    adopts("made: 1\n");
    autotune_set_cache(STRING("%s\ncached: 2\nmade: 9\n", autotune_machine()));
    EXPECT(autotune_find("made") == 1, "a cached choice does not replace one that was made");
    EXPECT(autotune_find("cached") == -1 && !strstr(autotune_text(), "cached"), "outside training it does not count");
    autotune_enable(1);
    EXPECT(autotune_enabled() && autotune_find("cached") == 2, "training uses it");
    autotune_enable(0);
    EXPECT(autotune_find("cached") == 2 && strstr(autotune_text(), "cached: 2\n"), "and from then on all do");
}

TEST(test_autotune_malformed) {
    static const char *const lines[] = { "y", "y 1\n", ": 1\n", "y: \n", "y: -1\n", "y: z\n", "\n", "y\n: 1\n",
                                         "yy: 1\n" };
    for (int i = 0; i < COUNT(lines); i++) {
        adopts("y: 7\n");
        const int adopted = adopts(lines[i]);
        EXPECT(autotune_find("y") == (adopted ? -1 : 7), "\"%s\": %d", lines[i], autotune_find("y"));
    }
    adopts("x: 7\n");
    EXPECT(!autotune_adopt("") && !autotune_adopt("x: 1\n") && !autotune_adopt(autotune_machine()) &&
           !autotune_adopt(STRING("%s other\nx: 1\n", autotune_machine())), "another machine");
    EXPECT(!adopts("x: 1"), "cut short");
    EXPECT(!adopts(STRING("x: 1\n%0300000d: 1\n", 0)), "too long");
    EXPECT(autotune_find("x") == 7, "nothing was adopted");
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
    adopts("other: 1\n");
    autotune_cache_load();
    autotune_enable(1);
    const int choice = autotune_find(name);
    autotune_enable(0);
    return choice;
}

static void save(const char *name, int choice) {
    adopts("");
    autotune_add(name, choice);
    autotune_cache_save();
}

TEST(test_autotune_cache) {
    setenv("XDG_CACHE_HOME", IN_SCRATCH("cache"), 1);
    autotune_cache_load();
    EXPECT(!file_exists(IN_SCRATCH("cache")), "a load makes nothing");
    save("a", 1);
    EXPECT(cached("a") == 1, "stored in %s", cache_file());
    save("b", 2);                           /* "a" is in the file only */
    EXPECT(cached("a") == 1 && cached("b") == 2, "the choices of both");
    const char *before = IN_SCRATCH("before");
    EXPECT(link(cache_file(), before) == 0, "%s", before);
    save("c", 3);
    EXPECT(cached("c") == 3 && !strstr(text_of(before), "c: 3"), "a new file replaces the old one, unchanged");

    const char *const damage[] = { "", "x", "train_gpt choices 2: another\na: 5\n", "\xff\xff",
                                   STRING("%s\na: 12", autotune_machine()) };
    for (int i = 0; i < COUNT(damage); i++) {
        put_text(cache_file(), damage[i]);
        EXPECT(cached("a") == -1, "%s", damage[i]);
        save("a", 3);
        EXPECT(cached("a") == 3, "a damaged file is replaced");
    }
    const char *path = cache_file();
    unlink(path);
    mkdir(path, 0777);
    EXPECT(cached("a") == -1, "a directory");
    save("a", 4);
    EXPECT(!strcmp(cache_file(), path), "which stays");
    rmdir(path);

    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", IN_SCRATCH("home"), 1);
    save("a", 5);
    EXPECT(file_is_dir(IN_SCRATCH("home/.cache/train_gpt")), "a relative XDG_CACHE_HOME does not count");
    put_text(IN_SCRATCH("file"), "");
    const char *const unusable[] = { IN_SCRATCH("file"), "/proc/nowhere", NULL };
    for (int i = 0; i < COUNT(unusable); i++) {
        if (unusable[i]) setenv("XDG_CACHE_HOME", unusable[i], 1);
        else             unsetenv("XDG_CACHE_HOME"), unsetenv("HOME");
        save("a", 6);
        EXPECT(cached("a") == -1, "a directory that cannot be made, or none");
    }
}

/* ---- Ranks */

static void agree(void *unused) {
    (void)unused;
    autotune_add("gemm", 10 + comm_rank);
    if (comm_rank) autotune_add("of this rank", 1);
    for (int i = 0; i < 50 && !comm_rank; i++) autotune_add(STRING("a shape of rank 0, number %d", i), i);
    autotune_agree();
    EXPECT(autotune_find("gemm") == 10 && autotune_find("a shape of rank 0, number 49") == 49, "rank 0's choices");
    EXPECT(autotune_find("of this rank") == -1 && autotune_version() == (comm_rank > 0), "and no others");
}

static void test_autotune_of_ranks(void) {
    const int gpus = ranks_devices(), size = !strcmp(backend_name, "cpu") ? 3 : gpus < 3 ? gpus : 3;
    if (size < 2) { test_skip_reason = "fewer than two GPUs"; return; }
    ranks_run(size, agree, NULL);
    for (int r = 0; r < size; r++) EXPECT(ranks_status[r] == 0, "rank %d: status %#x", r, ranks_status[r]);
}

int main(void) {
    scratch_open();
    RUN(test_autotune_of_ranks);        /* first: the ranks open the device */
    test_device_open((DeviceOptions){ .threads = 1 });
    return test_all();
}
