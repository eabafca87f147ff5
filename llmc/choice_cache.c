#include "choice_cache.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../kernels/check.h"
#include "../kernels/choices.h"
#include "../kernels/comm.h"
#include "files.h"
#include "os.h"
#include "ranks.h"

/* The directory is made only to write to it. 0: the environment names none. */
static int cache_path(Path *path, int make) {
    const char *machine = choices_machine(), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char name[64];
    if (cache && *cache == '/')    *path = path_of(cache, "train_gpt");
    else if (home && *home == '/') *path = path_of(home, ".cache/train_gpt");
    else return 0;
    if (make) directory_make(path->text);
    snprintf(name, sizeof name, "choices-%016llx.txt", (unsigned long long)xxh64(machine, strlen(machine)));
    *path = path_of(path->text, name);
    return 1;
}

static void load(void *found) {
    Path path;
    if (!cache_path(&path, 0) || !file_exists(path.text)) return;
    FileMap map = file_map(path.text);
    if (map.size < CHOICES_TEXT_MAX) {
        char *text = format_string("%.*s", (int)map.size, (const char *)map.bytes);
        *(int *)found = choices_adopt(text, CHOICES_KNOWN);
        free(text);
    }
    file_unmap(map);
}

int choice_cache_load(void) {
    char ignored[FAIL_LENGTH];
    int found = 0;
    fails(load, &found, ignored);
    return found;
}

/* What another process has written since is kept: it is loaded first. Of two that write at the same moment one is lost,
   and measured again some day. */
static void save(void *unused) {
    (void)unused;
    Path path;
    if (!cache_path(&path, 1)) return;
    load(&(int){0});
    char *text = choices_text(0), *partial = format_string("%s.%d", path.text, (int)getpid());
    FILE *file = fopen(partial, "w");       /* not synced: a file cut short by a power failure is ignored */
    const int written = file && fputs(text, file) >= 0;
    if ((file && fclose(file)) || !written || rename(partial, path.text)) unlink(partial);
    free(partial);
    free(text);
}

void choice_cache_save(void) {
    char ignored[FAIL_LENGTH];
    if (choices_added()) fails(save, NULL, ignored);
}

void choices_agree(void) {
    if (comm_size == 1) return;
    char *own = choices_text(1);
    double length = comm_rank ? 0 : (double)strlen(own);
    ranks_sum(&length, 1);
    const int size = (int)length;
    char *text = host_alloc((size_t)size + 1, "the choices of rank 0");
    if (!comm_rank) memcpy(text, own, (size_t)size);
    ranks_copy_from_first(text, size);
    if (comm_rank && size) choices_adopt(text, CHOICES_REPLACE);
    free(text);
    free(own);
}
