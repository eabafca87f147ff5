#include "run_dir.h"
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../../kernels/check.h"
#include "../../kernels/comm.h"
#include "../base/terminal.h"

/* ---- Finding checkpoints */

static const char OLD[] = ".old";

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

/* The highest step below `before` whose directory has the required files; -1 = none. */
static int64_t highest_step(const char *out, const char *tail, Need need, int64_t before) {
    DIR *directory = opendir(out);
    if (!directory && (errno == ENOENT || errno == ENOTDIR)) return -1;
    REQUIRE(directory, "%s: cannot open the directory: %s", out, strerror(errno));
    int64_t highest = -1;
    for (struct dirent *entry; errno = 0, (entry = readdir(directory)); ) {
        int64_t step = step_of(entry->d_name, tail);
        if (step <= highest || step >= before) continue;
        Path path = step_path(out, step, tail);
        if (need == ANY_FILES ? file_is_dir(path.text) : !checkpoint_missing_file(path.text, need == TO_RESUME))
            highest = step;
    }
    int error = errno;
    closedir(directory);
    REQUIRE(!error, "%s: cannot read the directory: %s", out, strerror(error));
    return highest;
}

char *run_dir_find(const char *out, Need need, const char *before) {
    const int64_t limit = before ? step_of(strrchr(before, '/') + 1, "") : INT64_MAX;
    const int64_t step = highest_step(out, "", need, limit);
    const int64_t old = need == TO_LOAD ? highest_step(out, OLD, need, limit) : -1;     /* restore_old needs the lock */
    if (old > step) return format_string("%s", step_path(out, old, OLD).text);
    return step < 0 ? NULL : format_string("%s", step_path(out, step, "").text);
}

/* Undoes a file_exchange that was not completed. A step-N.old beside step-N may be a copy of the user. */
static void restore_old(const RunDir *dir) {
    for (int64_t step = INT64_MAX; (step = highest_step(dir->path, OLD, ANY_FILES, step)) >= 0; ) {
        const Path path = step_path(dir->path, step, "");
        if (!file_is_dir(path.text)) file_rename(step_path(dir->path, step, OLD).text, path.text);
    }
}

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

/* ---- Choosing and opening */

/* Locks an existing directory until the process ends. */
static void lock(RunDir *dir) {
    if (dir->lock || !file_is_dir(dir->path)) return;
    const DirectoryLock lock = directory_lock(dir->path);
    REQUIRE(lock.fd, "%s: another train_gpt writes to this directory: wait for it, or use another --out", dir->path);
    dir->lock = lock.fd;
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    dir->partial = lock.is_locked ? ".partial" : format_string(".partial-%s-%d", host, (int)getpid());
    restore_old(dir);
}

/* The newest step of a run in the directory, else its log: a new string. NULL = there is no run. */
static char *find_run(const char *path) {
    char *step = run_dir_find(path, ANY_FILES, NULL);
    return step || !file_exists(path_of(path, "log.csv").text) ? step : format_string("%s/log.csv", path);
}

static void require_new(const RunDir *dir) {
    char *run = find_run(dir->path);
    REQUIRE(!run, "%s already exists: want another --out, or --resume to continue", run);
}

/* The last variant of base with a run: a run that was killed early leaves an empty directory. */
static char *last_run(const char *base) {
    int last = 1, in_use = 1;
    for (int n = 2; in_use; n++) {
        char *path = file_variant(base, '-', n);
        char *run = (in_use = file_name_in_use(path)) ? find_run(path) : NULL;
        if (run) last = n;
        free(run);
        free(path);
    }
    return file_variant(base, '-', last);
}

RunDir run_dir_choose(const char *out, const char *data, int resume, int dry_run) {
    char *base = out ? NULL : base_of(data);
    if (base && !resume)                    /* another process can make it before run_dir_open does */
        return (RunDir){ .path = file_unused_variant(base, '-'), .base = base };
    RunDir dir = { .path = base ? last_run(base) : strcmp(out, "none") ? out : NULL };
    free(base);
    if (dir.path && !dry_run) lock(&dir);
    if (dir.path && !resume) require_new(&dir);
    return dir;
}

