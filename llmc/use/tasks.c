#include "tasks.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../kernels/check.h"
#include "../../kernels/device.h"
#include "../base/files.h"
#include "../base/json.h"
#include "../base/os.h"
#include "../report/report.h"

/* ---- Items as texts */

typedef struct { char *context, **choice; int count, label; } Question;

/* White space as Python's str.strip() has it. */
static const char *const spaces[] = {
    " ", "\n", "\t", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x1f", "\xc2\x85", "\xc2\xa0", "\xe1\x9a\x80",
    "\xe2\x80\x80", "\xe2\x80\x81", "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
    "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf",
    "\xe2\x81\x9f", "\xe3\x80\x80", NULL };

/* Bytes of the white space at the start of a text, or at its end; 0 = none. */
static size_t space_of(const char *text, size_t length, int at_end) {
    for (const char *const *space = spaces; *space; space++) {
        size_t size = strlen(*space);
        if (length >= size && !memcmp(at_end ? text + length - size : text, *space, size)) return size;
    }
    return 0;
}

/* Bytes of a text without white space at its end. */
static size_t trimmed(const char *text) {
    size_t length = strlen(text), size;
    while ((size = space_of(text, length, 1))) length -= size;
    return length;
}

/* Replaces every `from` by `to`, which is not longer, in place, from left to right. */
static void replace(char *text, const char *from, const char *to) {
    char *out = text;
    const size_t from_size = strlen(from), to_size = strlen(to);
    while (*text) {
        int is_found = !strncmp(text, from, from_size);
        if (is_found) out = (char *)memcpy(out, to, to_size) + to_size;
        else          *out++ = *text;
        text += is_found ? from_size : 1;
    }
    *out = 0;
}

/* Removes each [...] within a line. */
static void remove_brackets(char *text) {
    char *out = text;
    while (*text) {
        size_t length = *text == '[' ? strcspn(text, "]\n") : 0;
        if (length && text[length] == ']') text += length + 1;
        else                               *out++ = *text++;
    }
    *out = 0;
}

/* HellaSwag's items from WikiHow have marks such as [title] and [step]. Frees the text, returns a new string. */
static char *cleaned(char *text) {
    const char *start = text;
    for (size_t size; (size = space_of(start, strlen(start), 0)); ) start += size;
    char *result = format_string("%.*s", (int)trimmed(start), start);
    replace(result, " [title]", ". ");
    remove_brackets(result);
    replace(result, "  ", " ");
    free(text);
    return result;
}

/* As Python's str.capitalize() of ASCII letters; others are kept. */
static char *capitalized(const char *text) {
    char *result = format_string("%s", text);
    for (char *c = result; *c; c++) {
        if (c == result && *c >= 'a' && *c <= 'z') *c -= 'a' - 'A';
        if (c > result && *c >= 'A' && *c <= 'Z')  *c += 'a' - 'A';
    }
    return result;
}

static const char *plural(int count) { return count == 1 ? "" : "s"; }

static void read_choices(const Json *object, const char *key, Question *q) {
    const Json *array = json_member(object, key, JSON_ARRAY);
    REQUIRE(array->count >= 2, "%s: \"%s\" has %d element%s, want 2 or more", array->where, key, array->count,
            plural(array->count));
    q->choice = host_alloc((size_t)array->count * sizeof *q->choice, "the choices of an item");
    for (const Json *choice = array->child; choice; choice = choice->next) {
        if (choice->type != JSON_STRING || !*choice->text) json_refuse(choice, "a text that is not empty");
        q->choice[q->count++] = format_string("%s", choice->text);
    }
}

static void read_label(const Json *object, Question *q) {
    q->label = (int)json_integer(json_member(object, "label", JSON_ANY), 0, q->count - 1);
}

static void read_multiple_choice(const Json *object, Question *q) {
    q->context = format_string("%s", json_string(object, "context"));
    read_choices(object, "choices", q);
    read_label(object, q);
}

static void read_hellaswag(const Json *object, Question *q) {
    const char *activity = json_string(object, "activity_label");
    if (json_find(object, "ctx_a")) {
        char *end = capitalized(json_string(object, "ctx_b"));
        q->context = format_string("%s: %s %s", activity, json_string(object, "ctx_a"), end);
        free(end);
    } else {
        q->context = format_string("%s: %s", activity, json_string(object, "ctx"));
    }
    q->context = cleaned(q->context);
    read_choices(object, "endings", q);
    for (int i = 0; i < q->count; i++) q->choice[i] = cleaned(q->choice[i]);
    const Json *label = json_member(object, "label", JSON_ANY);
    int is_text = label->type == JSON_STRING && label->text[0] >= '0' && label->text[0] <= '9' && !label->text[1];
    if (is_text && label->text[0] - '0' < q->count) q->label = label->text[0] - '0';     /* as HuggingFace has it */
    else                                            read_label(object, q);
}

