/* settings.h - The options of train_gpt. Every option is declared once, in this table: it makes the field of Settings,
   the row that the parser and --help read (options.h), and the entry in settings.txt and in checkpoints. The option's
   name is the field's with '-' for '_'; role is OptionRole in options.h. */
#ifndef LLMC_SETTINGS_H
#define LLMC_SETTINGS_H
#include "options.h"

#define VERSION "train_gpt 0.1"

/* The words of choices, in the order of the enum beside each. */
#define DOCUMENT_NAMES   "file|line|mark|jsonl"                 /* DocumentKind, text/texts.h */
#define TASK_NAMES       "hellaswag|lambada|multiple-choice"    /* use/tasks.h */
#define RECOMPUTE_NAMES  "none|gelu|layernorm|block"            /* Recompute, model/gpt_tensors.h */
#define SCHEDULE_NAMES   "cosine|linear|wsd"                    /* ScheduleKind, train/schedule.h */
#define RING_ORDER_NAMES "zigzag|striped|contiguous"            /* RingOrder, kernels/ring.h */
#define MODEL_NAMES      "d2, d4, d6, d8, d12 = gpt2 (124M), d24 = gpt2-medium (355M), d36 = gpt2-large (774M), " \
                         "d48 = gpt2-xl (1558M)"