void run_dir_open(RunDir *dir) {
    if (dir->lock) return;
    directory_make(file_parent(dir->path).text);
    while (mkdir(dir->path, 0777) && errno == EEXIST && dir->base)      /* another process made it */
        dir->path = file_unused_variant(dir->base, '-');
    directory_make(dir->path);
    directory_sync(file_parent(dir->path).text);
    lock(dir);
    require_new(dir);                       /* another process may have made it */
}

/* ---- Writing and removing */

/* Fails if OUT was moved or replaced: another run's directory is never changed. */
static void require_unmoved(const RunDir *dir) {
    REQUIRE(file_has_name(dir->lock, dir->path), "%s: the directory was moved or removed during the run", dir->path);
}

Path run_dir_checkpoint(const RunDir *dir, int64_t step) { return step_path(dir->path, step, ""); }

void run_dir_write(const RunDir *dir, const Snapshot *snapshot) {
    const int64_t N = snapshot->state.step;
    const Path step = run_dir_checkpoint(dir, N), partial = step_path(dir->path, N, dir->partial);
    require_unmoved(dir);
    checkpoint_remove(partial.text);
    directory_make(partial.text);
    checkpoint_write(partial.text, snapshot);
    const char *missing = checkpoint_missing_file(partial.text, 1);
    REQUIRE(!missing, "%s/%s is gone: want no other process that writes to the directory", partial.text, missing);
    if (file_is_dir(step.text)) file_exchange(partial.text, step.text, step_path(dir->path, N, OLD).text);
    else                        file_rename(partial.text, step.text);
}

void run_dir_write_validation(const RunDir *dir, const TrainState *state) {
    require_unmoved(dir);
    checkpoint_write_validation(run_dir_checkpoint(dir, state->step).text, state);
}

static const char BEST[] = "best";

/* The step of the checkpoint that OUT/best names; -1 = none. */
static int64_t linked_step(const char *out) {
    char target[64];
    ssize_t length = readlink(path_of(out, BEST).text, target, sizeof target - 1);
    if (length < 0) return -1;
    target[length] = 0;
    return step_of(target, "");
}

void run_dir_link_best(const RunDir *dir, int64_t step) {
    const Path target = step_path(".", step, ""), best = path_of(dir->path, BEST), new = path_of(dir->path, "best.new");
    struct stat info;
    if (!step) return;
    require_unmoved(dir);
    REQUIRE(!unlink(new.text) || errno == ENOENT, "%s: cannot remove: %s", new.text, strerror(errno));
    if (linked_step(dir->path) == step) return;
    REQUIRE(lstat(best.text, &info) || S_ISLNK(info.st_mode), "%s is not a link and stays as it is: move it away",
            best.text);
    REQUIRE(!symlink(target.text + strlen("./"), new.text), "%s: cannot make a link: %s", best.text, strerror(errno));
    file_rename(new.text, best.text);
}

/* Whether it or the .partial of an earlier removal has files of a user, or it is a link. */
static int has_other_files(const RunDir *dir, int64_t step) {
    return checkpoint_has_other_files(step_path(dir->path, step, "").text) ||
           file_exists(step_path(dir->path, step, dir->partial).text);
}

static void remove_step(const RunDir *dir, int64_t best, int64_t step) {
    const Path path = step_path(dir->path, step, ""), partial = step_path(dir->path, step, dir->partial);
    if (step == best || step == linked_step(dir->path)) return;
    file_rename(path.text, partial.text);
    checkpoint_remove(partial.text);
}

static void remove_checkpoint(void *path) { checkpoint_remove(path); }

/* Removes step-N.partial of this process, and of processes of this host that have ended. */
static void remove_partials(const RunDir *dir) {
    char why[FAIL_LENGTH] = "";
    DIR *directory = opendir(dir->path);
    for (struct dirent *entry; directory && (entry = readdir(directory)); ) {
        const char *tail = strstr(entry->d_name, ".partial"), *pid = tail ? strrchr(tail, '-') : NULL;
        if (!tail || step_of(entry->d_name, tail) < 0) continue;
        const int is_ended = pid && !strncmp(tail, dir->partial, (size_t)(pid + 1 - tail)) &&
                             kill(atoi(pid + 1), 0) && errno == ESRCH;
        if (is_ended || !strcmp(tail, dir->partial))
            fails(remove_checkpoint, path_of(dir->path, entry->d_name).text, why);
    }
    if (directory) closedir(directory);
    REQUIRE(!*why, "%s", why);
}

