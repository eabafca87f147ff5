/* gpt_tensors.h - GPT-2 (Radford et al. 2019) as HuggingFace's GPT2LMHeadModel has it: pre-norm blocks, learned
   position embeddings, tanh GELU, biases; lm_head is tied to wte or separate. Every tensor is declared once, in these
   tables; their sizes, memory and initial values. */
#pragma once
#include "../base/base.h"
#include "../../kernels/ring.h"

/* Activations that the backward pass recomputes instead of keeping them for every block (Chen et al. 2016, arXiv
   1604.06174): the output of the GELU; and those of the layer normalisations in the blocks; and everything else in a
   block, from the residual stream into it. The gradients are the same bit for bit, except where a GEMM contains its
   GELU (gemm_gelu): the recomputed GELU differs from it by rounding. */
typedef enum { RECOMPUTE_NONE, RECOMPUTE_GELU, RECOMPUTE_LAYERNORM, RECOMPUTE_BLOCK } Recompute;

/* OPTIMIZER_MUON: Muon (kernels/muon.h) for the matrices of the blocks, AdamW for the rest. */
typedef enum { OPTIMIZER_ADAMW, OPTIMIZER_MUON } OptimizerKind;

typedef struct {
    int L, NH, C, T;    /* blocks, heads, channels, maximum context */
    DType dtype;        /* computation: F32, or BF16 with master parameters in f32 */
    DType matmul_dtype; /* the products of the blocks in training steps: E4M3 where dtype is BF16; else as dtype */
    int deterministic;  /* same bits in every run */
    int V, Vp;          /* vocabulary; rows of the token table in memory: V rounded up to a multiple of 64 */
    int untied;         /* lm_head is not wte */
    Recompute recompute;
    OptimizerKind optimizer;
    int context_parallel;   /* ranks that share a sequence, in the order of ranks; 0 or 1: each has its own */
    int cache_tokens;   /* TRAIN: tokens of the cache for samples between steps, at most T; 0: no samples */
    float dropout;      /* in training steps, rate (kernels/dropout.h): of the embedding, the attention's P, and what
                           attention and MLP add to the residual stream; 0 = none */
    uint64_t dropout_seed;
    size_t host_bytes;  /* host memory of the copy from which checkpoints are written; 0 = no checkpoints */
} GPTConfig;

typedef enum {
    AS_IS,      /* the file holds what memory holds */
    CONV1D,     /* memory (out, in), file (in, out): HuggingFace's Conv1D */
    VOCABULARY, /* memory Vp rows, file V rows */
    POSITIONS   /* memory T rows; a file with fewer rows is repeated, one with more is cut */
} FileLayout;

typedef enum {
    INIT_ZERO,
    INIT_ONE,
    INIT_NORMAL,    /* N(0, 0.02) */
    INIT_RESIDUAL   /* N(0, 0.02 / sqrt(2 L)): outputs to the residual stream */
} Init;

/* Named tensors in one allocation. Every entry starts at a multiple of 128 elements (256 bytes of BF16): its offset in
   elements is the same in tables of any type. The gaps between parameters, gradients and moments are zero. */
typedef struct {
    char       name[64];    /* the key in a checkpoint */
    Tensor    *field;       /* the struct member of this entry */
    FileLayout layout;
    Init       init;
    int        decay;       /* weight decay applies */
    int        matrices;    /* for Muon, of equal size, one below the other; 0 = none */
    int        watched;     /* included in the search for non-finite values */
    unsigned   phases;      /* shared memory: a bit for each phase with a value in it; 0 = not shared */
    int        same;        /* uses the memory of the entry before */
    size_t     bytes;       /* size in memory, rounded up */
    size_t     offset;      /* bytes from the start of the memory */
} TensorEntry;

typedef struct {
    TensorEntry *entry;
    int    count;
    size_t room;            /* for entries */
    size_t bytes;           /* the whole allocation */
    void  *memory;          /* device address; NULL until placed */
} TensorTable;
Tensor tensor_table_flat(const TensorTable *table, DType dtype);    /* the whole memory as one tensor */

