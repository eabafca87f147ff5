/* llmc/checkpoint/checkpoint.h - A checkpoint is a folder OUT/step-00001000 that HuggingFace's from_pretrained can
   load:
   config.json, model.safetensors (HuggingFace's names and layouts), and, to go on training, optimizer.safetensors
   (both moments: exp_avg.NAME and exp_avg_sq.NAME, in the layout of NAME in model.safetensors, all of them F32; where
   the model is saved in BF16, also the exact parameters, param.NAME) and state.json, which has the XXH64 of both and of
   its own text behind the sums. A head that is not tied is lm_head.weight, and config.json's tie_word_embeddings is
   false. Where the model came with a tokenizer, its files too, and where it is one of bytes, those of such a tokenizer.
   How it comes to be whole or not at all: llmc/checkpoint/run_dir.h. */
#ifndef LLMC_CHECKPOINT_H
#define LLMC_CHECKPOINT_H
#include "../gpt.h"
#include "../optimizer.h"
#include "weights.h"

typedef struct {
    int64_t  step;             /* steps done */
    uint64_t sequences_seen;         /* sequences read: the place in the order of the data */
    int64_t  tokens;           /* targets trained on */
    double   val_loss;         /* the last one measured; NaN = none */
} TrainState;

/* settings: key and value pairs (options) that a resume compares, ended by a NULL key. */
typedef struct { const char *key, *value; } Setting;

/* A tokenizer's files, vocab.json, merges.txt and so on, as they are: nothing here reads them, they go with the model.
   bytes NULL: not there. The first two are tokenizer.json and tokenizer_config.json. */
enum { TOKENIZER_JSON, TOKENIZER_CONFIG_JSON, TOKENIZER_FILES = 6 };
enum { TOKENIZER_FILE_BYTES = 64 << 20 };       /* of one, at most */
typedef struct { struct { unsigned char *bytes; int64_t size; } file[TOKENIZER_FILES]; } TokenizerFiles;

/* All that a checkpoint is made of. Parts that have a copy on the host are written from it. */
typedef struct {
    GPTConfig      config;
    Part           parameters, moments[3];     /* the third: exact parameters, where the first's file rounds */
    int64_t        optimizer_step;
    TrainState     state;
    const Setting *settings;
    const TokenizerFiles *tokenizer;           /* NULL = none */
} Snapshot;
Snapshot checkpoint_snapshot(const GPT *model, const Optimizer *optimizer, const TrainState *state,
                             const Setting *settings);      /* copies nothing */

/* All files of a checkpoint into a folder that is there, durable when the call returns. On a full disk, or a model or
   moment that holds a NaN or an infinity: a line. */
void checkpoint_write(const char *folder, const Snapshot *snapshot);

/* Whether a checkpoint may hold a file of this name, the tokenizer's among them. */
int checkpoint_has_name(const char *name);
int checkpoint_has_model(const char *folder);

/* The first file that to load the model, or to resume, needs and this folder has not; NULL = it has all. */
const char *checkpoint_lacks(const char *folder, int to_resume);

/* Fails in a line when a file of a checkpoint to go on from is cut short or is not what it should be, as far as that
   can be seen without reading all of its numbers. */
void checkpoint_check(const char *checkpoint);

/* Fails in a line when a byte of its model or moments is not the one that was written, by the checksums in state.json;
   a checkpoint of an older version has none. */
void checkpoint_check_sums(const char *checkpoint);

/* Of config.json, checked; where there is none, of the shapes, with heads of 64 channels, and a line that says so.
   untied also where the file has a head that differs from wte, though config.json ties it: then a line says so. */
GPTConfig checkpoint_config(const char *checkpoint);
void checkpoint_load_model(const char *checkpoint, GPT *model);      /* every tensor, of the right shape, or a line */
/* To go on training: both moments, the step count, and the exact parameters where the model's file has them rounded. */
void checkpoint_load_optimizer(const char *checkpoint, GPT *model, Optimizer *optimizer);
TrainState checkpoint_load_state(const char *checkpoint);

/* In memory: the folder may be gone when the next checkpoint is written. Fails in a line on one that is too large. */
TokenizerFiles checkpoint_load_tokenizer(const char *checkpoint);

/* The value a setting had when the checkpoint was written (a new string), or NULL. */
char *checkpoint_setting(const char *checkpoint, const char *key);

#endif
