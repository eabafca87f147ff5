/* checkpoint.h - The files of one checkpoint, a directory OUT/step-00001000 that from_pretrained can load:

     config.json            tie_word_embeddings is false when the head is a tensor of its own, lm_head.weight
     model.safetensors      parameters in F32, with HuggingFace's names and layouts
     optimizer.safetensors  moments in F32, in the layout of NAME: exp_avg.NAME and exp_avg_sq.NAME, of Muon's tensors
                            momentum_buffer.NAME
     state.json             TrainState, the identity of the data, the options that a resume compares
     choices.txt            the choices of kernels/autotune.h; none where nothing was measured
     checksums.xxh64        XXH64 of the files above, for `xxhsum -c checksums.xxh64`
     tokenizer.json, tokenizer_config.json      of a tokenizer of bytes or a BPE

   A model of another program has no state.json and no checksums. llmc/checkpoint/run_dir.h makes writes atomic. */
#pragma once
#include "../train/evaluate.h"
#include "../train/optimizer.h"
#include "../train/spike_detector.h"
#include "weights.h"

/* What a resume needs besides weights and moments. */
typedef struct {
    int64_t       step;             /* steps done, applied or not */
    uint64_t      sequences_seen;   /* position in the data order */
    int64_t       tokens;           /* targets trained on */
    int64_t       val_step;         /* step of the last validation; -1 = none */
    int64_t       optimizer_step;   /* Optimizer.step when it was saved */
    BestLoss      best;             /* over all validations */
    SpikeDetector spikes;
} TrainState;

/* Identity of a token stream: a resume requires the same. "180 tokens, xxh64 0123456789abcdef", or "none". */
typedef struct { char text[80]; } DataId;
DataId data_id(Tokens *tokens);             /* NULL = no stream */
int    data_is(Tokens *tokens, const char *id);     /* earlier versions hashed samples: then by the number alone */

/* Contents of a checkpoint, in host memory. */
typedef struct {
    const GPT    *model;            /* its sizes and its table */
    void         *host[STATES];     /* each as in the table */
    TrainState    state;
    const Option *options;          /* KEPT ones are written */
    Tokenizer    *tokenizer;
    DataId        train, val;
    char         *choices;          /* autotune_text; NULL = none */
} Snapshot;

/* Writes all files into an existing directory; durable when the call returns. Fails on a full disk and when a parameter
   or moment is a NaN or an infinity. */
void checkpoint_write(const char *dir, const Snapshot *snapshot);

/* Removes the files that checkpoint_write wrote, then the directory unless it holds other files, which are never
   removed. dir a link: removes the link. A directory that does not exist is not an error. */
void checkpoint_remove(const char *dir);

int         checkpoint_has_model(const char *dir);
const char *checkpoint_missing_file(const char *dir, int to_resume);   /* the first one; NULL = none is missing */

/* Fails if a file differs from its checksum; called before a load. optimizer.safetensors is read only to_resume. */
void checkpoint_verify(const char *checkpoint, int to_resume);

/* weights_config, with which config.json must agree, and the number of heads of config.json. A head that differs
   from wte is untied, whatever config.json says; prints so. */
GPTConfig checkpoint_config(const char *checkpoint);

/* The tokenizer that the model was trained with. A model of another program: bytes if V is 256, else the BPE of its
   tokenizer files, or ids if they cannot be read; prints why. */
Tokenizer *checkpoint_tokenizer(const char *checkpoint, int V);

/* Adopts the choices, if the checkpoint has any; prints when they are of another version, device, driver or library. */
void       checkpoint_load_choices(const char *checkpoint);
void       checkpoint_load_model(const char *checkpoint, GPT *model);
/* Moments, which an optimizer of the kind `had` wrote, and the number of updates. */
void       checkpoint_load_optimizer(const char *checkpoint, const TrainState *state, OptimizerKind had, Optimizer *o);
TrainState checkpoint_load_state(const char *checkpoint);
Json      *checkpoint_open_state(const char *checkpoint);   /* state.json: also "train", "val" (DataId), "settings" */