/* matrices: how many lie one below the other, each a matrix to Muon; 0: not for Muon. */
/*      field    name                             shape         in the file  initial value  decay matrices */
#define FIRST_PARAMS(X) \
    X(wte,       "transformer.wte.weight",        SHAPE(Vp, C), VOCABULARY,  INIT_NORMAL,   1, 0) \
    X(wpe,       "transformer.wpe.weight",        SHAPE(T, C),  POSITIONS,   INIT_NORMAL,   1, 0)
#define LAST_PARAMS(X) \
    X(lnfw,      "transformer.ln_f.weight",       SHAPE(C),     AS_IS,       INIT_ONE,      0, 0) \
    X(lnfb,      "transformer.ln_f.bias",         SHAPE(C),     AS_IS,       INIT_ZERO,     0, 0)
/* Only in untied models; in tied ones the field is another view of wte. */
#define HEAD_PARAMS(X) \
    X(lm_head,   "lm_head.weight",                SHAPE(Vp, C), VOCABULARY,  INIT_NORMAL,   1, 0)

/*      field    name after "transformer.h.N."    shape         in the file  initial value  decay matrices */
#define BLOCK_PARAMS(X) \
    X(ln1w,      "ln_1.weight",                   SHAPE(C),     AS_IS,       INIT_ONE,      0, 0) \
    X(ln1b,      "ln_1.bias",                     SHAPE(C),     AS_IS,       INIT_ZERO,     0, 0) \
    X(qkvw,      "attn.c_attn.weight",            SHAPE(3*C, C),CONV1D,      INIT_NORMAL,   1, 3) \
    X(qkvb,      "attn.c_attn.bias",              SHAPE(3*C),   AS_IS,       INIT_ZERO,     0, 0) \
    X(projw,     "attn.c_proj.weight",            SHAPE(C, C),  CONV1D,      INIT_RESIDUAL, 1, 1) \
    X(projb,     "attn.c_proj.bias",              SHAPE(C),     AS_IS,       INIT_ZERO,     0, 0) \
    X(ln2w,      "ln_2.weight",                   SHAPE(C),     AS_IS,       INIT_ONE,      0, 0) \
    X(ln2b,      "ln_2.bias",                     SHAPE(C),     AS_IS,       INIT_ZERO,     0, 0) \
    X(fcw,       "mlp.c_fc.weight",               SHAPE(4*C, C),CONV1D,      INIT_NORMAL,   1, 1) \
    X(fcb,       "mlp.c_fc.bias",                 SHAPE(4*C),   AS_IS,       INIT_ZERO,     0, 0) \
    X(fcprojw,   "mlp.c_proj.weight",             SHAPE(C, 4*C),CONV1D,      INIT_RESIDUAL, 1, 1) \
    X(fcprojb,   "mlp.c_proj.bias",               SHAPE(C),     AS_IS,       INIT_ZERO,     0, 0)

/* dropped: the first level at which all blocks share one tensor; NEVER: only in evaluation, which shares all of them.
   IN_BF16: with products in E4M3 shared at every level, for the backward pass then reads the transposes.
   phases: phases of a micro-step with a value in a shared tensor (gpt_tensors.c). Shared tensors without a common phase
   share memory. SAME: the memory of the row before, which is not read after this one is written. */
