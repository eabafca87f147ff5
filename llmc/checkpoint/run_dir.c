#include "run_dir.h"
#include "../files.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- Finding one */

static Path step_path(const char *out, int64_t step, const char *tail) {
    return path_at("%s/step-%08" PRId64 "%s", out, step, tail);
}

typedef enum { TO_LOOK_AT, TO_LOAD, TO_RESUME } Need;

static int has(const char *folder, Need need) {
    return need == TO_LOOK_AT ? file_is_folder(folder) : !checkpoint_lacks(folder, need == TO_RESUME);
}

/* The number of a name like step-00000020 and tail: the name must be the one that its number would be given. -1 for any
   other. */
static int64_t step_of(const char *name, const char *tail) {
    char same[80];
    if (strncmp(name, "step-", 5) || name[5] < '0' || name[5] > '9') return -1;
    int64_t step = strtoll(name + 5, NULL, 10);
    snprintf(same, sizeof same, "step-%08" PRId64 "%s", step, tail);
    return strcmp(name, same) ? -1 : step;
}

static int from_the_highest(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* The steps whose names in OUT have this tail, highest first, to be freed. A folder that is not there has none. */
static int64_t *list_steps(const char *out, const char *tail, int *count) {
    *count = 0;
    DIR *directory = opendir(out);
    if (!directory && (errno == ENOENT || errno == ENOTDIR)) return NULL;
    REQUIRE(directory, "%s: cannot open the folder: %s", out, strerror(errno));
    int64_t *steps = NULL;
    for (struct dirent *entry; errno = 0, (entry = readdir(directory)); ) {
        int64_t step = step_of(entry->d_name, tail);
        if (step < 0) continue;
        if ((*count & (*count - 1)) == 0) {              /* full at 0, 1, 2, 4, 8, ... */
            steps = realloc(steps, (*count ? 2 * (size_t)*count : 1) * sizeof *steps);
            REQUIRE(steps, "%s: out of memory for the names of %d checkpoints", out, *count);
        }
        steps[(*count)++] = step;
    }
    int error = errno;
    closedir(directory);
    REQUIRE(!error, "%s: cannot read the folder: %s", out, strerror(error));
    if (steps) qsort(steps, (size_t)*count, sizeof *steps, from_the_highest);
    return steps;
}

typedef struct { int64_t step; int is_old; } Place;

static const char *const tails[] = { "", ".old" };
static Path place_path(const char *out, Place p) { return step_path(out, p.step, tails[p.is_old]); }

/* The highest step of OUT that is complete and stands below another, step-N.old below step-N; step -1 = none. */
static Place newest_before(const char *out, Need need, Place before) {
    Place best = { -1, 0 };
    for (int old = 0; old < 2; old++) {
        int count;
        int64_t *steps = list_steps(out, tails[old], &count);
        for (int i = 0; i < count && steps[i] > best.step; i++) {
            Place p = { steps[i], old };
            if (p.step > before.step || (p.step == before.step && p.is_old <= before.is_old)) continue;
            if (has(place_path(out, p).text, need)) best = p;
        }
        free(steps);
    }
    return best;
}

static char *newest(const char *out, Need need) {
    Place best = newest_before(out, need, (Place){ INT64_MAX, -1 });
    return best.step < 0 ? NULL : format_string("%s", place_path(out, best).text);
}

char *steps_latest(const char *out)  { return newest(out, TO_RESUME); }
char *steps_any(const char *out)     { return newest(out, TO_LOAD); }
char *steps_highest(const char *out) { return newest(out, TO_LOOK_AT); }

static void check(void *folder) {
    checkpoint_check(folder);
    checkpoint_check_sums(folder);
}

char *steps_earlier(const char *out, const char *checkpoint, char damaged[FAIL_LENGTH]) {
    const char *slash = strrchr(checkpoint, '/'), *name = slash ? slash + 1 : checkpoint;
    int is_old = ends_with(name, tails[1]);
    Place before = { step_of(name, tails[is_old]), is_old };
    char why[FAIL_LENGTH];
    size_t length = 0;
    *damaged = 0;
    while ((before = newest_before(out, TO_RESUME, before)).step >= 0) {
        Path folder = place_path(out, before);
        if (!fails(check, folder.text, why)) return format_string("%s", folder.text);
        if (length < FAIL_LENGTH / 2)
            length += (size_t)snprintf(damaged + length, FAIL_LENGTH - length, " and %s",
                                       folder.text + strlen(out) + 1);
    }
    return NULL;
}

/* ---- Writing one */

/* What somebody else has put into a checkpoint that another has replaced, notes or results, goes into the new one,
   unless that has something of the same name. */
static void move_foreign_files(const char *old, const char *step) {
    struct stat info;
    DIR *directory = lstat(old, &info) == 0 && S_ISDIR(info.st_mode) ? opendir(old) : NULL;
    if (!directory) return;
    int error = 0, moved = 0;
    for (struct dirent *entry; !error && (errno = 0, (entry = readdir(directory))); ) {
        const char *name = entry->d_name;
        if (!strcmp(name, ".") || !strcmp(name, "..") || checkpoint_has_name(name)) continue;
        Path from = path_at("%s/%s", old, name), to = path_at("%s/%s", step, name);
        if (file_exists(to.text)) continue;
        error = rename(from.text, to.text) ? errno : 0;
        moved++;
    }
    if (!error) error = errno;
    closedir(directory);
    REQUIRE(!error, "%s: cannot move its files to %s: %s", old, step, strerror(error));
    if (moved) directory_sync(step);
}

typedef struct { const char *out, *tail; int64_t step; } Removal;

static void remove_step(void *removal) {
    const Removal *r = removal;
    Path from = step_path(r->out, r->step, r->tail), gone = step_path(r->out, r->step, *r->tail ? r->tail : ".partial");
    if (!strcmp(r->tail, ".old")) move_foreign_files(gone.text, step_path(r->out, r->step, "").text);
    if (!*r->tail) {
        directory_remove(gone.text);
        file_rename(from.text, gone.text);
    }
    directory_remove(gone.text);
}

void steps_write(const char *out, const Snapshot *s) {
    Path step = step_path(out, s->state.step, ""), partial = step_path(out, s->state.step, ".partial");
    Path old = step_path(out, s->state.step, ".old");
    Removal replaced = { out, ".old", s->state.step };

    directory_make(out);
    directory_remove(partial.text);
    directory_make(partial.text);
    checkpoint_write(partial.text, s);

    /* A folder cannot be renamed over another: between the two renames the old one still counts (newest_before). */
    if (file_exists(step.text)) {
        remove_step(&replaced);
        file_rename(step.text, old.text);
    }
    file_rename(partial.text, step.text);
    char left[FAIL_LENGTH];                 /* the new one is there: what stays of the old is for steps_sweep */
    if (file_exists(old.text)) fails(remove_step, &replaced, left);
}

void steps_save(const char *out, const GPT *model, const Optimizer *optimizer, const TrainState *state,
                const Setting *settings) {
    Snapshot snapshot = checkpoint_snapshot(model, optimizer, state, settings);
    steps_write(out, &snapshot);
}

/* ---- Removing old ones */

static int is_ours_alone(const char *folder) {
    struct stat info;
    DIR *directory = lstat(folder, &info) == 0 && S_ISDIR(info.st_mode) ? opendir(folder) : NULL;
    if (!directory) return 0;
    int ours = 1;
    for (struct dirent *entry; errno = 0, (entry = readdir(directory)); )
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") && !checkpoint_has_name(entry->d_name)) ours = 0;
    if (errno) ours = 0;
    closedir(directory);
    return ours;
}

/* One that cannot be removed is no obstacle to the others: the first failure is told at the end. Frees steps. */
static void remove_steps(const char *out, const char *tail, int64_t *steps, int count) {
    char why[FAIL_LENGTH], first[FAIL_LENGTH] = "";
    for (int i = 0; i < count; i++)
        if (fails(remove_step, &(Removal){ out, tail, steps[i] }, why) && !*first) memcpy(first, why, sizeof first);
    free(steps);
    REQUIRE(!*first, "%s", first);
}

void steps_prune(const char *out, int64_t step, int64_t keep, int64_t keep_every) {
    if (!keep) return;
    int count, old = 0;
    int64_t *steps = list_steps(out, "", &count), seen = 0;
    for (int i = 0; i < count; i++) {
        Path folder = step_path(out, steps[i], "");
        if (steps[i] > step || !has(folder.text, TO_RESUME) || !is_ours_alone(folder.text) || seen++ < keep)
            continue;
        if (!keep_every || steps[i] % keep_every) steps[old++] = steps[i];
    }
    remove_steps(out, "", steps, old);
}

void steps_sweep(const char *out) {
    int count, replaced = 0;
    int64_t *steps = list_steps(out, ".partial", &count);
    remove_steps(out, ".partial", steps, count);
    steps = list_steps(out, ".old", &count);
    for (int i = 0; i < count; i++) {
        Path step = step_path(out, steps[i], ""), old = step_path(out, steps[i], ".old");
        if (has(step.text, TO_RESUME)) steps[replaced++] = steps[i];
        else if (!file_exists(step.text) && has(old.text, TO_RESUME)) file_rename(old.text, step.text);
    }
    remove_steps(out, ".old", steps, replaced);
}

/* ---- A CHECKPOINT argument */

char *steps_resolve(const char *path) {
    REQUIRE(file_exists(path), "%s: no such file or folder: want a checkpoint", path);
    if (!file_is_folder(path)) {
        FileMap map = file_map(path);
        const char *kind = file_kind(map.bytes, map.size), *slash = strrchr(path, '/');
        file_unmap(map);
        const char *name = slash ? slash + 1 : path;
        REQUIRE(!strcmp(name, "model.safetensors") || !strcmp(name, "model.safetensors.index.json"),
                "%s: is %s, want a checkpoint: a folder with model.safetensors, or the index of its shards", path,
                kind ? kind : "a file of an unknown kind");
        return file_folder(path);
    }
    char *folder = format_string("%s", path);
    for (size_t n = strlen(folder); n > 1 && folder[n - 1] == '/'; n--) folder[n - 1] = 0;
    REQUIRE(!ends_with(folder, ".partial"), "%s: is a checkpoint that was not finished: take an earlier one", path);
    if (checkpoint_has_model(folder)) return folder;
    char *step = newest(folder, TO_LOAD);
    REQUIRE(step, "%s: holds no checkpoint, want %s", path,
            file_exists(path_at("%s/pytorch_model.bin", folder).text) ? "model.safetensors in place of "
            "pytorch_model.bin: save it with safe_serialization=True" : "config.json and model.safetensors, or folders "
            "like step-00001000");
    free(folder);
    return step;
}
