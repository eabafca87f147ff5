#include "run_dir.h"
#include <dirent.h>
#include <fnmatch.h>

/* ---- Finding checkpoints */

static Path step_path(const char *out, int64_t step, const char *tail) {
    char name[512];
    snprintf(name, sizeof name, "step-%08" PRId64 "%s", step, tail);
    return path_of(out, name);
}

/* The number N of a name step-N followed by tail, in the form that step_path gives it; -1 for other names. */
static int64_t step_of(const char *name, const char *tail) {
    if (strncmp(name, "step-", 5) || name[5] < '0' || name[5] > '9') return -1;
    const int64_t step = strtoll(name + 5, NULL, 10);
    return strcmp(path_of(".", name).text, step_path(".", step, tail).text) ? -1 : step;
}

/* The step of the checkpoint that OUT/best names; -1 = none. */
static int64_t best_step(const char *out) {
    char target[64] = "";
    return readlink(path_of(out, "best").text, target, sizeof target - 1) < 0 ? -1 : step_of(target, "");
}

/* The highest step below `before` whose directory, *found, has the required files; -1 = none. */
static int64_t find_step(const char *out, Need need, int64_t before, Path *found) {
    DIR *directory = opendir(out);
    if (!directory && (errno == ENOENT || errno == ENOTDIR)) return -1;
    REQUIRE(directory, "%s: cannot open the directory: %s", out, strerror(errno));
    int64_t highest = -1;
    for (struct dirent *entry; errno = 0, (entry = readdir(directory)); ) {
        const int64_t step = step_of(entry->d_name, "");
        if (step <= highest || step >= before) continue;
        const Path path = path_of(out, entry->d_name);
        if (need == ANY_FILES ? !file_is_dir(path.text) : !!checkpoint_missing_file(path.text, need == TO_RESUME))
            continue;
        highest = step;
        *found = path;
    }
    const int error = errno;
    closedir(directory);
    REQUIRE(!error, "%s: cannot read the directory: %s", out, strerror(error));
    return highest;
}

char *run_dir_find(const char *out, Need need, const char *before) {
    Path found;
    const int64_t limit = before ? strtoll(strrchr(before, '-') + 1, NULL, 10) : INT64_MAX;
    return find_step(out, need, limit, &found) < 0 ? NULL : format_string("%s", found.text);
}

/* ---- Choosing and opening */

/* runs/NAME. "books/emma.txt" gives emma; shards and patterns their directory: "web/train_?.bin" web, or else train. */
static char *name_of(const char *data) {
    Path path = path_of(".", data);
    char *end = path.text + strcspn(path.text, "*?[");
    const int are_parts = *end || ends_with(data, ".bin");
    *end = 0;
    char *name = strrchr(path.text, '/') + 1;
    if (are_parts && !strchr("./", name[-2])) *name = 0;
    else if ((end = strrchr(name, '.')) && end > name) *end = 0;
    for (end = strchr(path.text, 0); end > path.text && strchr("/._-", end[-1]); ) *--end = 0;
    name = strrchr(path.text, '/');
    return format_string("runs/%s", name ? name + 1 : "data");
}

/* Locks an existing directory until the process ends. */
static void lock(RunDir *dir) {
    if (dir->lock || !file_is_dir(dir->path)) return;
    const DirectoryLock lock = directory_lock(dir->path);
    REQUIRE(lock.fd, "%s: another train_gpt writes to this directory: wait for it, or use another --out", dir->path);
    dir->lock = lock.fd;
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    dir->partial = lock.is_locked ? ".partial" : format_string(".partial-%s-%d", host, (int)getpid());
}

static void require_new(const RunDir *dir) {
    Path found;
    const int has_step = find_step(dir->path, ANY_FILES, INT64_MAX, &found) >= 0;
    if (!has_step) found = path_of(dir->path, "log.csv");
    REQUIRE(!has_step && !file_exists(found.text), "%s already exists: want another --out, or --resume %s to continue",
            found.text, shell_word(dir->path));
}

RunDir run_dir_choose(const char *out, const char *data, int resume, int dry_run) {
    RunDir dir = { .path = !out ? name_of(data) : strcmp(out, "none") ? out : NULL };
    if (dir.path && !dry_run)            lock(&dir);
    if (dir.path && !dry_run && !resume) require_new(&dir);
    return dir;
}

void run_dir_open(RunDir *dir) {
    if (dir->lock) return;
    directory_make(dir->path);
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
    const int is_there = file_is_dir(step.text);
    REQUIRE(!is_there || checkpoint_missing_file(step.text, 1), "%s exists: want no other process that writes to the "
            "directory", step.text);
    if (is_there) checkpoint_remove(step.text);     /* incomplete, a resume ignored it; over a later one rename fails */
    file_rename(partial.text, step.text);
}

/* Makes OUT/best, by a rename, a link to the existing checkpoint of that step, 0 = none. Returns an error, a new
   string; NULL = none. */
static char *link_best(const RunDir *dir, int64_t step) {
    const Path best = path_of(dir->path, "best"), new = path_of(dir->path, "best.new");
    struct stat info;
    if (!step) return NULL;
    int error = unlink(new.text) && errno != ENOENT ? errno : 0;
    if (!error && best_step(dir->path) == step) return NULL;
    if (!lstat(best.text, &info) && !S_ISLNK(info.st_mode))
        return format_string("%s is not a link and stays as it is: move it away", best.text);
    if (!error && (symlink(step_path(".", step, "").text + strlen("./"), new.text) || rename(new.text, best.text)))
        error = errno;
    if (error) return format_string("%s: cannot make a link: %s", best.text, strerror(error));
    directory_sync(dir->path);
    return NULL;
}

