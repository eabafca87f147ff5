/* llmc/resume.h - What a checkpoint says of its run beside the numbers, and what a run that goes on from it takes over,
   compares and refuses. Every function that returns nothing fails in a line where the two do not fit. */
#ifndef LLMC_RESUME_H
#define LLMC_RESUME_H
#include "checkpoint.h"
#include "guard.h"
#include "options.h"
#include "tokens.h"

/* For checkpoint_save: every option that a resume looks at, by name. Returns how many; the settings, which the caller
   ends, and the texts have room for as many as the table has rows. */
int resume_settings(const Option *table, Setting *settings, char (*text)[256]);

/* What is saved of a stream: how many tokens there are, which is what their order depends on, and a hash of them;
   "none" of NULL. */
const char *resume_data_text(const Tokens *tokens, char text[64]);

/* The newest checkpoint of OUT, checked (checkpoint_check), as a new string. NULL, and a line on stdout, where there is
   none yet: a run was stopped before its first, or a queue script always says --resume. Then it fails when OUT holds a
   model that no resume can use, or there is no data to begin with. */
char *resume_find(const char *out, const char *data);

/* Options that are not given take the value they had when the checkpoint was made; FIXED_ON_RESUME must not change. */
void resume_adopt_options(Option *table, const char *checkpoint);

void resume_require_same_sizes(const char *checkpoint, const GPTConfig *had, const GPTConfig *want);

/* key: under which resume_data_text was saved; option and path: what the stream was opened with. */
void resume_require_same_data(const char *checkpoint, const char *key, const Tokens *tokens, const char *option,
                              const char *path);

/* Everything that a run goes on from: weights, moments, and what is returned, which must belong together.
   sequences: of an update. A checkpoint of an older version has no window, it fills anew. */
typedef struct {
    TrainState state;
    Guard      guard;
    int64_t    validated_step;      /* where state.val_loss was measured */
} Resumed;
Resumed resume_load(const char *checkpoint, GPT *model, Optimizer *optimizer, int64_t sequences);

#endif
