#include "tasks.h"

static int is_lambada(const Task *task) { return !strcmp(task->name, "lambada"); }

/* ---- Items as texts */

/* Bytes of a text up to the white space at its end. */
static size_t trimmed(const char *text) {
    size_t end = 0;
    for (size_t at = 0, length = strlen(text), space; at < length; at += space ? space : 1) {
        space = bpe_space((const unsigned char *)text + at, length - at);
        if (!space) end = at + 1;
    }
    return end;
}

/* Bytes of a [...] within a line at the start of text; 0 = none. */
static size_t bracket(const char *text) {
    const size_t size = *text == '[' ? strcspn(text, "]\n") : 0;
    return size && text[size] == ']' ? size + 1 : 0;
}

/* Replaces every `from`, NULL = every [...], by `to`, which is not longer, in place, from left to right. */
static void replace(char *text, const char *from, const char *to) {
    char *out = text;
    for (size_t size, kept; *text; text += size ? size : 1, out += kept) {
        size = !from ? bracket(text) : strncmp(text, from, strlen(from)) ? 0 : strlen(from);
        kept = size ? strlen(to) : 1;
        memmove(out, size ? to : text, kept);
    }
    *out = 0;
}

/* A new string; HellaSwag's items from WikiHow have marks such as [title] and [step]. */
static char *cleaned(const char *text) {
    for (size_t size; *text && (size = bpe_space((const unsigned char *)text, strlen(text))); ) text += size;
    char *result = format_string("%.*s", (int)trimmed(text), text);
    replace(result, " [title]", ". ");
    replace(result, NULL, "");
    replace(result, "  ", " ");
    return result;
}

static char *hellaswag_context(const Json *object) {
    const char *activity = json_string(object, "activity_label"), *end = "", *blank = "";
    const char *start = json_string(object, json_find(object, "ctx_a") ? "ctx_a" : "ctx");
    if (json_find(object, "ctx_a")) end = json_string(object, "ctx_b"), blank = " ";
    char *text = format_string("%s: %s%s%s", activity, start, blank, end), *last = text + strlen(text) - strlen(end);
    for (char *c = last; *c; c++)           /* Python's str.capitalize() of ASCII letters; others are kept */
        if (c == last ? *c >= 'a' && *c <= 'z' : *c >= 'A' && *c <= 'Z') *c ^= 'a' ^ 'A';
    char *context = cleaned(text);
    free(text);
    return context;
}

/* ---- Items as tokens */

/* The tokens of the context and the choice; the last T + 1 of a longer row. */
static void add_row(Task *task, const char *context, const char *choice, const char *where) {
    const int T = task->T;
    char *bare = format_string("%.*s", (int)trimmed(context), context), *text = format_string("%s %s", context, choice);
    int all, of_context;
    int32_t *token = tokenizer_encode(task->tokenizer, text, task->V, &all);
    free(tokenizer_encode(task->tokenizer, bare, task->V, &of_context));
    if (!*bare) {
        memmove(token + 1, token, (size_t)all++ * sizeof *token);
        token[of_context++] = tokenizer_start(task->tokenizer, task->V);
    }
    free(bare);
    free(text);
    REQUIRE(all > of_context, "%s: the choice \"%.80s\" has no token of its own", where, choice);
    TaskRow row = { .token = token, .count = all - 1 < T ? all - 1 : T, .targets = all - of_context,
                    .is_cut = all - 1 > T };
    for (const char *c = choice; *c; c++) row.characters += (*c & 0xc0) != 0x80;
    memmove(token, token + all - 1 - row.count, (size_t)(row.count + 1) * sizeof *token);
    task->row = host_grow(task->row, (size_t)task->rows, &task->row_room, sizeof row, "the items of a task");
    task->row[task->rows++] = row;
}

/* Adds a row for each element of the array; returns the label. */
static int add_choices(Task *task, const Json *object, const char *context, int is_hellaswag) {
    const Json *array = json_member(object, is_hellaswag ? "endings" : "choices", JSON_ARRAY);
    const Json *label = json_member(object, "label", JSON_ANY);
    REQUIRE(array->count >= 2, "%s: \"%s\": want 2 elements or more, got %d", array->where, array->key, array->count);
    for (const Json *choice = array->child; choice; choice = choice->next) {
        const int is_text = choice->type == JSON_STRING && *choice->text && strlen(choice->text) == choice->size;
        if (!is_text) json_refuse(choice, "a text that is not empty, without \\u0000");
        char *text = is_hellaswag ? cleaned(choice->text) : NULL;
        add_row(task, context, text ? text : choice->text, object->where);
        free(text);
    }
    /* HuggingFace's file has the label as a text */
    const int digit = is_hellaswag && label->type == JSON_STRING && !label->text[1] ? label->text[0] - '0' : -1;
    return digit >= 0 && digit < array->count ? digit : (int)json_integer(label, 0, array->count - 1);
}