/*      field     shape                dtype  dropped              phases (ACT = the model's dtype) */
#define BLOCK_ACTS(X) \
    X(res1,       SHAPE(B, T, C),      ACT,   NEVER,               QKV | ATTENTION | MLP)  /* the residual stream */ \
    X(ln1,        SHAPE(B, T, C),      ACT,   IN_BF16(RECOMPUTE_LAYERNORM), QKV | D_QKV) \
    X(ln1_mean,   SHAPE(B, T),         F32,   RECOMPUTE_BLOCK,     QKV | D_QKV) \
    X(ln1_rstd,   SHAPE(B, T),         F32,   RECOMPUTE_BLOCK,     QKV | D_QKV) \
    X(qkv,        SHAPE(B, T, 3*C),    ACT,   RECOMPUTE_BLOCK,     QKV | ATTENTION | D_ATTENTION) \
    X(atty,       SHAPE(B, T, C),      ACT,   RECOMPUTE_BLOCK,     ATTENTION | D_ATTENTION) \
    X(lse,        SHAPE(B, NH, T),     F32,   RECOMPUTE_BLOCK,     ATTENTION | D_ATTENTION) /* log-sum-exp */ \
    X(att,        SHAPE(kept),         I32,   RECOMPUTE_BLOCK,     ATTENTION | D_ATTENTION) /* opaque, or empty */ \
    X(res2,       SHAPE(B, T, C),      ACT,   RECOMPUTE_BLOCK,     MLP | QKV | FINAL | D_MLP) /* into the MLP */ \
    X(ln2,        SHAPE(B, T, C),      ACT,   IN_BF16(RECOMPUTE_LAYERNORM), MLP | D_MLP) \
    X(ln2_mean,   SHAPE(B, T),         F32,   RECOMPUTE_BLOCK,     MLP | D_MLP) \
    X(ln2_rstd,   SHAPE(B, T),         F32,   RECOMPUTE_BLOCK,     MLP | D_MLP) \
    X(fch,        SHAPE(B, T, 4*C),    ACT,   RECOMPUTE_BLOCK,     MLP | D_MLP)   /* hidden layer before the GELU */ \
    X(gelu,       SHAPE(B, T, 4*C),    ACT,   IN_BF16(RECOMPUTE_GELU), MLP | D_MLP) \
    X(dfch,       SHAPE(B, T, 4*C),    ACT,   IN_BF16(RECOMPUTE_GELU), SAME) \
    X(ln1t,       SHAPE(C, fp8),       E4M3,  RECOMPUTE_LAYERNORM, QKV | D_QKV)   /* fp8 = B T or 0: the transposes */ \
    X(attyt,      SHAPE(C, fp8),       E4M3,  RECOMPUTE_BLOCK,     ATTENTION | D_ATTENTION) \
    X(ln2t,       SHAPE(C, fp8),       E4M3,  RECOMPUTE_LAYERNORM, MLP | D_MLP) \
    X(gelut,      SHAPE(4*C, fp8),     E4M3,  RECOMPUTE_GELU,      MLP | D_MLP) \
    X(qkvw8,      SHAPE(two, 3*C, C),  E4M3,  NEVER,               QKV)           /* two = 2 or 0: a weight, */ \
    X(projw8,     SHAPE(two, C, C),    E4M3,  NEVER,               ATTENTION)     /* then its transpose */ \
    X(fcw8,       SHAPE(two, 4*C, C),  E4M3,  NEVER,               MLP) \
    X(fcprojw8,   SHAPE(two, 4*C, C),  E4M3,  NEVER,               MLP)

