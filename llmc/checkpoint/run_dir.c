#include "run_dir.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include "../../kernels/check.h"

/* ---- The name */

/* runs/NAME. "books/emma.txt" gives emma, "web/train_?.bin" train, "web/??.bin" web. */
static char *base_of(const char *data) {
    Path path = path_of(".", data);
    char *end = path.text + strcspn(path.text, "*?["), *name = strrchr(path.text, '/') + 1;
    if (*end) *end = 0;
    else if ((end = strrchr(name, '.')) && end > name) *end = 0;
    for (end = strchr(path.text, 0); end > path.text && strchr("/._-", end[-1]); ) *--end = 0;
    name = strrchr(path.text, '/');
    return format_string("runs/%s", name ? name + 1 : "data");
}


/* ---- The lock: flock of the directory, which ends with the process */

void run_dir_lock(RunDir *dir) {
    if (dir->lock || !file_is_dir(dir->path)) return;
    int fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    REQUIRE(fd >= 0, "%s: cannot open the directory: %s", dir->path, strerror(errno));
    REQUIRE(!flock(fd, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK,            /* some file systems have no locks */
            "%s: another train_gpt writes to this directory: wait for it, or use another --out", dir->path);
    dir->lock = fd;
}

static void require_new(const RunDir *dir) {
    char *step = run_dir_newest(dir->path);
    Path log = path_of(dir->path, "log.csv");
    REQUIRE(!step, "%s already exists: want another --out, or --resume to continue", step);
    REQUIRE(!file_exists(log.text), "%s already exists: want another --out, or remove it", log.text);
}

RunDir run_dir_choose(const char *out, const char *data, int resume, int dry_run) {
    RunDir dir = { .path = out && strcmp(out, "none") ? out : NULL, .base = out ? NULL : base_of(data) };
    if (!out) dir.path = file_variant(dir.base, '-', resume);
    if (dir.path && !dry_run) run_dir_lock(&dir);
    if (dir.path && !resume) require_new(&dir);
    return dir;
}

void run_dir_open(RunDir *dir) {
    if (dir->lock) return;
    directory_make(file_parent(dir->path).text);
    while (dir->base && mkdir(dir->path, 0777) && errno == EEXIST) dir->path = file_variant(dir->base, '-', 0);
    directory_make(dir->path);
    directory_sync(file_parent(dir->path).text);
    run_dir_lock(dir);
    require_new(dir);                       /* another process may have made it since */
}

/* ---- Finding checkpoints */

typedef enum { ANY, TO_LOAD, TO_RESUME } Need;

static Path step_path(const char *out, int64_t step, const char *tail) {
    char name[80];
    snprintf(name, sizeof name, "step-%08" PRId64 "%s", step, tail);
    return path_of(out, name);
}

/* The number N of a name step-N followed by tail, in the form that step_path gives it; -1 for other names. */
static int64_t step_of(const char *name, const char *tail) {
    if (strncmp(name, "step-", 5) || name[5] < '0' || name[5] > '9') return -1;
    int64_t step = strtoll(name + 5, NULL, 10);
    return strcmp(path_of(".", name).text, step_path(".", step, tail).text) ? -1 : step;
}

/* The highest step below `before` whose directory has what is needed; -1 = none. */
static int64_t highest_step(const char *out, const char *tail, Need need, int64_t before) {
    DIR *directory = opendir(out);
    if (!directory && (errno == ENOENT || errno == ENOTDIR)) return -1;
    REQUIRE(directory, "%s: cannot open the directory: %s", out, strerror(errno));
    int64_t highest = -1;
    for (struct dirent *entry; errno = 0, (entry = readdir(directory)); ) {
        int64_t step = step_of(entry->d_name, tail);
        if (step <= highest || step >= before) continue;
        Path path = step_path(out, step, tail);
        int has_all = need == ANY ? file_is_dir(path.text) : !checkpoint_missing_file(path.text, need == TO_RESUME);
        if (has_all) highest = step;
    }
    int error = errno;
    closedir(directory);
    REQUIRE(!error, "%s: cannot read the directory: %s", out, strerror(error));
    return highest;
}

static char *newest(const char *out, Need need, int64_t before) {
    int64_t step = highest_step(out, "", need, before);
    return step < 0 ? NULL : format_string("%s", step_path(out, step, "").text);
}

char *run_dir_latest(const char *out, const char *before) {
    return newest(out, TO_RESUME, before ? step_of(strrchr(before, '/') + 1, "") : INT64_MAX);
}

char *run_dir_newest(const char *out) { return newest(out, ANY, INT64_MAX); }

/* ---- Writing and removing */

/* Nothing is written to, or removed from, another run's directory of that name. */
static void require_unmoved(const RunDir *dir) {
    REQUIRE(file_has_name(dir->lock, dir->path), "%s: the directory was moved or removed during the run", dir->path);
}

Path run_dir_checkpoint(const RunDir *dir, int64_t step) { return step_path(dir->path, step, ""); }

void run_dir_write(const RunDir *dir, const Snapshot *snapshot) {
    Path step = run_dir_checkpoint(dir, snapshot->state.step);
    Path partial = step_path(dir->path, snapshot->state.step, ".partial");
    Path old = step_path(dir->path, snapshot->state.step, ".old");
    require_unmoved(dir);
    checkpoint_remove(partial.text);
    directory_make(partial.text);
    checkpoint_write(partial.text, snapshot);
    int is_new = !file_is_dir(step.text);
    if (!is_new && file_exchange(partial.text, step.text)) return;
    if (!is_new) file_rename(step.text, old.text);     /* on a file system that cannot exchange names */
    file_rename(partial.text, step.text);
    if (!is_new) checkpoint_remove(old.text);
}

void run_dir_clean(const RunDir *dir, int64_t step, int64_t keep, int64_t keep_every) {
    int64_t kept = 0;
    require_unmoved(dir);
    for (int64_t next = INT64_MAX; (next = highest_step(dir->path, ".partial", ANY, next)) >= 0; )
        checkpoint_remove(step_path(dir->path, next, ".partial").text);
    for (int64_t next = step + 1; keep && (next = highest_step(dir->path, "", TO_RESUME, next)) >= 0; ) {
        Path path = step_path(dir->path, next, ""), partial = step_path(dir->path, next, ".partial");
        if (checkpoint_has_other_files(path.text) || file_exists(partial.text)) continue;   /* partial holds others */
        if (kept++ < keep || (keep_every && next % keep_every == 0)) continue;
        file_rename(path.text, partial.text);
        checkpoint_remove(partial.text);
    }
}

/* ---- A CHECKPOINT argument */

static char *find_model(const char *path) {
    REQUIRE(file_exists(path), "%s: no such file or directory: want the directory of a checkpoint", path);
    if (!file_is_dir(path)) {
        REQUIRE(ends_with(path, "model.safetensors") || ends_with(path, "model.safetensors.index.json"), "%s: want a "
                "directory with model.safetensors, that file itself, or the index of its shards", path);
        return format_string("%s", file_parent(path).text);
    }
    char *dir = format_string("%s", path);
    for (size_t n = strlen(dir); n > 1 && dir[n - 1] == '/'; n--) dir[n - 1] = 0;
    REQUIRE(!ends_with(dir, ".partial"), "%s: is a checkpoint that was not finished: use an earlier one", path);
    if (checkpoint_has_model(dir)) return dir;
    char *step = newest(dir, TO_LOAD, INT64_MAX);
    REQUIRE(step, "%s: holds no checkpoint, want config.json and model.safetensors (instead of pytorch_model.bin: save "
            "with safe_serialization=True), or directories like step-00001000", path);
    free(dir);
    return step;
}

char *run_dir_resolve(const char *path) {
    char *checkpoint = find_model(path);
    checkpoint_verify(checkpoint, 0);
    return checkpoint;
}
