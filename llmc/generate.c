#include "generate.h"
#include "launch.h"
#include "os.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../kernels/check.h"
#include "../kernels/comm.h"
#include "random.h"

static int descending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

int32_t sample_token(const float *logits, int V, double temperature, int top_k, double uniform) {
    int best = 0;
    for (int i = 0; i < V; i++) {
        REQUIRE(isfinite(logits[i]), "sample: the logit of token %d is %g: the model has diverged, take an earlier one",
                i, (double)logits[i]);
        if (logits[i] > logits[best]) best = i;
    }
    if (temperature == 0) return best;
    double *weight = host_alloc((size_t)V * sizeof *weight, "the weights of a sample"), sum = 0, min = -INFINITY;
    int equal = 0;          /* tokens to keep of those whose logit is min, the k-th largest */
    if (top_k > 0 && top_k < V) {
        for (int i = 0; i < V; i++) weight[i] = logits[i];
        qsort(weight, (size_t)V, sizeof *weight, descending);
        min = weight[top_k - 1];
        while (equal < top_k && weight[top_k - 1 - equal] == min) equal++;
    }
    for (int i = 0; i < V; i++) {
        int keep = logits[i] > min || (logits[i] == min && equal-- > 0);
        weight[i] = keep ? exp(((double)logits[i] - (double)logits[best]) / temperature) : 0;
        sum += weight[i];
    }
    /* uniform * sum may round up to sum: then the last token with a weight is chosen */
    int chosen = best;
    double left = uniform * sum, passed = 0;
    for (int i = 0; i < V && passed <= left; i++) {
        if (weight[i] > 0) chosen = i;
        passed += weight[i];
    }
    free(weight);
    return chosen;
}

static void print_token(Tokenizer tokenizer, int32_t token, FILE *file, FILE *copy) {
    tokenizer_print(tokenizer, token, file);
    if (copy) tokenizer_print(tokenizer, token, copy);
}

void sample_text(GPT *model, Tokenizer tokenizer, const Sample *sample, int64_t step, FILE *file) {
    int T = model->config.T, V = model->config.V, length;
    int32_t *prompt  = tokenizer_encode(tokenizer, sample->prompt, V, &length);
    int32_t *context = host_alloc((size_t)T * sizeof *context, "the context of a sample");
    float   *logits  = host_alloc((size_t)V * sizeof *logits, "the logits of a token");

    for (int i = 0; i < length; i++) print_token(tokenizer, prompt[i], file, sample->copy);
    int t = length < T ? length : T;
    memcpy(context, prompt + length - t, (size_t)t * sizeof *context);
    if (t == 0) context[t++] = tokenizer_start(tokenizer, V);

    for (int i = 0; i < sample->count && !stop_requested(); i++) {
        gpt_set_batch(model, 1, t);
        gpt_load(model, context, NULL);
        gpt_forward(model);
        gpt_last_logits(model, logits);
        double uniform = random_uniform(sample->seed, RANDOM_SAMPLE, (uint32_t)step, (uint64_t)i);
        int32_t token = sample_token(logits, V, sample->temperature, sample->top_k, uniform);
        print_token(tokenizer, token, file, sample->copy);
        fflush(file);
        if (t == T) {
            t = T / 2;
            memmove(context, context + T - t, (size_t)t * sizeof *context);
        }
        context[t++] = token;
    }
    tokenizer_print_end(tokenizer, file);
    putc('\n', file);
    fflush(file);
    free(prompt);
    free(context);
    free(logits);
}

void print_sample(GPT *model, Tokenizer tokenizer, const Settings *s, Report *report, int64_t step) {
    char *text = NULL;
    size_t size;
    if (comm_rank) return;
    if (step) report_line(stdout, "step %lld: a sample", (long long)step);
    launch_busy(1);             /* other ranks wait */
    FILE *copy = open_memstream(&text, &size);
    REQUIRE(copy, "out of memory: a sample");
    sample_text(model, tokenizer, &(Sample){ .prompt = s->prompt, .count = (int)s->sample_tokens, .copy = copy,
                .temperature = s->temperature, .top_k = (int)s->top_k, .seed = (uint64_t)s->seed }, step, stdout);
    fclose(copy);
    report_sample(report, step, text, size);
    free(text);
    launch_busy(0);
}
