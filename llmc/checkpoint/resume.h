/* llmc/checkpoint/resume.h - What a checkpoint says of its run beside the numbers, and what a run that goes on from
   it takes over,
   compares and refuses. Every function that returns nothing fails in a line where the two do not fit. */
#ifndef LLMC_RESUME_H
#define LLMC_RESUME_H
#include "checkpoint.h"
#include "../corpus.h"
#include "../spike_detector.h"
#include "../options.h"
#include "../tokenizer.h"

/* For a save: every option that a resume looks at, by name; how many tokens either stream has, which is what their
   order depends on, and a hash of them; the tokenizer, the guard's window, and where val_loss was measured. New memory
   that resume_settings_free frees. */
Setting *resume_settings(const Option *table, const Corpus *corpus, Tokenizer tokenizer, const SpikeDetector *guard,
                         int64_t validated_step);
void resume_settings_free(Setting *settings);

/* The newest checkpoint of OUT, checked (checkpoint_check), as a new string. NULL, and a line on stdout, where there is
   none yet: a run was stopped before its first, or a queue script always says --resume. Then it fails when OUT holds a
   step folder that no resume can use, or there is no data to begin with. */
char *resume_find(const char *out, const char *data);

/* Options that are not given take the value they had when the checkpoint was made; FIXED_ON_RESUME must not change. */
void resume_adopt_options(Option *table, const char *checkpoint);

/* data, val_data: what the streams were opened with. */
void resume_require_same_data(const char *checkpoint, const Corpus *corpus, const char *data, const char *val_data);

/* Everything that a run goes on from: weights, moments, and what is returned, which must belong together.
   sequences: of an update. A checkpoint of an older version has no window, it fills anew. */
typedef struct {
    TrainState state;
    SpikeDetector      guard;
    int64_t    validated_step;      /* where state.val_loss was measured */
} Resumed;
Resumed resume_load(const char *checkpoint, GPT *model, Optimizer *optimizer, int64_t sequences);

#endif
