#include "evaluate.h"
#include "../ranks/ranks.h"

/* Bytes of a target's text; NaN where they are unknown. */
static double bytes_of(Tokenizer *tokenizer, int32_t target) {
    const BpeVocabulary *v = tokenizer->is_bpe ? &tokenizer->v : NULL;
    if (!v) return tokenizer == TOKENIZER_BYTES ? 1 : NAN;
    return target >= v->V ? NAN : v->token[target].is_special ? 0 : v->token[target].size;
}

Evaluation evaluate(GPT *model, const Tokens *tokens, Tokenizer *tokenizer, int64_t max_tokens, int B) {
    const RingSplit split = gpt_split(&model->config);
    const int T = split.T, local = gpt_local_tokens(&model->config), size = B * local, is_shared = split.size > 1;
    const int64_t groups = gpt_groups(&model->config), group = comm_rank / split.size;
    const int64_t all = tokens_windows(tokens, T), some = max_tokens ? (max_tokens + T - 1) / T : all;
    const int64_t wanted = some < all ? some : all;
    int32_t *batch = host_alloc((size_t)(2 * size + 2 * T) * sizeof *batch, "a batch"), *window = batch + 2 * size;
    float *losses = host_alloc((size_t)size * sizeof *losses, "the losses of a batch");
    const double start_s = seconds_now();
    double sums[4] = { 0 };             /* loss, targets, bytes of text, whether a stop cut it short */
    gpt_set_batch(model, B, local);
    int64_t w = 0;                      /* ranks that share sequences compute and stop together */
    for (; w < wanted && !(is_shared ? ranks_stop(ranks_stops()) : stop_requested()); w += groups * B) {
        const int64_t begin = w + group * B;
        if (begin >= wanted && !is_shared) continue;
        if (!comm_rank) print_progress("evaluating", (double)begin / (double)wanted, start_s);
        for (int b = 0; b < B; b++) {
            memset(window + T, -1, (size_t)T * sizeof *window);     /* beyond the end: ignored targets */
            if (begin + b < wanted) tokens_eval_window(tokens, begin + b, T, window, window + T);
            ring_copy_local(&split, batch + b * local, window);
            ring_copy_local(&split, batch + size + b * local, window + T);
        }
        gpt_load(model, batch, batch + size, NULL);
        gpt_forward(model);
        gpt_loss(model);
        device_download(losses, model->acts.losses.data, (size_t)size * sizeof *losses);
        for (int i = 0; i < size; i++) {
            if (batch[size + i] < 0) continue;
            sums[0] += losses[i];
            sums[1]++;
            sums[2] += bytes_of(tokenizer, batch[size + i]);
        }
    }
    free(losses);
    free(batch);
    sums[3] = w < wanted;
    ranks_sum(sums, 4);
    if (sums[3] > 0) return (Evaluation){ .loss = NAN, .first = -1 };
    return (Evaluation){ .loss = sums[0] / sums[1], .first = wanted < all ? wanted * T : 0,
                         .targets_per_byte = sums[2] > 0 ? sums[1] / sums[2] : NAN };
}

void best_loss_add(BestLoss *best, int64_t step, double loss) {
    best->since++;
    if (!isfinite(loss) || (best->step && loss >= best->loss)) return;
    *best = (BestLoss){ .step = step, .loss = loss, .outdated = best->is_extra ? best->step : 0 };
}