/*    type     field          default    values              role help */
#define SETTINGS(GROUP, X) \
    GROUP("What to do (without --eval or --sample: train)") \
    X(TEXT,    data,          NULL,      ARGUMENT("FILE"),   KEPT, \
      "a text (its bytes are the tokens, without --tokenizer) or token shards, 'dir/train_*.bin'") \
    X(TEXT,    val_data,      NULL,      ARGUMENT("FILE"),   KEPT, \
      "text or shards to validate on; without it, the last part of a text") \
    X(TEXT,    tokenizer,     NULL,      ARGUMENT("DIR"),    KEPT, \
      "byte-level BPE for texts: GPT-2's or HuggingFace's files, or a run with them") \
    X(CHOICE,  documents,     "file",    CHOICES(DOCUMENT_NAMES), KEPT, \
      "what a document is; mark: text up to <|endoftext|>") \
    X(TEXT,    field,         "text",    ARGUMENT("NAME"),   KEPT, "of a JSONL object: the member with the text") \
    X(REAL,    val_fraction,  "0.1",     RANGE(0, 0.9),      KEPT, \
      "last part of a text, for validation; if given, also for --eval") \
    X(TEXT,    out,           NULL,      ARGUMENT("DIR"),    COMMAND, \
      "of log and checkpoints; none = no files (default runs/NAME of the data); of --task: a file, JSON per item") \
    X(FLAG,    resume,        NULL,      NO_ARGUMENT,        COMMAND, \
      "continue a run, --resume runs/book; options that are given win") \
    X(TEXT,    init,          NULL,      ARGUMENT("CHECKPOINT"), KEPT, \
      "start from the weights of a checkpoint; a longer --context repeats its position table") \
    X(TEXT,    eval,          NULL,      ARGUMENT("CHECKPOINT"), COMMAND, \
      "only print the loss on --val-data, or else on all of --data") \
    X(CHOICE,  task,          NULL,      CHOICES(TASK_NAMES), COMMAND, \
      "--eval: accuracy on {\"context\": \"1 +\", \"choices\": [\"1\", ..], \"label\": 0}") \
    X(TEXT,    sample,        NULL,      ARGUMENT("CHECKPOINT"), COMMAND, "only print text that starts with --prompt") \
    X(CHOICE,  checkpoint,    NULL,      CHOICES("best|last"), COMMAND, \
      "--eval, --sample of a run: lowest val loss (default), or newest") \
    X(INTEGER, profile,       "0",       RANGE(0, 1000),     COMMAND, \
      "only print the time of every op, over N steps; 20 is usual") \
    X(TEXT,    config,        NULL,      ARGUMENT("FILE"),   COMMAND, \
      "read options from a file, such as DIR/settings.txt") \
    X(FLAG,    dry_run,       NULL,      NO_ARGUMENT,        COMMAND, "print settings and memory plan, and exit") \
    X(FLAG,    version,       NULL,      NO_ARGUMENT,        COMMAND, "print the version, and exit") \
    X(FLAG,    help,          NULL,      NO_ARGUMENT,        COMMAND, "or -h: print this, and exit") \
    \
    GROUP("Model") \
    X(TEXT,    model,         NULL,      ARGUMENT("NAME"),   KEPT, \
      "one of " MODEL_NAMES " (default d4, or the checkpoint's)") \
    X(INTEGER, layers,        "0",       RANGE(0, 1000),     KEPT, "blocks; 0 = as in --model") \
    X(INTEGER, heads,         "0",       RANGE(0, 65536),    KEPT, "attention heads; 0 = as in --model") \
    X(INTEGER, channels,      "0",       RANGE(0, 65536),    KEPT, "width; 0 = as in --model") \
    X(INTEGER, context,       "0",       RANGE(0, 1 << 24),  KEPT, \
      "tokens of a sequence, at most; 0 = 256, or 1024 from d12 up") \
    X(INTEGER, vocab,         "0",       RANGE(0, 1 << 24),  KEPT, \
      "vocabulary; 0 = 256 (bytes), the tokenizer's, 50257 for shards") \
    X(CHOICE,  dtype,         "f32",     CHOICES("f32|bf16"), KEPT, "precision of the computation") \
    X(CHOICE,  attention,     "auto",    CHOICES("auto|flash|naive"), KEPT, \
      "flash needs O(T) memory, naive O(T^2); auto = the fastest") \
    X(CHOICE,  recompute,     "none",    CHOICES(RECOMPUTE_NAMES), KEPT, \
      "activations, instead of keeping them: less memory, slower") \
    X(FLAG,    deterministic, "no",      NO_ARGUMENT,        KEPT, \
      "the same bits in every run, also of flash attention on a GPU") \
    \
    GROUP("Training") \
    X(INTEGER, steps,         "2000",    RANGE(0, 1e12),     KEPT, "updates") \
    X(INTEGER, batch,         "16",      RANGE_OR_AUTO(1, 1 << 20), KEPT, \
      "sequences of a micro-batch; auto = the largest that fits, up to --total-batch or else 64Ki tokens, " \
      "on a CPU up to 16") \
    X(INTEGER, total_batch,   "0",       RANGE(0, 1e12),     KEPT, \
      "tokens of an update, from several micro-batches; 0 = from one") \
    X(REAL,    lr,            "0.001",   RANGE(0, 1e6),      KEPT, \
      "peak learning rate; 6e-4 is usual for d12") \
    X(REAL,    min_lr,        NULL,      RANGE(0, 1e6),      KEPT, \
      "learning rate at the end (default a tenth of --lr)") \
    X(CHOICE,  schedule,      "cosine",  CHOICES(SCHEDULE_NAMES), KEPT, \
      "of --lr; wsd = constant, then linear over --decay") \
    X(INTEGER, warmup,        "100",     RANGE(0, 1e12),     KEPT, "steps of linear warm-up") \
    X(INTEGER, decay,         "0",       RANGE(0, 1e12),     KEPT, "steps of decay of wsd; 0 = a fifth of all") \
    X(REAL,    weight_decay,  "0.1",     RANGE(0, 1e3),      KEPT, "of AdamW, on matrices only") \
    X(REAL,    beta1,         "0.9",     RANGE(0, 0.999999), KEPT, "of AdamW") \
    X(REAL,    beta2,         "0.95",    RANGE(0, 0.999999), KEPT, "of AdamW") \
    X(REAL,    eps,           "1e-8",    RANGE(1e-12, 1),    KEPT, "of AdamW") \
    X(REAL,    clip,          "1",       RANGE(0, 1e9),      KEPT, "maximum gradient norm; 0 = no clipping") \
    X(REAL,    dropout,       "0",       RANGE(0, 0.95),     KEPT, \
      "rate of dropout in training; 0.2 is usual for small data") \
    X(REAL,    attention_dropout, NULL,  RANGE(0, 0.95),     KEPT, "of attention probabilities (default --dropout)") \
    X(REAL,    residual_dropout,  NULL,  RANGE(0, 0.95),     KEPT, \
      "of the outputs of attention and MLP (default --dropout)") \
    X(REAL,    embedding_dropout, NULL,  RANGE(0, 0.95),     KEPT, "of the embedding (default --dropout)") \
    X(CHOICE,  on_nan,        "stop",    CHOICES("stop|skip"), KEPT, \
      "after a NaN or infinity; the update is not applied") \
    X(REAL,    skip_spikes,   "0",       RANGE(0, 1e6),      KEPT, \
      "skip updates over N standard deviations; try 6; 0 = none") \
    X(INTEGER, seed,          "1",       RANGE(0, 9e15),     KEPT, \
      "of weights, data order, dropout and samples; --sample draws one") \
    X(FLAG,    perturb,       "no",      NO_ARGUMENT,        KEPT, \
      "move the initial weights by one ulp: a noise twin (make compare)") \
    X(INTEGER, threads,       "0",       RANGE(0, 4096),     FREE, \
      "of the CPU, without effect on the results; 0 = one per core") \
    X(TEXT,    time_limit,    NULL,      ARGUMENT("TIME"),   FREE, \
      "3h50m or 90s: save and exit with 75, as SIGTERM does; SIGUSR1 only saves") \
    \
    GROUP("Validation, log, checkpoints, samples") \
    X(INTEGER, val_every,     "250",     RANGE(0, 1e12),     KEPT, "steps between validations; 0 = only at the end") \
    X(INTEGER, val_tokens,    "1048576", RANGE(0, 1e15),     KEPT, "validate on the first N tokens; 0 = all") \
    X(INTEGER, log_every,     "0",       RANGE(0, 1e12),     FREE, \
      "steps between printed lines; 0 = about ten lines a minute") \
    X(INTEGER, save_every,    "1000",    RANGE(0, 1e12),     KEPT, \
      "steps between checkpoints; 0 = only the best and the last") \
    X(INTEGER, early_stop,    "0",       RANGE(0, 1e12),     KEPT, \
      "stop after N validations without a new best val loss; 0 = never") \
    X(CHOICE,  save_dtype,    "f32",     CHOICES("f32|bf16"), KEPT, \
      "of model.safetensors; a resume is exact with both") \
    X(INTEGER, keep,          "0",       RANGE(0, 1e12),     KEPT, \
      "keep the best and the newest N checkpoints; 0 = all") \
    X(INTEGER, keep_every,    "0",       RANGE(0, 1e12),     KEPT, \
      "keep those whose step is a multiple of N as well; 0 = none") \
    X(INTEGER, sample_every,  "0",       RANGE(0, 1e12),     KEPT, "steps between samples; 0 = none") \
    X(TEXT,    prompt,        "",        ARGUMENT("TEXT"),   KEPT, \
      "start of a sample, with \\n, \\t; - = stdin; ids where no tokenizer is known") \
    X(TEXT,    prompt_file,   NULL,      ARGUMENT("FILE"),   COMMAND, \
      "start of --sample: a file, less one newline at its end") \
    X(INTEGER, num_samples,   "1",       RANGE(1, 65536),    COMMAND, "of --sample, side by side") \
    X(FLAG,    interactive,   "no",      NO_ARGUMENT,        COMMAND, \
      "--sample continues what you type; Ctrl-C ends an answer, then the program") \
    X(INTEGER, sample_tokens, "200",     RANGE(1, 1e9),      KEPT, "length of a sample") \
    X(REAL,    temperature,   "0.8",     RANGE(0, 100),      KEPT, "of sampling; 0 = always the most likely token") \
    X(INTEGER, top_k,         "0",       RANGE(0, 1 << 24),  KEPT, "sample among the k most likely tokens; 0 = all") \
    X(REAL,    top_p,         "1",       RANGE(1e-9, 1),     KEPT, \
      "the fewest tokens that add up to p, usually 0.9; 1 = all") \
    X(REAL,    min_p,         "0",       RANGE(0, 1),        KEPT, \
      "tokens at least p times as likely as the top one; 0 = all") \
    \
    GROUP("Several GPUs (torchrun and srun start the processes themselves, without --gpus)") \
    X(TEXT,    gpus,          "1",       ARGUMENT("N|all"),  FREE, "GPUs of this machine to train on, a process each") \
    X(INTEGER, context_parallel, "1",    RANGE(1, 4096),     FREE, \
      "ranks that share a sequence, for contexts too long for a GPU") \
    X(CHOICE,  ring_order,    "zigzag",  CHOICES(RING_ORDER_NAMES), FREE, \
      "tokens of a rank; contiguous shares the work unequally") \
    X(INTEGER, zero,          "1",       RANGE(0, 1),        FREE, \
      "1 = each rank keeps its part of the optimizer's memory (ZeRO-1)") \
    X(INTEGER, comm_timeout,  "60",      RANGE(1, 1e6),      FREE, \
      "seconds until a silent rank or stuck collective ends the run") \
    X(INTEGER, rendezvous_timeout, "60", RANGE(1, 1e6),      FREE, "seconds that the ranks wait for each other") \
    X(INTEGER, rendezvous_port, "0",     RANGE(0, 65535),    COMMAND, \
      "of rank 0; 0 = MASTER_PORT + 1, or made of Slurm's job id") \
    X(TEXT,    rendezvous_secret, NULL,  ARGUMENT("TEXT"),   COMMAND, \
      "or TRAIN_GPT_SECRET: keeps others out; sent as it is. Without it, the job's id only guards against mistakes")