static void read_lambada(const Json *object, Question *q) {
    const char *text = json_string(object, "text"), *blank = strrchr(text, ' ');
    const char *word = blank ? blank + 1 : text;
    REQUIRE(*word, "%s: \"text\" is empty or ends with a blank, want a last word", object->where);
    q->context = format_string("%.*s", blank ? (int)(blank - text) : 0, text);
    q->choice = host_alloc(sizeof *q->choice, "the word of an item");
    q->choice[q->count++] = format_string("%s", word);
}

/* ---- Items as tokens */

static int characters_of(const char *text) {
    int count = 0;
    for (; *text; text++) count += (*text & 0xc0) != 0x80;
    return count;
}

/* Adds a row. Returns whether its context is cut; -1 = nothing is added, the choice alone is longer than T. */
static int add_row(Task *task, const Question *q, int which, Tokenizer tokenizer, const GPTConfig *config,
                   const char *where) {
    const size_t context_size = trimmed(q->context);
    const int T = config->T, is_empty = !context_size;
    char *context = format_string("%.*s", (int)context_size, q->context);
    char *text = format_string("%s %s", q->context, q->choice[which]);
    int all, of_context;
    int32_t *tokens = tokenizer_encode(tokenizer, text, config->V, &all);
    free(tokenizer_encode(tokenizer, context, config->V, &of_context));
    free(context);
    free(text);
    const int targets = all - of_context, inputs = all - 1 + is_empty, cut = inputs > T ? inputs - T : 0;
    REQUIRE(targets > 0, "%s: choice %d has no token of its own", where, which);
    if (targets <= T) {
        TaskRow row = { .count = inputs - cut, .targets = targets, .characters = characters_of(q->choice[which]) };
        row.token = host_alloc((size_t)(row.count + 1) * sizeof *row.token, "the tokens of an item");
        int start = is_empty && !cut;       /* one token more in front */
        if (start) row.token[0] = tokenizer_start(tokenizer, config->V);
        memcpy(row.token + start, tokens + all - (row.count + 1 - start),
               (size_t)(row.count + 1 - start) * sizeof *tokens);
        task->row = host_grow(task->row, (size_t)task->rows, &task->row_room, sizeof row, "the items of a task");
        task->row[task->rows++] = row;
    }
    free(tokens);
    return targets > T ? -1 : cut > 0;
}

static void add_item(Task *task, const Question *q, int64_t line, Tokenizer tokenizer, const GPTConfig *config,
                     const char *where) {
    TaskItem item = { .line = line, .first = task->rows, .count = q->count, .label = q->label };
    int is_cut = 0, fits = 1;
    for (int i = 0; i < q->count && fits; i++) {
        int cut = add_row(task, q, i, tokenizer, config, where);
        if (cut > 0) is_cut = 1;
        fits = cut >= 0;
    }
    if (!fits) {
        while (task->rows > item.first) free(task->row[--task->rows].token);
        task->left_out++;
        return;
    }
    task->cut += is_cut;
    task->item = host_grow(task->item, (size_t)task->items, &task->item_room, sizeof item, "the items of a task");
    task->item[task->items++] = item;
}

static void read_line(Task *task, const FileLine *line, Tokenizer tokenizer, const GPTConfig *config) {
    char *where = format_string("%s: line %lld", task->path, (long long)line->number);
    Json *json = json_parse(line->text, line->size, where);
    Question q = {0};
    if (json->type != JSON_OBJECT) fail("%s: this is %.80s, want an object", where, json_text(json));
    if (!strcmp(task->name, "hellaswag"))    read_hellaswag(json, &q);
    else if (!strcmp(task->name, "lambada")) read_lambada(json, &q);
    else                                     read_multiple_choice(json, &q);
    add_item(task, &q, line->number, tokenizer, config, where);
    for (int i = 0; i < q.count; i++) free(q.choice[i]);
    free(q.choice);
    free(q.context);
    json_free(json);
    free(where);
}

Task task_read(const char *name, const char *path, Tokenizer tokenizer, const GPTConfig *config) {
    Task task = { .name = name, .path = path };
    REQUIRE(tokenizer != TOKENIZER_IDS, "--task %s: the tokenizer of the model is unknown, want --tokenizer DIR", name);
    FileMap map = file_map(path);
    const char *kind = file_kind(map.bytes, map.size);
    REQUIRE(!kind, "%s: this is %s, want a line of JSON for each item", path, kind);
    for (FileLine line = {0}; file_next_line(map, &line); )
        if (line.size) read_line(&task, &line, tokenizer, config);
    file_unmap(map);
    REQUIRE(task.items || !task.left_out, "%s: no item fits: every one has a choice of more than %d tokens, the "
            "context of the model", path, config->T);
    REQUIRE(task.items, "%s: no item, want a line of JSON for each", path);
    return task;
}

