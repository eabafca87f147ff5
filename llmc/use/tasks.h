/* tasks.h - Tasks: choices among texts that continue a context, scored by their log-probability. The definitions
   are those of lm-evaluation-harness; a line of the file, JSON in UTF-8, is an item:

     multiple-choice   {"context": "The sky is", "choices": ["blue.", "square."], "label": 0}
     hellaswag         as published (Zellers et al. 2019); without ctx_a, ctx takes the place of both
     lambada           {"text": "..."}: its last word is the only choice (Paperno et al. 2016, OpenAI's variant) */
#pragma once
#include "../model/gpt.h"
#include "../text/tokenizer.h"

/* A choice after its context: tokens 0 .. count; the targets are the last ones, the inputs all but the last one. */
typedef struct {
    int32_t *token;
    int      count, targets;     /* number of inputs, at most T; of targets */
    int      characters;         /* length of the choice */
    int      is_cut;             /* the context, on the left */
    int      is_greedy;          /* set by task_score, lambada: each target is the most likely token */
    double   log_probability;    /* set by task_score: of the targets, in nats */
} TaskRow;

typedef struct { int64_t line; int first, count, label; } TaskItem;      /* label: the right one of its rows */

typedef struct {
    const char *name, *path;
    Tokenizer  *tokenizer;
    int         T, V;            /* the model's */
    TaskItem   *item;
    TaskRow    *row;
    int         items, rows;
    size_t      item_room, row_room;
    int         cut;             /* items whose context was cut on the left to fit into the model's */
    int         left_out;        /* other items, with a choice longer than the model's context */
} Task;

typedef struct { const char *name; double value, error; } TaskFigure;    /* error: standard error; NaN for one item */

/* Reads the items of a file into memory, as tokens of a model with that vocabulary and context. A choice follows its
   context after a blank. The whole text is tokenized; its first tokens, as many as the context alone has, are context;
   white space at the end of a context belongs to the choice; an empty context is tokenizer_start. Fails with the line
   number where a line is no such item, and where no item is left. */
Task task_read(const char *name, const char *path, Tokenizer *tokenizer, const GPTConfig *config);
void task_free(Task *task);

/* Scores all rows, by length in batches of at most B * config.T tokens: the model was created for B sequences of
   config.T. Fails when a log-probability is not finite. */
void task_score(Task *task, GPT *model, int B);

/* "acc", the share of items whose label has the highest log-probability, and "acc_norm", the same per character; of
   lambada "acc", the share of greedy ones, and "perplexity", exp of the mean of minus the log-probability. */
void task_figures(const Task *task, TaskFigure figure[2]);

/* task_score, and a line of figures on stdout. out: a file that gets a JSON object per item and one of the figures;
   NULL = no file. */
void task_evaluate(Task *task, GPT *model, int B, const char *out);
