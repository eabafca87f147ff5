#include "folder.h"
#include <stdlib.h>
#include "../kernels/check.h"
#include "checkpoint/run_dir.h"
#include "files.h"

void folder_lock(Folder *folder) {
    if (folder->locked || !file_is_folder(folder->path)) return;
    folder->lock = directory_lock(folder->path);
    folder->locked = 1;
}

void folder_require_new(const Folder *folder) {
    char *model_there = steps_any(folder->path), *log = format_string("%s/log.csv", folder->path);
    REQUIRE(!model_there, "%s is there already: want another --out, or --resume to go on", model_there);
    REQUIRE(!file_exists(log), "%s is there already: want another --out, or remove it", log);
    free(log);
}

void folder_open(Folder *folder) {
    if (!folder->locked) {                  /* it was not there: nor should be what somebody made meanwhile */
        directory_make(folder->path);
        folder_lock(folder);
        folder_require_new(folder);
    }
    directory_sign(folder->path);
}

void folder_keep(Folder *folder) {
    if (file_has_name(folder->lock, folder->path)) return;
    directory_make(folder->path);
    folder->lock = directory_lock(folder->path);
    directory_sign(folder->path);
}
