/* option_names.h - What to use here for an option of nanoGPT, llm.c, HuggingFace's Trainer, Lightning or torchrun.
   Each answer follows "--name: ". Names have '-' for '_'; with a dash in front they are llm.c's single letters. */
#ifndef LLMC_OPTION_NAMES_H
#define LLMC_OPTION_NAMES_H
#include "options.h"

#define NO_NEED "not needed, remove it"

static const ForeignOption foreign_options[] = {
    /* data and output */
    { "-i input-bin dataset dataset-name dataset-path data-dir data-path train-file train-data train-bin input",
      "use --data, a text file or token shards" },
    { "-j input-val-bin validation-file val validation val-file val-bin eval-file val-dataset", "use --val-data" },
    { "validation-split-percentage val-split", "use --val-fraction, 0.1 for 10 %" },
    { "tokenizer-name tokenizer-path tokenizer-file", "use --tokenizer, a directory" },
    { "text-column text-key text-field", "use --documents jsonl --field" },
    { "tokenize train-tokenizer", "a program of its own, ./tokenize; see ./tokenize --help" },
    { "-o out-dir output-dir output save-dir logging-dir log-dir run-dir default-root-dir", "use --out" },
    { "overwrite-output-dir", "a run never overwrites another one; use another --out" },
    { "-y resume-from-checkpoint resume-from resume-path", "use --resume" },
    { "-e", "use --model for random weights, --init CHECKPOINT for trained ones" },
    { "init-from model-name-or-path from-pretrained pretrained ckpt-path load-from",
      "use --init CHECKPOINT to start from weights, --resume to continue a run" },
    { "do-train train", "training is the default, remove it" },
    { "eval-only do-eval evaluate", "use --eval CHECKPOINT" },
    { "inference-only generate", "use --sample CHECKPOINT" },

    /* model */
    { "model-type config-name model-size", "use --model" },
    { "n-layer n-layers num-layers num-hidden-layers depth", "use --layers" },
    { "n-head n-heads num-heads num-attention-heads", "use --heads" },
    { "n-embd n-embed embed-dim hidden-size d-model", "use --channels" },
    { "-t block-size sequence-length seq-length seq-len max-seq-length max-seq-len context-length context-size n-ctx "
      "n-positions max-position-embeddings", "use --context" },
    { "vocab-size", "use --vocab" },
    { "bias", "all layers have biases, as in GPT-2; remove it" },
    { "bf16 fp16 bf16-full-eval precision mixed-precision amp half torch-dtype", "use --dtype bf16" },
    { "flash flash-attention flash-attn use-flash-attention attn-implementation", "use --attention flash" },

    /* training */
    { "-x max-iters max-steps num-steps num-iterations train-steps max-train-steps total-steps n-steps iters "
      "iterations", "use --steps" },
    { "num-train-epochs num-epochs max-epochs n-epochs epochs epoch",
      "use --steps; an epoch is the tokens of the data / the tokens of an update" },
    { "-b batch-size train-batch-size micro-batch-size device-batch-size per-device-train-batch-size "
      "per-gpu-train-batch-size batchsize batch-sizes bs", "use --batch" },
    { "auto-find-batch-size auto-scale-batch-size", "use --batch auto" },
    { "eval-batch-size val-batch-size per-device-eval-batch-size", "validation uses --batch, remove it" },
    { "-d gradient-accumulation-steps grad-accumulation-steps grad-accum-steps accumulate-grad-batches "
      "total-batch-size global-batch-size", "use --total-batch, in tokens" },
    { "-l learning-rate max-lr peak-lr", "use --lr" },
    { "-q learning-rate-decay-frac final-lr-frac min-learning-rate lr-min min-lr-ratio",
      "use --min-lr, a learning rate" },
    { "lr-decay-iters lr-decay-steps", "the decay ends with the last of --steps, remove it" },
    { "decay-lr", "for a constant rate use --min-lr equal to --lr" },
    { "-k lr-scheduler-type lr-scheduler lr-schedule scheduler", "use --schedule" },
    { "-u warmup-iters warmup-steps num-warmup-steps lr-warmup-steps warmup-ratio", "use --warmup, in steps" },
    { "-c wd decay-rate", "use --weight-decay" },
    { "dropout-rate dropout-prob drop-rate", "use --dropout" },
    { "attn-pdrop attn-dropout attention-probs-dropout-prob", "use --attention-dropout" },
    { "resid-pdrop resid-dropout hidden-dropout hidden-dropout-prob", "use --residual-dropout" },
    { "embd-pdrop embd-dropout embed-dropout", "use --embedding-dropout" },
    { "adam-beta1", "use --beta1" },
    { "adam-beta2", "use --beta2" },
    { "adam-epsilon adam-eps epsilon", "use --eps" },
    { "grad-clip max-grad-norm clip-grad clip-grad-norm gradient-clip-val gradient-clipping max-norm", "use --clip" },
    { "optim optimizer", "the optimizer is AdamW, remove it" },
    { "-sl -sg", "use --skip-spikes" },
    { "random-seed data-seed manual-seed", "use --seed" },
    { "num-threads n-threads nthreads", "use --threads" },
    { "gradient-checkpointing activation-checkpointing checkpoint-activations -r",
      "use --recompute gelu, layernorm or block" },
    { "hellaswag eval-tasks tasks", "use --eval CHECKPOINT --task NAME FILE, after training" },
    { "-a overfit-single-batch overfit-batches", "not supported, remove it" },
    { "device use-cpu no-cuda accelerator", "the build decides, make DEVICE=cpu or DEVICE=cuda; remove it" },
    { "compile torch-compile fused tf32 tensorcores -f -w -ge num-workers dataloader-num-workers pin-memory "
      "preprocessing-num-workers trust-remote-code do-predict", NO_NEED },

    /* validation, checkpoints, log, samples */
    { "-v eval-interval eval-every eval-steps eval-strategy evaluation-strategy val-interval val-loss-every "
      "validation-steps val-check-interval", "use --val-every, in steps" },
    { "-m eval-iters eval-batches val-max-steps val-steps val-batches limit-val-batches max-eval-samples",
      "use --val-tokens, in tokens" },
    { "-n save-interval save-steps save-strategy always-save-checkpoint checkpoint-interval checkpoint-every "
      "checkpointing-steps ckpt-interval", "use --save-every, in steps" },
    { "-nk save-total-limit", "use --keep" },
    { "load-best-model-at-end metric-for-best-model save-best save-best-only",
      "OUT/best is the checkpoint of the lowest val loss, remove it" },
    { "early-stopping early-stopping-patience", "use --early-stop, in validations" },
    { "-nm", "use --keep-every" },
    { "log-interval log-steps log-freq logging-steps logging-interval log-every-n-steps -lg", "use --log-every" },
    { "wandb wandb-log wandb-project wandb-run-name report-to run-name tensorboard",
      "log.csv and log.jsonl are always written, remove it" },
    { "log-jsonl", "log.jsonl is always written, remove it; --task writes its items to --out FILE" },
    { "max-time max-train-time time timeout", "use --time-limit" },
    { "-s", "use --sample-every" },
    { "-g max-new-tokens num-tokens max-length gen-length sample-length", "use --sample-tokens" },
    { "num-return-sequences n-samples", "use --num-samples" },
    { "start prompt-text", "use --prompt" },
    { "temp", "use --temperature" },

    /* several GPUs */
    { "nproc-per-node nproc num-processes num-gpus n-gpus n-gpu ngpus devices multi-gpu -pn", "use --gpus" },
    { "nnodes nodes num-machines node-rank rank local-rank world-size standalone master-addr rdzv-id rdzv-backend "
      "rdzv-endpoint -pr -pg -pm -ps -pp -pi -pf",
      "torchrun and srun set it by environment variables, remove it; on one machine use --gpus" },
    { "master-port", "use --rendezvous-port" },
    { "context-parallel-size cp-size sequence-parallel sequence-parallel-size context-parallel-degree",
      "use --context-parallel" },
    { "zero-stage -z", "use --zero" },
    { "backend ddp ddp-backend fsdp deepspeed", NO_NEED },
    {0}
};

static const ObsoleteOption obsolete_options[] = {
    { "log-jsonl", "yes|no" },
    {0}
};

#endif