static void read_item(Task *task, const Json *object, int64_t line) {
    const int is_hellaswag = !strcmp(task->name, "hellaswag");
    TaskItem item = { .line = line, .first = task->rows };
    char *context = NULL;
    if (is_lambada(task)) {
        const char *text = json_string(object, "text"), *blank = strrchr(text, ' '), *word = blank ? blank + 1 : text;
        REQUIRE(*word, "%s: \"text\" is empty or ends with a blank, want a last word", object->where);
        context = format_string("%.*s", blank ? (int)(blank - text) : 0, text);
        add_row(task, context, word, object->where);
    } else {
        if (is_hellaswag) context = hellaswag_context(object);
        item.label = add_choices(task, object, context ? context : json_string(object, "context"), is_hellaswag);
    }
    free(context);
    int is_cut = 0, is_long = 0;
    item.count = task->rows - item.first;
    for (const TaskRow *row = task->row + item.first; row < task->row + task->rows; row++) {
        is_cut  |= row->is_cut;
        is_long |= row->targets > task->T;
    }
    while (is_long && task->rows > item.first) free(task->row[--task->rows].token);
    task->left_out += is_long;
    task->cut      += is_cut && !is_long;
    task->item = host_grow(task->item, (size_t)task->items, &task->item_room, sizeof item, "the items of a task");
    if (!is_long) task->item[task->items++] = item;
}

