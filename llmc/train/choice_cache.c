#include "choice_cache.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../kernels/check.h"
#include "../../kernels/comm.h"
#include "../base/files.h"
#include "../ranks/ranks.h"

int choices_load(const char *path, ChoicesKind kind) {
    FileMap map = file_map(path);
    char *text = format_string("%.*s", map.size < CHOICES_TEXT_MAX ? (int)map.size : 0, (const char *)map.bytes);
    const int adopted = choices_adopt(text, kind);
    free(text);
    file_unmap(map);
    return adopted;
}

/* 0: the environment names no directory. */
static int cache_path(Path *path) {
    const char *machine = choices_machine(), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char name[64];
    if (cache && *cache == '/')    *path = path_of(cache, "train_gpt");
    else if (home && *home == '/') *path = path_of(home, ".cache/train_gpt");
    else return 0;
    snprintf(name, sizeof name, "choices-%016llx.txt", (unsigned long long)xxh64(machine, strlen(machine)));
    *path = path_of(path->text, name);
    return 1;
}

static void load(void *unused) {
    (void)unused;
    Path path;
    if (cache_path(&path)) choices_load(path.text, CHOICES_KNOWN);
}

void choice_cache_load(void) {
    char ignored[FAIL_LENGTH];
    fails(load, NULL, ignored);
}

/* Choices that other processes have written since the start are loaded first and kept. If two processes write at the
   same moment, the choices of one are lost, and a later run measures them again. */
static void save(void *unused) {
    (void)unused;
    Path path;
    if (!cache_path(&path)) return;
    directory_make(file_parent(path.text).text);
    choice_cache_load();
    char *text = choices_text(0), *partial = format_string("%s.%d", path.text, (int)getpid());
    FILE *file = fopen(partial, "w");       /* not synced: a file cut short by a power failure is ignored */
    const int written = file && fputs(text, file) >= 0;
    if ((file && fclose(file)) || !written || rename(partial, path.text)) unlink(partial);
    free(partial);
    free(text);
}

void choice_cache_save(void) {
    char ignored[FAIL_LENGTH];
    if (!comm_rank && choices_added()) fails(save, NULL, ignored);
}

void choices_agree(void) {
    if (comm_size == 1) return;
    char *text = choices_text(1);
    size_t size = strlen(text) + 1;
    ranks_copy_from_first(&size, sizeof size);
    text = realloc(text, size);
    REQUIRE(text, "out of memory: the choices of rank 0");
    ranks_copy_from_first(text, size);
    if (comm_rank && *text) choices_adopt(text, CHOICES_REPLACE);
    free(text);
}