typedef int         SETTING_FLAG;
typedef int64_t     SETTING_INTEGER;
typedef double      SETTING_REAL;
typedef const char *SETTING_TEXT, *SETTING_CHOICE;
#define NO_FIELD(title)
#define FIELD(type, field, ...) SETTING_##type field;
typedef struct { SETTINGS(NO_FIELD, FIELD) } Settings;
#undef FIELD
#undef NO_FIELD

#define ONE(...) + 1
enum { SETTINGS_ROWS = 1 SETTINGS(ONE, ONE) };      /* with the groups' titles and the last row of zeros */
#undef ONE

/* Sets the settings and the table, which points into them, from the command line and its --config FILE. */
void settings_parse(Settings *settings, Option table[SETTINGS_ROWS], int argc, char **argv);

void settings_help(FILE *file, const Option *table);

/* For a setting of a checkpoint: fails if this version no longer has the option and the value changed the training. */
void settings_check_obsolete(const char *name, const char *value);

/* What must be the same on all ranks, as lines "name = value": the program, and all options but the secret. A new
   string. */
char *settings_signature(const Option *table);

enum { BATCH_AUTO = 0 };        /* the value of --batch auto until it is chosen */

/* Fails on options that exclude each other. */
void settings_check(const Settings *settings);

#endif