static void remove_checkpoint(void *path) { checkpoint_remove(path); }

/* Removes every step-N.partial: with a lock also those that a kill has left. */
static void remove_partials(const RunDir *dir) {
    char why[FAIL_LENGTH] = "";
    DIR *directory = opendir(dir->path);
    for (struct dirent *entry; directory && (entry = readdir(directory)); ) {
        if (step_of(entry->d_name, dir->partial) < 0) continue;
        fails(remove_checkpoint, path_of(dir->path, entry->d_name).text, why);
    }
    if (directory) closedir(directory);
    REQUIRE(!*why, "%s", why);
}

/* Unless it is the best, or the .partial of an earlier removal has files of a user. */
static void remove_step(const RunDir *dir, int64_t best, int64_t step) {
    const Path path = step_path(dir->path, step, ""), partial = step_path(dir->path, step, dir->partial);
    if (step == best || step == best_step(dir->path) || file_exists(partial.text)) return;
    file_rename(path.text, partial.text);
    checkpoint_remove(partial.text);
}

void run_dir_clean(const RunDir *dir, const TrainState *state, int64_t keep) {
    require_unmoved(dir);
    remove_partials(dir);
    if (!state) return;
    const BestLoss *best = &state->best;
    const char *error = link_best(dir, best->step);
    int64_t kept = 0;
    if (best->outdated && !checkpoint_missing_file(run_dir_checkpoint(dir, best->outdated).text, 1))
        remove_step(dir, best->step, best->outdated);
    /* a reading of the directory for each: 1.1 s with --keep 900, in the saver's thread */
    for (int64_t step = state->step + 1; keep && (step = find_step(dir->path, TO_RESUME, step, &(Path){ "" })) >= 0; )
        if (kept++ >= keep) remove_step(dir, best->step, step);
    REQUIRE(!error, "%s; --sample and --eval take the newest without it", error);
}

/* ---- A CHECKPOINT argument */

/* *checkpoint: the newest of a run; becomes the one that OUT/best links to, if there is one. */
static void pick_best(const char *out, int64_t newest, Path *checkpoint, char **note) {
    const Path best = step_path(out, best_step(out), "");
    const int has_best = !checkpoint_missing_file(best.text, 0), is_newest = !strcmp(best.text, checkpoint->text);
    if (has_best) *checkpoint = best;
    *note = !has_best || is_newest
            ? format_string("%s: the last of the run%s", checkpoint->text, has_best ? " and its best" : "")
            : format_string("%s: the best of the run; the last is step %" PRId64, best.text, newest);
}

char *run_dir_resolve(const char *path, char **note) {
    const int is_dir = file_is_dir(path);
    Path found = is_dir ? file_parent(path_of(path, "model").text) : file_parent(path), last;
    if (note) *note = NULL;
    REQUIRE(file_exists(path), "%s: no such file or directory: want the directory of a run or a checkpoint "
            "(scripts/download_gpt2.sh downloads GPT-2 to data/gpt2)", path);
    REQUIRE(is_dir || ends_with(path, "model.safetensors") || ends_with(path, "model.safetensors.index.json"), "%s: "
            "want a directory with model.safetensors, that file itself, or the index of its shards", path);
    REQUIRE(fnmatch("*step-[0-9]*.partial*", found.text, 0), "%s: is a checkpoint that was not finished: use an "
            "earlier one", path);
    REQUIRE(checkpoint_has_model(found.text) || !dir_has_file(found.text, "adapter_config.json"), "%s: is a LoRA "
            "adapter: want it merged into its model, in Python model.merge_and_unload().save_pretrained(DIR)", path);
    if (is_dir && !checkpoint_has_model(path)) {
        find_step(path, ANY_FILES, INT64_MAX, &last);
        const int64_t newest = find_step(path, TO_LOAD, INT64_MAX, &found);
        REQUIRE(newest >= 0, "%s: holds no checkpoint, want config.json and model.safetensors (GPT-2's: start "
                "scripts/download_gpt2.sh again; of pytorch_model.bin: save with safe_serialization=True), or "
                "directories like step-00001000", path);
        const char *missing = checkpoint_missing_file(last.text, 0);
        if (missing && !comm_rank) print_line(stderr, "%s has no %s and is ignored", last.text, missing);
        if (note) pick_best(path, newest, &found, note);
    }
    checkpoint_verify(found.text, 0);
    return format_string("%s", found.text);
}

/* ---- --tokenizer */

Tokenizer *tokenizer_choose(const Settings *s, int is_given, const char *from, int V) {
    Tokenizer *saved = from ? checkpoint_tokenizer(from, V) : NULL;
    const int is_bpe = saved && saved->is_bpe;
    if (!s->tokenizer || (is_bpe && !is_given)) return saved;
    REQUIRE(saved != TOKENIZER_BYTES, "--tokenizer %s: the tokens of %s are bytes; want no --tokenizer", s->tokenizer,
            from);
    Tokenizer *named = tokenizer_open(s->tokenizer);
    if (is_bpe) {
        REQUIRE(bpe_fingerprint(saved) == bpe_fingerprint(named), "--tokenizer %s: not the one of %s; want "
                "no --tokenizer: a checkpoint has its own", s->tokenizer, from);
        bpe_free(named);
        return saved;
    }
    if (from && V - named->v.V >= 128 && !comm_rank)           /* vocabularies are padded to multiples of up to 128 */
        print_line(stderr, "warning: %s: a tokenizer of %d tokens, the model has %d: is it the model's own?",
                   s->tokenizer, named->v.V, V);
    return named;
}
