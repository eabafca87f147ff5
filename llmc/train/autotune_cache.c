#include "autotune_cache.h"
#include "../../kernels/autotune.h"
#include "../ranks/ranks.h"

char *autotune_read(const char *path) {
    const FileMap map = file_map(path);
    char *text = strndup((const char *)map.bytes, (size_t)map.size);
    file_unmap(map);
    REQUIRE(text, "out of memory: %s", path);
    return text;
}

/* Fails where the environment names no directory. */
static Path cache_path(void) {
    const char *machine = autotune_machine(), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const int has_cache = cache && *cache == '/';
    char name[64];
    REQUIRE(has_cache || (home && *home == '/'), "HOME: not set, want the directory of the cache");
    snprintf(name, sizeof name, "choices-%016llx.txt", (unsigned long long)xxh64(machine, strlen(machine)));
    return path_of(path_of(has_cache ? cache : home, has_cache ? "train_gpt" : ".cache/train_gpt").text, name);
}

/* Reads the cache; saves: and writes it with this process' choices, so that those of others since the start are kept.
   If two processes write at the same time, one's choices are lost, and a later run measures them again. */
static void exchange(void *saves) {
    autotune_set_cache("");
    const Path path = cache_path();
    if (!saves || file_exists(path.text)) {
        char *text = autotune_read(path.text);
        autotune_set_cache(text);
        free(text);
    }
    if (!saves) return;
    directory_make(file_parent(path.text).text);
    char *partial = format_string("%s.%d", path.text, (int)getpid());
    FILE *file = file_try_create(partial);       /* not synced: a file cut short by a power failure is ignored */
    const int written = file && fputs(autotune_cache(), file) >= 0;
    if ((file && fclose(file)) || !written || rename(partial, path.text)) unlink(partial);
    free(partial);
}

void autotune_cache_load(void) { fails(exchange, NULL, (char[FAIL_LENGTH]){0}); }

void autotune_cache_save(void) {
    if (!comm_rank && *autotune_text()) fails(exchange, "", (char[FAIL_LENGTH]){0});
}

void autotune_agree(void) {
    size_t size = strlen(autotune_text()) + 1;
    ranks_copy_from_first(&size, sizeof size);
    char *text = format_string("%-*s", (int)size - 1, autotune_text());     /* room for rank 0's */
    ranks_copy_from_first(text, size);
    if (comm_rank) autotune_adopt(text);
    free(text);
}