void task_free(Task *task) {
    for (int i = 0; i < task->rows; i++) free(task->row[i].token);
    free(task->row);
    free(task->item);
    *task = (Task){0};
}

static int is_lambada(const Task *task) { return !strcmp(task->name, "lambada"); }

/* ---- Scores */

/* Longer rows first, so that the largest batch comes first; equal ones in the order of the file. */
static int compare_rows(const void *a, const void *b) {
    const TaskRow *x = *(TaskRow *const *)a, *y = *(TaskRow *const *)b;
    return x->count != y->count ? y->count - x->count : x < y ? -1 : 1;
}

/* How many rows of T tokens are a batch: some attentions need more scratch for many short rows than for a few long ones
   of as many tokens. */
static int rows_of_batch(const GPT *m, int64_t tokens, int T, int max) {
    int64_t rows = tokens / T < max ? tokens / T : max;
    size_t workspace;
    const char *attention;
    while (rows > 1 && gpt_act_bytes(&m->config, m->attention_name, (int)rows, T, m->purpose, &workspace, &attention) >
                       m->act_bytes) rows--;
    return (int)rows;
}

/* range: the tokens of the batch that precede the row's targets; losses: theirs. */
static int is_greedy(GPT *model, const TaskRow *row, TokenRange range, const float *losses, float *logits) {
    const int32_t *target = row->token + row->count + 1 - row->targets;
    for (int t = 0; t < row->targets; t++) {
        if (losses[t] < 0.69f) continue;        /* its probability is over 1/2: no other token can be as likely */
        gpt_logits(model, range.first + t, logits);
        for (int v = 0; v < model->config.V; v++)
            if (logits[v] > logits[target[t]]) return 0;
    }
    return 1;
}

typedef struct { int32_t *inputs, *targets; float *losses, *logits; TokenRange *range; } Batch;      /* on the host */

/* Scores rows of at most T tokens as one batch. The head, the larger part of a small model, computes only the tokens
   that precede a target. */
static void score_batch(const Task *task, GPT *model, TaskRow *const *rows, int count, int T, Batch batch) {
    const size_t tokens = (size_t)count * (size_t)T;
    size_t targets = 0;
    memset(batch.inputs, 0, tokens * sizeof *batch.inputs);
    for (int b = 0; b < count; b++) {
        const TaskRow *row = rows[b];
        const int context = row->count - row->targets;
        memcpy(batch.inputs + (size_t)b * (size_t)T, row->token, (size_t)row->count * sizeof *batch.inputs);
        memcpy(batch.targets + targets, row->token + context + 1, (size_t)row->targets * sizeof *batch.targets);
        batch.range[b] = (TokenRange){ (int64_t)b * T + context, row->targets };
        targets += (size_t)row->targets;
    }
    memset(batch.targets + targets, -1, (tokens - targets) * sizeof *batch.targets);
    gpt_set_batch(model, count, T);
    gpt_load(model, batch.inputs, batch.targets);
    gpt_forward(model);
    gpt_loss_of(model, batch.range, count);
    device_download(batch.losses, model->acts.losses.data, targets * sizeof *batch.losses);
    const float *losses = batch.losses;
    for (int b = 0; b < count; losses += rows[b++]->targets) {
        TaskRow *row = rows[b];
        row->log_probability = 0;
        for (int t = 0; t < row->targets; t++) row->log_probability -= losses[t];
        REQUIRE(isfinite(row->log_probability), "%s: a log-probability is %g: the weights are finite, but the "
                "activations overflow", task->path, row->log_probability);
        row->is_greedy = is_lambada(task) && is_greedy(model, row, batch.range[b], losses, batch.logits);
    }
}

void task_score(Task *task, GPT *model, int B) {
    const size_t tokens = (size_t)B * (size_t)model->config.T;
    const Batch batch = { .inputs  = host_alloc(tokens * sizeof *batch.inputs, "a batch"),
                          .targets = host_alloc(tokens * sizeof *batch.targets, "a batch"),
                          .losses  = host_alloc(tokens * sizeof *batch.losses, "the losses of a batch"),
                          .range   = host_alloc(tokens * sizeof *batch.range, "the targets of a batch"),
                          .logits  = host_alloc((size_t)model->config.V * sizeof *batch.logits, "logits") };
    TaskRow **order = host_alloc((size_t)task->rows * sizeof *order, "the order of the items");
    Report report = {0};
    for (int i = 0; i < task->rows; i++) order[i] = &task->row[i];
    qsort(order, (size_t)task->rows, sizeof *order, compare_rows);
    for (int at = 0, count; at < task->rows; at += count) {
        int T = (order[at]->count + 15) / 16 * 16;      /* few different shapes */
        if (T > model->config.T) T = model->config.T;
        count = rows_of_batch(model, (int64_t)tokens, T, task->rows - at);
        report_progress(&report, at, task->rows);
        score_batch(task, model, order + at, count, T, batch);
    }
    report_progress(&report, task->rows, task->rows);
    free(order);
    free(batch.logits);
    free(batch.range);
    free(batch.losses);
    free(batch.targets);
    free(batch.inputs);
}

