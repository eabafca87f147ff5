/* settings.h - The options of train_gpt. Every option is declared once, in this table: it makes the field of Settings,
   the row that the parser and --help read (options.h), and the entry in settings.txt and in checkpoints. The option's
   name is the field's with '-' for '_'; role is OptionRole; a string after the help has its names in nanoGPT, llm.c,
   HuggingFace's Trainer and torchrun, which are not accepted: the error message names the option, and ends with a
   command of the same values; those that count in other units are CONVERTED. */
#pragma once
#include "options.h"

#define VERSION "train_gpt 0.1"

/* The words of choices, in the order of the enum beside each. */
#define DOCUMENT_NAMES   "file|line|mark|jsonl"                 /* DocumentKind, tokens/data_files.h */
#define TASK_NAMES       "hellaswag|lambada|multiple-choice"    /* use/tasks.h */
#define DTYPE_NAMES      "f32|bf16"                             /* DType, kernels/tensor.h */
#define RECOMPUTE_NAMES  "none|gelu|layernorm|block"            /* Recompute, model/gpt_tensors.h */
#define OPTIMIZER_NAMES  "adamw|muon"                           /* OptimizerKind, model/gpt_tensors.h */
#define SCHEDULE_NAMES   "cosine|linear|wsd|constant"           /* the enum of train/schedule.c */
#define MODEL_NAMES      "d2, d4, d6, d8, d12 = gpt2 (124M), d24 = gpt2-medium (355M), d36 = gpt2-large (774M), " \
                         "d48 = gpt2-xl (1558M)"