/*      field     shape                dtype  phases */
#define MODEL_ACTS(X) \
    X(tokens,     SHAPE(B, T),         I32,   KEPT) \
    X(targets,    SHAPE(B, T),         I32,   KEPT) \
    X(lnf_mean,   SHAPE(B, T),         F32,   KEPT) \
    X(lnf_rstd,   SHAPE(B, T),         F32,   KEPT) \
    X(losses,     SHAPE(B, T),         F32,   KEPT) \
    X(sequence,   SHAPE(word),         I32,   KEPT)     /* dropout: number of the first sequence, 64 bits */ \
    X(position,   SHAPE(positions),    I32,   KEPT)     /* generation: the first token's; where ranks share \
                                                           sequences: each local token's; else empty: 0 */ \
    X(uniform,    SHAPE(samples),      F64,   KEPT)     /* generation: random numbers, */ \
    X(next,       SHAPE(samples),      I32,   KEPT)     /* and the tokens chosen with them */ \
    X(logits,     SHAPE(chunk, Vp),    ACT,   HEAD)         /* a chunk of rows of the head; F32 in evaluation */ \
    X(lnf,        SHAPE(B, T, C),      ACT,   FINAL | HEAD | D_FINAL) \
    X(dlnf,       SHAPE(B, T, C),      ACT,   SAME) \
    X(res,        SHAPE(B, T, C),      ACT,   FINAL | HEAD | D_FINAL)   /* residual stream out of the last block */ \
    X(dres,       SHAPE(B, T, C),      ACT,   ALL & ~FORWARD) \
    X(branch,     SHAPE(B, T, C),      ACT,   ALL & ~(HEAD | D_FINAL))  /* output of attention or MLP */ \
    X(dbranch,    SHAPE(B, T, C),      ACT,   SAME)         /* gradient of the MLP's output, ln2, atty, ln1 */ \
    X(attwork,    SHAPE(work),         F32,   ATTENTION | RECOMPUTATION | D_ATTENTION)  /* scratch of the attention */ \
    X(dqkv,       SHAPE(B, T, 3*C),    ACT,   D_ATTENTION | D_QKV) \
    X(dproj,      SHAPE(B, T, C),      ACT,   SAME)         /* gradient of the projection's output */ \
    X(q8,         SHAPE(fp8, 4*C),     E4M3,  ALL & ~(FINAL | HEAD | D_FINAL))  /* operand of the next product */ \
    X(dout8t,     SHAPE(fp8, 4*C),     E4M3,  ALL & ~FORWARD)   /* the transpose, where it is a gradient */

#define FIELD(field, ...) Tensor field;
typedef struct { BLOCK_PARAMS(FIELD) } BlockParams;
typedef struct {
    FIRST_PARAMS(FIELD) LAST_PARAMS(FIELD) HEAD_PARAMS(FIELD)
    BlockParams *block;
    TensorTable  table;
    int64_t     *group_start;      /* each group's, and the end: elements from the start of the memory */
    int          groups, group_blocks;      /* groups, and blocks in one */
} Params;
typedef struct {
    BLOCK_ACTS(FIELD)
    Tensor cache;                  /* generation: k and v of all tokens so far, (B, context, 2C) */
    Tensor kv;                     /* k and v that the attention reads: views of qkv, or the cache */
} BlockActs;

typedef struct {
    MODEL_ACTS(FIELD)
    BlockActs   *block;
    TensorTable  table;
} Acts;
#undef FIELD

/* The parameters are stored in groups, which one collective operation each reduces or gathers: FIRST_GROUP = wte and
   wpe, 0 .. L-1 = the blocks, L = ln_f and, where untied, lm_head. A group starts at a multiple of 128 elements times
   the number of ranks, so that slices of equal size begin at multiples of 128. With Muon one operation takes a block
   for each rank, L rounded up, so that a slice has whole matrices. */
enum { FIRST_GROUP = -1 };
typedef void GroupHook(void *context, int group);

typedef enum { EVALUATE, TRAIN, GENERATE } Purpose;

typedef struct {
    GPTConfig        config;
    Purpose          purpose;
    const char      *attention_name;   /* "auto", "flash", ... */
    const Attention *attention;    /* chosen for the current batch */
    AttentionSpec    spec;         /* current batch, this rank's tokens */
    Ring             ring;         /* current batch, where ranks share its sequences; else size is 0 */
    Params           params;       /* what the ops read, in config.dtype */
    Params           master;       /* in f32; the same as params where dtype is F32; with several ranks and BF16 in the
                                      memory of grads during loads and saves (llmc/train/optimizer.h) */
    Params           grads;        /* f32; none when evaluating */
    Acts             acts;
    size_t           act_bytes;    /* allocated for activations */
    int              context;      /* tokens that the cache has room for */
    int              cached;       /* sequences in the cache; 0 = none, the activations are those of a batch */
    DeviceGraph      step;         /* gpt_next after a single token */
    const int32_t   *loaded;       /* host memory of the last batch of gpt_load */
    float            dropout;      /* that batch's */
    int              fp8;          /* that batch's products of the blocks are in E4M3 */
    int              weights_kept; /* their E4M3 weights are those of the last gpt_forward of this shape, kept */
    GroupHook       *before_group; /* called before gpt_forward first reads a group; NULL = none */
    void            *before_context;
} GPT;

