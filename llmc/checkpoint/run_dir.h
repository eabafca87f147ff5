/* run_dir.h - OUT, the directory of one run: its lock, and its checkpoints OUT/step-00001000. A checkpoint is written
   as step-00001000.partial, on a file system without locks .partial-HOST-PID, which no other run removes, synced and
   renamed, so it exists completely or not at all. OUT/best is a link to the one of the lowest val loss. */
#pragma once
#include "checkpoint.h"

typedef struct {
    const char *path;          /* NULL = nothing is kept */
    int         lock;          /* file descriptor of the directory, locked where possible; 0 = not open */
    const char *partial;       /* end of the name of a checkpoint that is being written or removed */
} RunDir;

/* The directory of --out, none for "none". out NULL: runs/NAME with the name of the text, without its extension, or of
   the directory of shards and patterns. Unless dry_run, an existing one is locked until the process ends. Fails while
   another process has the lock, and without resume if the directory has a checkpoint or a log. */
RunDir run_dir_choose(const char *out, const char *data, int resume, int dry_run);

/* Makes and locks the directory unless it is locked. */
void run_dir_open(RunDir *dir);

Path run_dir_checkpoint(const RunDir *dir, int64_t step);        /* OUT/step-N */

/* Writes OUT/step-N; durable when the call returns. Replaces one that lacks files for a resume; fails where there is a
   complete one, or a file of a user in it. Fails when OUT was moved or removed since it was locked, as run_dir_clean
   does. */
void run_dir_write(const RunDir *dir, const Snapshot *snapshot);

/* Removes what this run, with a lock also an earlier one, left in step-N.partial. Then, unless state is NULL, OUT/best
   becomes a link to the checkpoint of the best; of the complete ones up to state->step are removed the outdated best,
   and if keep > 0 all but the newest `keep` and the best. A file of a user is never removed: it stays in
   step-N.partial. Fails in the end where best is no link, or links are refused. */
void run_dir_clean(const RunDir *dir, const TrainState *state, int64_t keep);

/* The newest checkpoint with the files that are needed, older than the checkpoint `before` unless that is NULL: a new
   string; NULL = none. */
typedef enum { ANY_FILES, TO_LOAD, TO_RESUME } Need;
char *run_dir_find(const char *out, Need need, const char *before);

/* Directory (a new string) of a CHECKPOINT argument: a directory with a model, a run directory, or a path of
   model.safetensors or model.safetensors.index.json. Of a run: its newest model, and incomplete newer ones are reported
   on stderr; with a note the one that OUT/best links to, if that is there. *note: a line that names it (a new string);
   NULL if path is not a run directory. Fails for anything else, and at a wrong checksum. */
char *run_dir_resolve(const char *path, char **note);

/* The tokenizer of the checkpoint `from`, a model of V tokens; if it has none, that of --tokenizer; NULL if there is
   neither. is_given: --tokenizer is on the command line: fails unless it is the checkpoint's; otherwise its directory
   is not read where the checkpoint has a BPE. */
Tokenizer *tokenizer_choose(const Settings *settings, int is_given, const char *from, int V);
