/* test_fuzz.c - Reads every file of test/fuzz/corpus, and MUTANTS of each, or those of one: test_fuzz json FILE.
   A target must accept a file that is named good..., all of it or a part, and nothing of one that is named bad... */
#include "fuzz.h"
#include <dirent.h>
#include <sys/mman.h>
#include "../../kernels/check.h"
#include "../../llmc/base/files.h"
#include "../../llmc/base/random.h"

enum { MUTANTS = 300 };

/* The real one: fuzz.c has its own for the readers. */
FileMap __real_file_map(const char *path);

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static uint32_t draw(uint32_t n, uint32_t which, uint64_t below) {
    return (uint32_t)random_below(5, RANDOM_TEST, n, which, below);
}

/* One to three of: a bit flipped, a byte that means something to a reader, a few bytes taken from elsewhere; one in
   five is cut short as well. Returns the new size. */
static size_t mutate(unsigned char *bytes, size_t size, uint32_t n) {
    static const char telling[] = "\"\\{}[]:,-+.eE0129 tfnu\n\x80\xff";
    for (uint32_t i = 0, changes = 1 + draw(n, 0, 3); i < changes; i++) {
        unsigned char *place = bytes + draw(n, 10 * i + 1, size);
        const uint32_t kind = draw(n, 10 * i + 2, 3), value = draw(n, 10 * i + 3, 1 << 20);
        const size_t room = (size_t)(bytes + size - place), length = 1 + value % 12;
        if (kind == 0) *place ^= (unsigned char)(1 << value % 8);
        if (kind == 1) *place = (unsigned char)telling[value % sizeof telling];
        if (kind == 2) memmove(place, bytes + value % (size - 12), length < room ? length : room);
    }
    return draw(n, 4, 5) ? size : draw(n, 5, size);
}

static void run_mutants(const FuzzTarget *target, FileMap original) {
    const size_t size = (size_t)original.size;
    unsigned char *bytes = malloc(size + !size);
    for (uint32_t n = 0; n < MUTANTS && size > 12; n++) {
        memcpy(bytes, original.bytes, size);
        fuzz_run(target, bytes, mutate(bytes, size, n));
    }
    free(bytes);
}

/* Returns 0 when the outcome is not the one that the file's name promises. */
static int replay_file(const FuzzTarget *target, const char *path, const char *name) {
    FileMap map = __real_file_map(path);
    int before = fuzz_accepted;
    fprintf(stderr, "  %s\n", path);                    /* after a crash the last path names the input */
    fuzz_run(target, map.bytes, (size_t)map.size);
    const char *wrong = !strncmp(name, "good", 4) && fuzz_accepted == before ? "refused" :
                        !strncmp(name, "bad", 3)  && fuzz_accepted != before ? "accepted" : NULL;
    if (wrong) printf("%s was %s\n", path, wrong);
    run_mutants(target, map);
    if (map.size) munmap((void *)map.bytes, (size_t)map.size);
    return !wrong;
}

static int replay_folder(const FuzzTarget *target, const char *folder) {
    struct dirent **entry;
    int count = scandir(folder, &entry, NULL, by_name), files = 0, ok = 1;
    REQUIRE(count >= 0, "%s: cannot be read", folder);
    for (int i = 0; i < count; free(entry[i++])) {
        char path[1024];
        if (*entry[i]->d_name == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry[i]->d_name);
        ok &= replay_file(target, path, entry[i]->d_name);
        files++;
    }
    free(entry);
    printf("%s %s: %d inputs\n", ok && files ? "ok  " : "FAIL", target->name, files);
    return ok && files;
}

int main(int argc, char **argv) {
    int passed = 0, failed = 0, known = 0;
    for (const FuzzTarget *target = fuzz_targets; target->name; target++) {
        char folder[256];
        if (argc == 3 && strcmp(target->name, argv[1])) continue;
        known = 1;
        snprintf(folder, sizeof folder, "test/fuzz/corpus/%s", target->name);
        int ok = argc == 3 ? replay_file(target, argv[2], "") : replay_folder(target, folder);
        passed += ok;
        failed += !ok;
    }
    REQUIRE(known && argc != 2 && argc < 4, "want no argument, or the name of a target and a file");
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed > 0;
}