/*    type     field              default    values              role help, names in other programs */
#define SETTINGS(T, X) \
    T(TITLE("What to do (without --eval or --sample: train)")) \
    X(TEXT,    data,             NULL,      ARGUMENT("FILE"),   KEPT, \
      "a text (its bytes are the tokens, without --tokenizer) or token shards, 'dir/train_*.bin'", \
      "-i input-bin dataset-path data-dir data-path train train-file train-data train-bin input") \
    X(TEXT,    val_data,         NULL,      ARGUMENT("FILE"),   KEPT, \
      "text or shards to validate on; without it, the last part of a text, or dir/val_*.bin", \
      "-j input-val-bin validation-file val validation val-file val-bin eval-file val-dataset") \
    X(TEXT,    tokenizer,        NULL,      ARGUMENT("DIR"),    KEPT, \
      "byte-level BPE for texts: GPT-2's or HuggingFace's files, or a checkpoint", \
      "tokenizer-name tokenizer-path tokenizer-file") \
    X(CHOICE,  documents,        "file",    CHOICES(DOCUMENT_NAMES), KEPT, \
      "what a document is; mark: text up to <|endoftext|>") \
    X(TEXT,    field,            "text",    ARGUMENT("NAME"),   KEPT, "of a JSONL object: the member with the text", \
      "text-column text-key text-field") \
    X(REAL,    val_fraction,     "0.1",     RANGE(0, 0.9),      KEPT, \
      "validation: last part of a text (tokenize: 0.01); if given, also for --eval", \
      "validation-split-percentage val-split") \
    X(TEXT,    out,              NULL,      ARGUMENT("DIR"),    COMMAND, \
      "of log and checkpoints; none = no files (default runs/NAME of the data); of --task: a file, JSON per item", \
      "-o out-dir output-dir output save-dir logging-dir log-dir run-dir default-root-dir") \
    X(FLAG,    resume,           NULL,      NO_ARGUMENT,        COMMAND, \
      "continue a run, --resume runs/book; options that are given win") \
    X(TEXT,    init,             NULL,      ARGUMENT("CHECKPOINT"), KEPT, \
      "start from the weights of a checkpoint; another --context repeats or cuts its position table", \
      "model-name-or-path from-pretrained pretrained ckpt-path load-from") \
    X(TEXT,    eval,             NULL,      ARGUMENT("CHECKPOINT"), COMMAND, \
      "only print the loss on --val-data, all of --data, or else the run's validation data, in disjoint windows") \
    X(CHOICE,  task,             NULL,      CHOICES(TASK_NAMES), COMMAND, \
      "--eval: accuracy on {\"context\": \"1 +\", \"choices\": [\"1\", ..], \"label\": 0}", \
      "hellaswag eval-tasks tasks") \
    X(TEXT,    sample,           NULL,      ARGUMENT("CHECKPOINT"), COMMAND, \
      "only print text that starts with --prompt", "inference-only generate") \
    X(INTEGER, profile,          "0",       RANGE(0, 1000),     COMMAND, \
      "only print the time of every op, over N steps; 20 is usual") \
    X(TEXT,    config,           NULL,      ARGUMENT("FILE"),   COMMAND, \
      "read options from a file, such as DIR/settings.txt") \
    X(FLAG,    dry_run,          NULL,      NO_ARGUMENT,        COMMAND, \
      "print settings and memory plan, and exit; needs no --data") \
    X(FLAG,    version,          NULL,      NO_ARGUMENT,        COMMAND, "print the version, and exit") \
    X(FLAG,    help,             NULL,      NO_ARGUMENT,        COMMAND, "or -h: print this, and exit") \
    \
    T(TITLE("Model")) \
    X(TEXT,    model,            NULL,      ARGUMENT("NAME"),   KEPT, \
      "one of " MODEL_NAMES " (default d4, or the checkpoint's); from d12 up it sets --lr, --warmup, " \
      "--total-batch of random weights", "-e model-type config-name model-size") \
    X(INTEGER, layers,           "0",       RANGE(0, 1000),     KEPT, "blocks; 0 = as in --model", \
      "n-layer n-layers num-layers num-hidden-layers depth") \
    X(INTEGER, heads,            "0",       RANGE(0, 65536),    KEPT, "attention heads; 0 = as in --model", \
      "n-head n-heads num-heads num-attention-heads") \
    X(INTEGER, channels,         "0",       RANGE(0, 65536),    KEPT, "width; 0 = as in --model", \
      "n-embd n-embed embed-dim hidden-size d-model") \
    X(INTEGER, context,          "0",       RANGE(0, 1 << 24),  KEPT, \
      "tokens of a sequence, at most; 0 = 256, or 1024 from d12 up", \
      "-t block-size sequence-length seq-length seq-len max-seq-length max-seq-len context-length n-ctx n-positions") \
    X(INTEGER, vocab,            "0",       RANGE(0, 1 << 24),  KEPT, \
      "vocabulary; 0 = 256 (bytes), the tokenizer's, 50257 for shards", "vocab-size") \
    X(CHOICE,  dtype,            "auto",    CHOICES("auto|" DTYPE_NAMES), KEPT, \
      "auto = bf16 on a GPU, f32 on a CPU", \
      "bf16 fp16 precision mixed-precision amp torch-dtype") \
    X(CHOICE,  matmul_dtype,     "bf16",    CHOICES("bf16|fp8"), KEPT, \
      "of the blocks in training steps; bf16 = as --dtype; fp8: recent GPUs", "fp8") \
    X(CHOICE,  attention,        "auto",    CHOICES("auto|flash|naive"), KEPT, \
      "flash needs O(T) memory, naive O(T^2); auto = the fastest", \
      "flash flash-attention flash-attn use-flash-attention attn-implementation") \
    X(CHOICE,  recompute,        "none",    CHOICES(RECOMPUTE_NAMES), KEPT, \
      "activations, instead of keeping them: less memory, slower", \
      "gradient-checkpointing activation-checkpointing checkpoint-activations") \
    X(FLAG,    deterministic,    "no",      NO_ARGUMENT,        KEPT, \
      "the same bits in every run, also on a GPU") \
    \
    T(TITLE("Training")) \
    X(INTEGER, steps,            "2000",    RANGE(0, 1e12),     KEPT, "updates", \
      "-x max-iters max-steps num-steps num-iterations train-steps max-train-steps total-steps iterations") \
    X(INTEGER, batch,            "16",      RANGE_OR_AUTO(1, 1 << 20), KEPT, \
      "sequences of a micro-batch; auto = the largest that fits, up to --total-batch or else 64Ki tokens, on a CPU " \
      "up to 16", \
      "-b batch-size train-batch-size micro-batch-size device-batch-size per-device-train-batch-size batchsize bs") \
    X(INTEGER, total_batch,      "0",       RANGE(0, 1e12),     KEPT, \
      "tokens of an update, from several micro-batches; 0 = from one", \
      "-d total-batch-size") \
    X(REAL,    lr,               "0.001",   RANGE(0, 1e6),      KEPT, "peak learning rate", \
      "-l learning-rate max-lr peak-lr") \
    X(REAL,    min_lr,           NULL,      RANGE(0, 1e6),      KEPT, \
      "learning rate at the end (default a tenth of --lr)", \
      "min-learning-rate lr-min") \
    X(CHOICE,  schedule,         "cosine",  CHOICES(SCHEDULE_NAMES), KEPT, \
      "of --lr; wsd = constant, then linear over --decay", "-k lr-scheduler-type lr-scheduler lr-schedule scheduler") \
    X(INTEGER, warmup,           "100",     RANGE(0, 1e12),     KEPT, "steps of linear warm-up", \
      "-u warmup-iters warmup-steps num-warmup-steps lr-warmup-steps") \
    X(INTEGER, decay,            "0",       RANGE(0, 1e12),     KEPT, "steps of decay of wsd; 0 = a fifth of all") \
    X(CHOICE,  optimizer,        "adamw",   CHOICES(OPTIMIZER_NAMES), KEPT, \
      "muon (Jordan et al. 2024): for the matrices of the blocks, AdamW for the rest; scaled to AdamW's --lr and " \
      "--weight-decay as in Moonlight, arXiv 2502.16982", "optim optimizer-name optimizer-type opt") \
    X(REAL,    weight_decay,     "0.1",     RANGE(0, 1e3),      KEPT, "on matrices only", \
      "-c wd decay-rate") \
    X(REAL,    beta1,            "0.9",     RANGE(0, 0.999999), KEPT, "of AdamW", "adam-beta1") \
    X(REAL,    beta2,            "0.95",    RANGE(0, 0.999999), KEPT, "of AdamW", "adam-beta2") \
    X(REAL,    eps,              "1e-8",    RANGE(1e-12, 1),     KEPT, "of AdamW", "adam-epsilon adam-eps epsilon") \
    X(REAL,    clip,             "1",       RANGE(0, 1e9),      KEPT, "maximum gradient norm; 0 = no clipping", \
      "grad-clip max-grad-norm clip-grad gradient-clipping") \
    X(REAL,    dropout,          "0",       RANGE(0, 0.95),     KEPT, \
      "rate of dropout in training; 0.2 is usual for small data", \
      "dropout-rate dropout-prob attn-pdrop attn-dropout resid-pdrop resid-dropout embd-pdrop embd-dropout") \
    X(CHOICE,  on_nan,           "stop",    CHOICES("stop|skip"), KEPT, \
      "after a NaN or infinity; the update is not applied") \
    X(REAL,    skip_spikes,      "0",       RANGE(0, 1e6),      KEPT, \
      "skip updates over N standard deviations; try 6; 0 = none", "-sl -sg") \
    X(INTEGER, seed,             "1",       RANGE(0, 9e15),     KEPT, \
      "of weights, data order, dropout and samples; --sample draws one", "random-seed data-seed manual-seed") \
    X(FLAG,    perturb,          "no",      NO_ARGUMENT,        KEPT, \
      "move the initial weights by one ulp: a noise twin") \
    X(INTEGER, threads,          "0",       RANGE(0, 4096),     FREE, \
      "of the CPU, without effect on the results; 0 = one per core", "num-threads n-threads nthreads") \
    \
    T(TITLE("Validation, log, checkpoints, samples")) \
    X(INTEGER, val_every,        "250",     RANGE(0, 1e12),     KEPT, \
      "steps between validations; 0 = only at the end", \
      "-v eval-interval eval-every eval-steps eval-strategy val-interval val-loss-every validation-steps") \
    X(INTEGER, val_tokens,       "1048576", RANGE(0, 1e15),     KEPT, "validate on the first N tokens; 0 = all") \
    X(INTEGER, log_every,        "0",       RANGE(0, 1e12),     FREE, \
      "steps between printed lines; 0 = about ten lines a minute", \
      "log-interval log-steps log-freq logging-steps logging-interval log-every-n-steps -lg") \
    X(INTEGER, save_every,       "1000",    RANGE(0, 1e12),     KEPT, \
      "steps between checkpoints; 0 = only the best and the last", \
      "-n save-interval save-steps save-strategy checkpoint-interval checkpoint-every") \
    X(INTEGER, early_stop,       "0",       RANGE(0, 1e12),     KEPT, \
      "stop after N validations without a new best val loss; 0 = never", "early-stopping early-stopping-patience") \
    X(INTEGER, keep,             "0",       RANGE(0, 1e12),     KEPT, \
      "keep the best and the newest N checkpoints; 0 = all", "-nk -nm save-total-limit") \
    X(INTEGER, sample_every,     "0",       RANGE(0, 1e12),     KEPT, "steps between samples; 0 = none", "-s") \
    X(TEXT,    prompt,           "",        ARGUMENT("TEXT"),   KEPT, \
      "start of a sample, with \\n, \\t; - = stdin; ids where no tokenizer is known", "start prompt-text") \
    X(INTEGER, num_samples,      "1",       RANGE(1, 65536),    COMMAND, "of --sample, one after the other", \
      "num-return-sequences n-samples") \
    X(FLAG,    interactive,      "no",      NO_ARGUMENT,        COMMAND, \
      "--sample continues what you type; Ctrl-C ends an answer, then the program") \
    X(INTEGER, sample_tokens,    "200",     RANGE(1, 1e9),      KEPT, "length of a sample", \
      "-g max-new-tokens num-tokens max-length gen-length sample-length") \
    X(TEXT,    stop,             "",        ARGUMENT("TEXT"),   KEPT, "end a sample before this text, with \\n, \\t", \
      "stop-string stop-strings stop-sequence stop-sequences stop-token reverse-prompt") \
    X(REAL,    temperature,      "0.8",     RANGE(0, 100),      KEPT, "of sampling; 0 = always the most likely token", \
      "temp") \
    X(INTEGER, top_k,            "0",       RANGE(0, 1 << 24),  KEPT, \
      "sample among the k most likely tokens; 0 = all") \
    X(REAL,    top_p,            "1",       RANGE(1e-9, 1),     KEPT, \
      "the fewest tokens that add up to p, usually 0.9; 1 = all") \
    \
    T(TITLE("Several GPUs (torchrun, srun and mpirun start the processes, without --gpus)")) \
    X(TEXT,    gpus,             "1",       ARGUMENT("N|all"),  FREE, \
      "GPUs of this machine to train on, a process each", \
      "nproc-per-node nproc num-processes num-gpus n-gpus n-gpu ngpus devices multi-gpu -pn") \
    X(INTEGER, context_parallel, "1",       RANGE(1, 4096),     FREE, \
      "ranks that share a sequence, for contexts too long for a GPU", \
      "context-parallel-size cp-size") \
    X(INTEGER, comm_timeout,     "60",      RANGE(1, 1e6),      FREE, \
      "seconds until a silent rank or stuck collective ends the run") \
    X(INTEGER, rendezvous_timeout, "60",      RANGE(1, 1e6),      FREE, "seconds that the ranks wait for each other") \
    \
    /* Names that are no option here. GONE: options of earlier versions, with the values that do nothing. */ \
    T(ANSWER("dataset dataset-name", "give its text, such as data/NAME/input.txt of nanoGPT, or shards")) \
    T(ANSWER("-h eval-only do-eval evaluate", "use --eval CHECKPOINT FILE, also with --task hellaswag")) \
    T(CONVERTED("-r", "recompute 0=none 1=gelu 2=layernorm", "use --recompute gelu for 1, layernorm for 2")) \
    T(CONVERTED("-y", "resume 1=yes", "use --resume for 1")) \
    T(ANSWER("resume-from-checkpoint resume-from resume-path", "use --resume RUN, the directory with log.csv")) \
    T(ANSWER("chat", "use --sample CHECKPOINT --interactive")) \
    T(ANSWER("train.py sample.py", "leave this word out: train_gpt is the program")) \
    T(ANSWER("quiet verbose silent", "use --log-every N; log.csv has every step, remove it")) \
    T(CONVERTED("decay-lr", "schedule False=constant", "use --schedule constant for False; remove it")) \
    T(CONVERTED("warmup-ratio", "warmup steps", "use --warmup N, with N = its value x --steps")) \
    T(CONVERTED("-q learning-rate-decay-frac final-lr-frac min-lr-ratio", "min-lr lr", \
                "use --min-lr N, with N = its value x --lr")) \
    T(CONVERTED("gradient-accumulation-steps grad-accum-steps", "total-batch batch context", \
                "use --total-batch N, in tokens: a micro-batch has --batch x --context")) \
    T(CONVERTED("-m eval-iters eval-batches val-max-steps", "val-tokens batch context", \
                "use --val-tokens N, in tokens: a batch has --batch x --context")) \
    T(ANSWER("init-from", "use --init CHECKPOINT to start from weights, --resume to continue a run")) \
    T(ANSWER("tokenize train-tokenizer", "a program of its own, ./tokenize; see ./tokenize --help")) \
    T(ANSWER("bias rope activation swiglu rmsnorm", \
             "the model is GPT-2's, with positions in a table, GELU, layernorm and biases; remove it")) \
    T(ANSWER("num-train-epochs epochs", "use --steps; an epoch is the tokens of the data / those of an update")) \
    T(ANSWER("lr-decay-iters lr-decay-steps", "the decay ends with the last of --steps, remove it")) \
    T(ANSWER("muon muon-lr momentum", "use --optimizer muon, with --lr and --weight-decay")) \
    T(ANSWER("always-save-checkpoint", "OUT/best is the checkpoint of the lowest val loss, remove it")) \
    T(ANSWER("wandb wandb-log wandb-project wandb-run-name report-to tensorboard", \
             "log.csv and log.jsonl are always written, remove it")) \
    T(ANSWER("nnodes node-rank master-addr master-port -pr -pg -pm -ps -pp -pi -pf", \
             "torchrun and srun set it by environment variables, remove it; on one machine use --gpus")) \
    T(ANSWER("device", "the build decides, make DEVICE=cpu or DEVICE=cuda; remove it")) \
    T(ANSWER("-a overfit-single-batch", "not supported, remove it")) \
    T(ANSWER("compile fused tf32 tensorcores -f -w -ge num-workers do-train backend ddp zero-stage -z", \
             "not needed, remove it")) \
    T(ANSWER("checkpoint", "--eval RUN and --sample RUN take the best, RUN/step-N takes another; remove it")) \
    T(ANSWER("prompt-file", "use --prompt - < FILE")) \
    T(ANSWER("time-limit max-time max-train-time time timeout", \
             "use timeout -s TERM 3h50m ./train_gpt ...: SIGTERM saves and exits with 75")) \
    T(ANSWER("rendezvous-port", "the port is that of the environment variable MASTER_PORT, plus 1; remove it")) \
    T(ANSWER("rendezvous-secret", "use the environment variable TRAIN_GPT_SECRET")) \
    T(GONE("attention-dropout residual-dropout embedding-dropout", "", "--dropout sets all three rates")) \
    T(GONE("keep-every", "0", "--keep 0 keeps all checkpoints")) \
    T(GONE("log-jsonl", "yes|no", "log.jsonl is always written; --task writes its items to --out FILE")) \
    T(GONE("save-dtype", "f32", "a checkpoint is in f32; in Python, model.to(torch.bfloat16).save_pretrained(DIR)")) \
    T(GONE("min-p", "0", "use --top-p or --top-k")) \
    T(GONE("ring-order", "zigzag", "the order is zigzag")) \
    T(GONE("zero", "1", "several ranks always have ZeRO-1"))

typedef int         SETTING_FLAG;
typedef int64_t     SETTING_INTEGER;
typedef double      SETTING_REAL;
typedef const char *SETTING_TEXT, *SETTING_CHOICE;
#define NO_FIELD(...)
#define FIELD(type, field, ...) SETTING_##type field;
typedef struct { SETTINGS(NO_FIELD, FIELD) } Settings;
#undef FIELD
#undef NO_FIELD

#define ONE(...) + 1
enum { SETTINGS_ROWS = 1 SETTINGS(ONE, ONE) };      /* with titles, answers and the last row of zeros */
#undef ONE

/* Sets the settings and the table, which points into them, from the command line and its --config FILE. */
void settings_parse(Settings *settings, Option table[SETTINGS_ROWS], int argc, char **argv);

void settings_help(FILE *file, const Option *table);

/* What must be the same on all ranks, as lines "name = value": the program, and all options. A new string. */
char *settings_signature(const Option *table);

enum { BATCH_AUTO = 0 };        /* the value of --batch auto until it is chosen */

/* Fails on options that exclude each other. */
void settings_check(const Settings *settings);