void run_dir_clean(const RunDir *dir, const TrainState *state, int64_t keep) {
    require_unmoved(dir);
    restore_old(dir);
    remove_partials(dir);
    if (!state) return;
    const BestLoss *best = &state->val.best;
    /* the validation of state->step, which comes after its save, may replace the extra best */
    const int64_t extra = best->is_extra && best->step < state->step ? best->step : 0;
    int64_t kept = 0;
    if (best->outdated && !checkpoint_missing_file(step_path(dir->path, best->outdated, "").text, 1) &&
        !has_other_files(dir, best->outdated)) remove_step(dir, best->step, best->outdated);
    for (int64_t next = state->step + 1; keep && (next = highest_step(dir->path, "", TO_RESUME, next)) >= 0; )
        if (next != extra && !has_other_files(dir, next) && kept++ >= keep) remove_step(dir, best->step, next);
}

/* ---- A CHECKPOINT argument */

static char *find_model(const char *path) {
    REQUIRE(file_exists(path), "%s: no such file or directory: want the directory of a run or a checkpoint", path);
    if (!file_is_dir(path)) {
        REQUIRE(ends_with(path, "model.safetensors") || ends_with(path, "model.safetensors.index.json"), "%s: want a "
                "directory with model.safetensors, that file itself, or the index of its shards", path);
        return format_string("%s", file_parent(path).text);
    }
    char *dir = format_string("%s", path);
    for (size_t n = strlen(dir); n > 1 && dir[n - 1] == '/'; n--) dir[n - 1] = 0;
    REQUIRE(fnmatch("*step-[0-9]*.partial*", dir, 0), "%s: is a checkpoint that was not finished: use an earlier one",
            path);
    if (checkpoint_has_model(dir)) return dir;
    char *step = run_dir_find(dir, TO_LOAD, NULL), *last = run_dir_find(dir, ANY_FILES, NULL);
    REQUIRE(step, "%s: holds no checkpoint, want config.json and model.safetensors (instead of pytorch_model.bin: save "
            "with safe_serialization=True), or directories like step-00001000", path);
    const char *missing = last ? checkpoint_missing_file(last, 0) : NULL;
    if (missing && !comm_rank) print_line(stderr, "%s has no %s and is ignored", last, missing);
    free(last);
    free(dir);
    return step;
}

/* last: the newest checkpoint of a run. Returns the best, else last. */
static char *pick_of_run(char *last, char **note) {
    const int has_state = file_exists(path_of(last, "state.json").text);
    const TrainState state = has_state ? checkpoint_load_state(last) : (TrainState){0};
    const BestLoss *best = &state.val.best;
    const Path out = file_parent(last), path = step_path(out.text, best->step, "");
    const int has_best = best->step && !checkpoint_missing_file(path.text, 0);
    if (has_best && best->step != state.step) {
        *note = format_string("%s: the best of the run, val loss %.4f; the last is step %" PRId64, path.text,
                              best->loss, state.step);
        free(last);
        return format_string("%s", path.text);
    }
    char loss[64] = "";
    if (state.step && state.val_step == state.step) snprintf(loss, sizeof loss, ", val loss %.4f", state.val_loss);
    *note = format_string("%s: the last of the run%s%s", last, has_best ? " and its best" : "", loss);
    return last;
}

char *run_dir_resolve(const char *path, char **note) {
    char *checkpoint = find_model(path);
    const int is_run = file_is_dir(path) && !checkpoint_has_model(path);
    if (note) *note = NULL;
    if (note && is_run) checkpoint = pick_of_run(checkpoint, note);
    checkpoint_verify(checkpoint, 0);
    return checkpoint;
}
