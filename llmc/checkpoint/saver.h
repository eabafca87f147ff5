/* llmc/checkpoint/saver.h - Checkpoints written beside the training: a save costs the loop a copy to the host, a
   thread writes it.
   A failed write (a full disk, a quota, a broken one) does not end the run: its partial folder is removed, earlier
   checkpoints stay, and the next save tries again. */
#ifndef LLMC_SAVER_H
#define LLMC_SAVER_H
#include <pthread.h>
#include "../../kernels/check.h"
#include "checkpoint.h"
#include "../folder.h"

typedef struct {
    char            *out;
    const GPT       *model;
    const Optimizer *optimizer;
    int64_t          keep, keep_every;     /* as in steps_prune, done when the new one is durable */
    const TokenizerFiles *tokenizer;       /* go into every checkpoint; set by the caller, NULL = none */
    Folder          *folder;               /* OUT, kept before each save; set by the caller, NULL = nobody's */
    void            *host[3];              /* parameters, first and second moments */
    Snapshot         snapshot;             /* that is being written */
    Setting         *settings;             /* its own */
    pthread_t        thread;
    int              running;
    int              failed;               /* the last save is not on the disk; valid when none is being written */
    double           seconds;              /* that the last save took to write; before one did, on a disk of 200 MB/s */
    double           took;                 /* the thread's own */
    char             message[FAIL_LENGTH]; /* what went wrong with it, until saver_error has told it */
} Saver;

/* Of host memory that saver_open takes: the parameters and both moments in f32. */
size_t saver_host_bytes(const GPTConfig *config);

/* Of one checkpoint, but for the small files. */
double saver_file_bytes(const GPTConfig *config);

/* Also removes what a kill left in OUT (steps_sweep), whose lock is held. */
void saver_open(Saver *saver, const char *out, const GPT *model, const Optimizer *optimizer, int64_t keep,
                int64_t keep_every);

/* Copies all that there is to save and returns while it is being written. While an earlier save is, that one is waited
   for first: returns the seconds of it. Whoever may leave a save out asks saver_busy before, whoever wants to tell an
   error of the earlier one calls saver_wait and saver_error before. */
double saver_start(Saver *saver, const TrainState *state, const Setting *settings);
int    saver_busy(Saver *saver);
double saver_wait(Saver *saver);           /* until nothing is being written; seconds */

/* One line about the last save, told once; NULL when there is nothing to tell. It is "step 20 is not saved: ..." where
   saver->failed, else "step 20 is saved, but ..." when an old checkpoint could not be removed. */
const char *saver_error(Saver *saver);

void saver_close(Saver *saver);            /* waits, frees */

#endif