Task task_read(const char *name, const char *path, Tokenizer *tokenizer, const GPTConfig *config) {
    Task task = { .name = name, .path = path, .tokenizer = tokenizer, .T = config->T, .V = config->V };
    REQUIRE(tokenizer != TOKENIZER_IDS, "--task %s: the tokenizer of the model is unknown, want --tokenizer DIR", name);
    REQUIRE(file_exists(path), "%s: no such file (scripts/download_tasks.sh downloads HellaSwag and LAMBADA)", path);
    FileMap map = file_map(path);
    const char *kind = file_kind(map.bytes, map.size);
    REQUIRE(!kind, "%s: this is %s, want a line of JSON for each item", path, kind);
    for (FileLine line = {0}; file_next_line(map, &line); ) {
        Json *json = json_parse_line(&line, path);
        if (json) read_item(&task, json, line.number);
        json_free(json);
    }
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

/* ---- Scores */

/* Longer rows first, so that the largest batch comes first; equal ones in the order of the file. */
static int compare_rows(const void *a, const void *b) {
    const TaskRow *x = *(TaskRow *const *)a, *y = *(TaskRow *const *)b;
    return x->count != y->count ? y->count - x->count : x < y ? -1 : 1;
}

/* Whether no token is likelier than `target` after that token of the batch. */
static int is_likeliest(GPT *model, int64_t token, int32_t target, float loss, float *logits) {
    if (loss < 0.69f) return 1;                 /* probability over 1/2 */
    gpt_logits(model, token, logits);
    for (int v = 0; v < model->config.V; v++)
        if (logits[v] > logits[target]) return 0;
    return 1;
}

/* Scores rows of at most T tokens as one batch. The head, the larger part of a small model, computes only the tokens
   that precede a target: 40 items with a vocabulary of 50257 take a d4 on the CPU 8.4 s instead of 22.8. */
static void score_batch(const Task *task, GPT *model, TaskRow *const *rows, int count, int T) {
    const size_t tokens = (size_t)count * (size_t)T;
    int32_t *inputs = host_alloc(2 * tokens * sizeof *inputs, "a batch"), *targets = inputs + tokens;
    float *losses = host_alloc((tokens + (size_t)model->config.V) * sizeof *losses, "the losses of a batch");
    TokenRange *range = host_alloc((size_t)count * sizeof *range, "the targets of a batch");
    size_t scored = 0;
    memset(targets, -1, tokens * sizeof *targets);
    for (int b = 0; b < count; b++) {
        const TaskRow *row = rows[b];
        const int context = row->count - row->targets;
        memcpy(inputs + b * T, row->token, (size_t)row->count * sizeof *inputs);
        memcpy(targets + scored, row->token + context + 1, (size_t)row->targets * sizeof *targets);
        range[b] = (TokenRange){ b * T + context, row->targets };
        scored += (size_t)row->targets;
    }
    gpt_set_batch(model, count, T);
    gpt_load(model, inputs, targets, NULL);
    gpt_forward(model);
    gpt_loss_of(model, range, count);
    device_download(losses, model->acts.losses.data, scored * sizeof *losses);
    for (int b = 0, i = 0; b < count; b++) {
        TaskRow *row = rows[b];
        row->log_probability = 0;
        row->is_greedy = is_lambada(task);
        for (int t = 0; t < row->targets; t++, i++) {
            row->log_probability -= losses[i];
            row->is_greedy = row->is_greedy &&
                             is_likeliest(model, range[b].first + t, targets[i], losses[i], losses + tokens);
        }
        REQUIRE(isfinite(row->log_probability), "%s: a log-probability is %g: the weights are finite, but the "
                "activations overflow", task->path, row->log_probability);
    }
    free(range);
    free(losses);
    free(inputs);
}

void task_score(Task *task, GPT *m, int B) {
    TaskRow **order = host_alloc((size_t)task->rows * sizeof *order, "the order of the items");
    const double start_s = seconds_now();
    for (int i = 0; i < task->rows; i++) order[i] = &task->row[i];
    qsort(order, (size_t)task->rows, sizeof *order, compare_rows);
    for (int at = 0, count; at < task->rows; at += count) {
        int T = (order[at]->count + 15) / 16 * 16;      /* few different shapes */
        if (T > task->T) T = task->T;
        count = (int)fmin((double)B * task->T / T, task->rows - at);
        /* many short rows can need more scratch of the attention, and fewer tokens a larger chunk of logits */
        while ((count > 1 || T < task->T) &&
               gpt_act_plan(&m->config, m->attention_name, count, T, m->purpose).bytes > m->act_bytes) {
            if (count > 1) count--;
            else           T = task->T;
        }
        print_progress("evaluating", (double)at / task->rows, start_s);
        score_batch(task, m, order + at, count, T);
    }
    free(order);
}

/* ---- Figures */

/* Whether the label is the first row with the highest log-probability, with per_character per character. A choice with
   no character left after the clean-up is -infinity. */
static int is_right(const Task *task, const TaskItem *item, int per_character) {
    int best = 0;
    double highest = -INFINITY;
    for (int i = 0; i < item->count; i++) {
        const TaskRow *row = &task->row[item->first + i];
        double score = row->log_probability / (per_character ? row->characters : 1);
        if (score > highest) highest = score, best = i;
    }
    return best == item->label;
}

/* Mean and standard error; sqrt(p (1 - p) / (n - 1)) for a share p. */
static TaskFigure mean_of(const char *name, double sum, double squares, int count) {
    double n = count, mean = sum / n, variance = (squares - n * mean * mean) / (n - 1);
    return (TaskFigure){ name, mean, count < 2 ? NAN : sqrt(fmax(variance, 0) / n) };
}

void task_figures(const Task *task, TaskFigure figure[2]) {
    int right = 0, right_norm = 0;
    double sum = 0, squares = 0;
    for (const TaskItem *item = task->item; item < task->item + task->items; item++) {
        const TaskRow *row = &task->row[item->first];
        right += is_lambada(task) ? row->is_greedy : is_right(task, item, 0);
        right_norm += is_right(task, item, 1);
        sum -= row->log_probability;
        squares += row->log_probability * row->log_probability;
    }
    figure[0] = mean_of("acc", right, right, task->items);
    figure[1] = mean_of("acc_norm", right_norm, right_norm, task->items);
    if (!is_lambada(task)) return;
    const TaskFigure mean = mean_of("perplexity", sum, squares, task->items);
    figure[1] = (TaskFigure){ mean.name, exp(mean.value), exp(mean.value) * mean.error };      /* to first order */
}

static void write_results(FILE *file, const Task *task, const TaskFigure figure[2], double seconds) {
    for (const TaskItem *item = task->item; item < task->item + task->items; item++) {
        const TaskRow *row = task->row + item->first;
        fprintf(file, "{\"event\": \"item\", \"line\": %lld, \"label\": %d, \"log_probabilities\": [",
                (long long)item->line, item->label);
        for (int i = 0; i < item->count; i++) fprintf(file, "%s%.9g", i ? ", " : "", row[i].log_probability);
        fprintf(file, "]%s}\n", !is_lambada(task) ? "" : row->is_greedy ? ", \"greedy\": true" : ", \"greedy\": false");
    }
    fprintf(file, "{\"event\": \"task\", \"task\": \"%s\", \"items\": %d", task->name, task->items);
    for (const TaskFigure *f = figure; f < figure + 2; f++) {
        fprintf(file, ", \"%s\": %.9g", f->name, f->value);
        if (!isnan(f->error)) fprintf(file, ", \"%s_stderr\": %.9g", f->name, f->error);
    }
    fprintf(file, ", \"contexts_cut\": %d, \"left_out\": %d, \"seconds\": %.3f}\n", task->cut, task->left_out, seconds);
}

void task_evaluate(Task *task, GPT *model, int B, const char *out) {
    FILE *file = out ? file_create(out) : NULL;
    const double start = seconds_now();
    task_score(task, model, B);
    const double seconds = seconds_now() - start;
    TaskFigure figure[2];
    task_figures(task, figure);
    char text[2][96];
    for (int i = 0; i < 2; i++) {
        const TaskFigure *f = &figure[i];
        const int digits = *f->name == 'p' ? 2 : 4;
        const int size = snprintf(text[i], sizeof text[i], "%s %.*f", f->name, digits, f->value);
        if (!isnan(f->error)) snprintf(text[i] + size, sizeof text[i] - (size_t)size, " +- %.*f", digits, f->error);
    }
    print_line(stdout, "%s: %s, items %d, left out %d, contexts cut %d: %s, %s, %.1f s", task->path, task->name,
               task->items, task->left_out, task->cut, text[0], text[1], seconds);
    if (!file) return;
    write_results(file, task, figure, seconds);
    file_close_durably(file, out);
}