/* ---- Figures */

/* The first row with the highest log-probability, or with per_character of that per character. A choice of which the
   clean-up has left no character is -infinity. */
static int best_choice(const Task *task, const TaskItem *item, int per_character) {
    int best = 0;
    double highest = -INFINITY;
    for (int i = 0; i < item->count; i++) {
        const TaskRow *row = &task->row[item->first + i];
        double score = row->log_probability / (per_character ? row->characters : 1);
        if (score > highest) highest = score, best = i;
    }
    return best;
}

/* The mean, and its error by the variance of a sample: sqrt(p (1 - p) / (n - 1)) of a share p. */
static TaskFigure mean_of(double sum, double squares, int count) {
    double n = count, mean = sum / n, variance = (squares - n * mean * mean) / (n - 1);
    return (TaskFigure){ mean, count < 2 ? NAN : sqrt(fmax(variance, 0) / n) };
}

TaskFigures task_figures(const Task *task) {
    int right = 0, right_norm = 0;
    double sum = 0, squares = 0;
    for (int i = 0; i < task->items; i++) {
        const TaskItem *item = &task->item[i];
        const TaskRow *row = &task->row[item->first];
        right += is_lambada(task) ? row->is_greedy : best_choice(task, item, 0) == item->label;
        right_norm += best_choice(task, item, 1) == item->label;
        sum -= row->log_probability;
        squares += row->log_probability * row->log_probability;
    }
    TaskFigures figures = { .acc = mean_of(right, right, task->items) };
    if (!is_lambada(task)) {
        figures.acc_norm = mean_of(right_norm, right_norm, task->items);
        return figures;
    }
    TaskFigure mean = mean_of(sum, squares, task->items);
    double perplexity = exp(mean.value);
    figures.perplexity = (TaskFigure){ perplexity, perplexity * mean.error };      /* to first order */
    return figures;
}

static void print_items(const Task *task) {
    for (int i = 0; i < task->items; i++) {
        const TaskItem *item = &task->item[i];
        printf("{\"event\": \"item\", \"line\": %lld, \"label\": %d, \"log_probabilities\": [", (long long)item->line,
               item->label);
        for (int j = 0; j < item->count; j++)
            printf("%s%.9g", j ? ", " : "", task->row[item->first + j].log_probability);
        const char *greedy = task->row[item->first].is_greedy ? ", \"greedy\": true" : ", \"greedy\": false";
        printf("]%s}\n", is_lambada(task) ? greedy : "");
    }
}

static void print_figure(const char *name, TaskFigure figure, int as_jsonl) {
    const int digits = *name == 'p' ? 2 : 4, has_error = !isnan(figure.error);
    if (as_jsonl) printf(", \"%s\": %.9g", name, figure.value);
    else          printf(" %s %.*f", name, digits, figure.value);
    if (has_error && as_jsonl) printf(", \"%s_stderr\": %.9g", name, figure.error);
    else if (has_error)        printf(" +- %.*f", digits, figure.error);
    if (!as_jsonl) printf(",");
}

void task_evaluate(Task *task, GPT *model, int B, int as_jsonl) {
    const double start = seconds_now();
    task_score(task, model, B);
    const double seconds = seconds_now() - start;
    const TaskFigures figures = task_figures(task);
    if (as_jsonl) print_items(task);
    if (as_jsonl) printf("{\"event\": \"task\", \"task\": \"%s\", \"items\": %d", task->name, task->items);
    else          printf("%s: %s, %d item%s:", task->path, task->name, task->items, plural(task->items));
    print_figure("acc", figures.acc, as_jsonl);
    if (is_lambada(task)) print_figure("perplexity", figures.perplexity, as_jsonl);
    else                  print_figure("acc_norm", figures.acc_norm, as_jsonl);
    if (as_jsonl) printf(", \"contexts_cut\": %d, \"left_out\": %d, \"seconds\": %.3f}\n", task->cut, task->left_out,
                         seconds);
    else          printf(" %d context%s cut, %d item%s left out, %.1f s\n", task->cut, plural(task->cut),
                         task->left_out, plural(task->left_out), seconds);
}
