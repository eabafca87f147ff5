/* llmc/model_config.h - Which model: that of a checkpoint, or the one that the options describe. */
#ifndef LLMC_CHOICE_H
#define LLMC_CHOICE_H
#include "gpt.h"

/* The options of that name. */
typedef struct {
    const char *model;                                    /* one of GPT_NAMES */
    int64_t     layers, heads, channels, context, vocab;  /* 0 = as the checkpoint or --model says */
    const char *dtype, *save_dtype;                       /* "f32", "bf16" */
    int         deterministic;
} ModelOptions;

/* Fails in a line on sizes that are no model or differ from the checkpoint's. checkpoint: whose weights it starts from,
   or NULL. are_bytes: it learns from a text, so its vocabulary is 256; else it is that of GPT-2 unless given. */
GPTConfig model_to_train(const ModelOptions *options, const char *checkpoint, int are_bytes);

/* To evaluate or sample: all is the checkpoint's but dtype. Fails in a line on an option that says another size. */
GPTConfig model_to_use(const ModelOptions *options, const char *checkpoint);

#endif
