#include "evaluate.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "../../kernels/check.h"
#include "../../kernels/comm.h"
#include "../../kernels/device.h"
#include "../base/os.h"
#include "../base/terminal.h"
#include "../ranks/ranks.h"

static int64_t windows_of(const Tokens *tokens, int64_t max_tokens, int T) {
    int64_t windows = tokens_windows(tokens, T), wanted = max_tokens ? (max_tokens + T - 1) / T : windows;
    return wanted < windows ? wanted : windows;
}

/* This rank's tokens of window w; from `wanted` on, ignored targets. Returns the number of targets not ignored. */
static int64_t load_window(const Tokens *tokens, int64_t w, int64_t wanted, const RingSplit *split, int32_t *window,
                           int32_t *inputs, int32_t *targets) {
    const int T = split->T, local = ring_tokens(split, split->rank);
    int64_t count = 0;
    if (w < wanted) tokens_eval_window(tokens, w, T, window, window + T);
    else for (int t = 0; t < T; t++) window[t] = 0, window[T + t] = -1;
    ring_copy_local(split, inputs, window);
    ring_copy_local(split, targets, window + T);
    for (int t = 0; t < local; t++) count += targets[t] >= 0;
    return count;
}

double evaluate(GPT *model, const Tokens *tokens, int64_t max_tokens, int B, Report *report, int64_t *first) {
    const RingSplit split = gpt_split(&model->config);
    const int T = split.T, local = ring_tokens(&split, split.rank), is_shared = split.size > 1;
    const int64_t groups = gpt_groups(&model->config), group = comm_rank / split.size;
    const int64_t wanted = windows_of(tokens, max_tokens, T);
    *first = wanted == tokens_windows(tokens, T) ? 0 : wanted * T;
    const size_t size = (size_t)B * (size_t)local;
    int32_t *window = host_alloc(2 * (size_t)T * sizeof *window, "a sequence");
    int32_t *inputs = host_alloc(size * sizeof *inputs, "a batch");
    int32_t *targets = host_alloc(size * sizeof *targets, "a batch");
    float *losses = host_alloc(size * sizeof *losses, "the losses of a batch");
    double total = 0;
    int64_t w = 0, count = 0;           /* ranks that share sequences compute and stop together */
    for (; w < wanted && !(is_shared ? ranks_stop(ranks_stops()) : stop_requested()); w += groups * B) {
        const int64_t begin = w + group * B, left = wanted - begin;
        const int rows = is_shared || left > B ? B : (int)left;
        if (rows <= 0) continue;
        report_progress(report, begin, wanted);
        for (int b = 0; b < rows; b++)
            count += load_window(tokens, begin + b, wanted, &split, window, inputs + (int64_t)b * local,
                                 targets + (int64_t)b * local);
        gpt_set_batch(model, rows, local);
        gpt_load(model, inputs, targets);
        gpt_forward(model);
        gpt_loss(model);
        device_download(losses, model->acts.losses.data, (size_t)rows * (size_t)local * sizeof *losses);
        for (int64_t i = 0; i < (int64_t)rows * local; i++) total += losses[i];    /* an ignored target has loss 0 */
    }
    report_progress(report, wanted, wanted);
    free(window);
    free(losses);
    free(targets);
    free(inputs);
    double sums[] = { total, (double)count, w < wanted };
    ranks_sum(sums, 3);
    if (sums[2] == 0) return sums[0] / sums[1];
    *first = -1;
    return NAN;
}

double targets_per_byte(const Tokens *tokens, Tokenizer tokenizer, int64_t max_tokens, int T) {
    if (!tokenizer_bpe(tokenizer)) return tokenizer == TOKENIZER_BYTES ? 1 : NAN;
    const BpeVocabulary *v = bpe_vocabulary(tokenizer_bpe(tokenizer));
    int32_t *window = host_alloc(2 * (size_t)T * sizeof *window, "a sequence"), *targets = window + T;
    int64_t wanted = windows_of(tokens, max_tokens, T), count = 0, bytes = 0;
    int is_unknown = 0;                     /* an id that the tokenizer does not have */
    for (int64_t w = 0; w < wanted; w++) {
        count += tokens_eval_window(tokens, w, T, window, targets);
        for (int t = 0; t < T; t++)
            if (targets[t] >= v->V) is_unknown = 1;
            else if (targets[t] >= 0 && !v->token[targets[t]].is_special) bytes += v->token[targets[t]].size;
    }
    free(window);
    return is_unknown || !bytes ? NAN : (double)count / (double)bytes;
}

void evaluate_file(GPT *model, Tokenizer tokenizer, const char *checkpoint, const Corpus *corpus, const char *path,
                   int64_t max_tokens, int B) {
    const Tokens *tokens = corpus->val;
    int are_bytes = tokens_are_bytes(tokens);
    int64_t first;
    char text[192];
    REQUIRE(are_bytes == (tokenizer == TOKENIZER_BYTES), "%s: %s, the model %s was trained on %s%s", path,
            are_bytes ? "this is a text" : "these are token shards", checkpoint, tokenizer_name(tokenizer),
            are_bytes ? "; want --tokenizer DIR" : "");
    tokens_check(tokens, model->config.V);
    double start = seconds_now(), loss = evaluate(model, tokens, max_tokens, B, &(Report){0}, &first);
    REQUIRE(isfinite(loss), "%s: the loss is %g: the weights are finite, but the activations overflow", checkpoint,
            loss);
    const double rate = targets_per_byte(tokens, tokenizer, max_tokens, model->config.T);
    const double floor = first ? NAN : corpus->val_floor;
    char part[48] = "all";
    if (first) snprintf(part, sizeof part, "the first %lld", (long long)first);
    print_line(stdout, "%s: loss %s, %s of %s%lld tokens, %.1f s", path, loss_text(loss, rate, text), part,
               corpus->train ? "the last " : "", (long long)tokens_count(tokens), seconds_now() - start);
    if (!isnan(floor)) printf("the floor, this text's entropy under the grammar that wrote it, is %.4f\n", floor);
    REQUIRE(!(loss < floor), "the loss is below the floor: the model must have been trained on %s", path);
}