int  gpt_named(const char *name, GPTConfig *config);     /* sets L, NH, C and T, the rest 0; returns 0 if unknown */
void gpt_check(GPTConfig *config);      /* fails on sizes below 1, C not divisible by NH, ...; sets Vp */

/* How the ranks split sequences of config->T tokens; ring_copy_local (kernels/ring.h) copies this rank's. */
RingSplit gpt_split(const GPTConfig *config);
int       gpt_local_tokens(const GPTConfig *config);    /* this rank's part of T; T where ranks share none */
int       gpt_groups(const GPTConfig *config);          /* groups of ranks that share sequences */

int64_t gpt_parameter_count(const GPTConfig *config);     /* without padding */
/* A training step: 6 N + 12 L C T (PaLM, arXiv 2204.02311, B); N counts one of wte and a separate lm_head. */
double  gpt_flops_per_token(const GPTConfig *config);

typedef struct {
    size_t      bytes, workspace;   /* activations; the part of them that blocks and phases share */
    const char *attention;          /* "flash", ... */
} ActPlan;
/* This rank's moments, with Muon v without the matrices, and scratch for those of `batch` blocks; scratch to
   reduce-scatter the gradients of any group. */
typedef struct { size_t m, v, scratch, reduce; int batch; } OptimizerMemory;
size_t  gpt_param_bytes(const GPTConfig *config, DType dtype);    /* parameters in dtype, with padding */
OptimizerMemory gpt_optimizer_memory(const GPTConfig *config);
ActPlan gpt_act_plan(const GPTConfig *config, const char *attention, int B, int T, Purpose purpose);

/* memory: NULL = new, zeroed. */
void   params_create(Params *params, const GPTConfig *config, DType dtype, void *memory, const char *what);
void   params_free(Params *params);
Tensor params_group(const Params *params, int index, DType dtype);      /* from 0 in the order of memory, flat */

/* Allocates on the device for batches of B sequences of T tokens: to GENERATE, with a cache of as many; to TRAIN, also
   for one of config.cache_tokens of one sequence, in the same memory. Where ranks share sequences, T counts the tokens
   of this rank, here and in gpt_set_batch. */
void gpt_create(GPT *m, GPTConfig config, const char *attention, int B, int T, Purpose purpose);

/* HuggingFace's initial weights, a function of the seed and the tensor's index in the table. */
void gpt_init(GPT *m, uint64_t seed);

/* Moves every weight but zeros by one ulp of config.dtype: the loss curve of this noise twin differs from that of the
   original as rounding alone makes it differ. F32: away from zero. BF16: up and down in turn, as 0.4 to 0.8 % in one
   direction is another model (a small one's means over 20 steps differ by 0.010 at step 40 already, else by 0.002). */
void gpt_perturb(GPT *m);
void gpt_cast_params(GPT *m);       /* params = master, rounded to config.dtype; after every write to master */

/* Sets the shapes of the activations: B sequences of T tokens. Fails where they need more memory than was allocated, as
   a smaller batch can (gpt_act_plan). */
void gpt_set_batch(GPT *m, int B, int T);

/* Until gpt_set_batch, for generation, the activations' memory holds an empty cache of k and v of B sequences of up to
   `context` tokens in every block, and the activations of one block. Fails where gpt_create allocated less. Ranks that
   share sequences each have a cache of whole sequences. gpt_set_window sets the next batch: T tokens of each sequence
   at positions first .. first + T - 1; the cache holds the earlier ones, and gpt_forward appends these. */
void gpt_set_cache (GPT *m, int B, int context);
void gpt_set_window(GPT *m, int first, int T);
