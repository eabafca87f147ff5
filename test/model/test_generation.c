/* test_generation.c - Tokens through the cache: the logits are those of the whole context. */
#include "reference.h"

/* Tokens of all sequences pass through the cache: first so many at once, then one by one but for pieces of 3 and 9. The
   logits after every step are those of the whole context, of which a model to TRAIN has sequences of T tokens. */
static void cached_logits(const Reference *r, const char *attention, Purpose purpose, int T, int at_once) {
    static const int pieces[] = { 1, 1, 3, 1, 9, 1 };
    int V = r->config.V, B = r->B;
    double limit = tolerance(&r->config, r->B, r->T), worst = 0;
    float *want = reference_logits(r);
    int32_t *tokens = new_array((int64_t)B * r->T, sizeof *tokens);
    GPTConfig config = r->config;
    config.cache_tokens = config.T;
    GPT *m = new_model(config, attention, B, T, purpose);
    read_reference(m, r);
    gpt_set_cache(m, B, config.T);
    for (int first = 0, n = at_once, step = 0; first < r->T; first += n, n = pieces[step++ % COUNT(pieces)]) {
        if (first + n > r->T) n = r->T - first;
        for (int b = 0; b < B; b++)
            memcpy(tokens + b * n, r->tokens + b * r->T + first, sizeof *tokens * (size_t)n);
        gpt_set_window(m, first, n);
        gpt_load(m, tokens, NULL, NULL);
        device_freeze_weights(1);
        gpt_forward(m);
        float *got = download(gpt_last_logits(m));
        device_freeze_weights(0);
        for (int b = 0; b < B; b++) {
            double error = error_of(got + (int64_t)b * config.Vp, want + ((int64_t)b * r->T + first + n - 1) * V, V);
            worst = fmax(worst, error);
            EXPECT(error <= limit, "%s: sequence %d, tokens %d .. %d: error %.2g, want at most %.2g", attention, b,
                   first, first + n - 1, error, limit);
        }
    }
    printf("  %s in %s, %d at once: error %.2g, bound %.2g\n", attention, dtype_name(config.dtype), at_once, worst,
           limit);
}

static void cached_logits_are_those_of_the_context(const Reference *r, const char *attention) {
    const int T = r->config.T;
    cached_logits(r, attention, GENERATE, T, 1);
    cached_logits(r, attention, GENERATE, T, r->T / 2);
    cached_logits(r, attention, TRAIN, T, 7);
    cached_logits(r, attention, TRAIN, T / 2, T / 2 + 1);
}

/* The next token behind one at the position, and the last activations. */
static float *next_token(GPT *m, int position, int32_t token, int32_t *next) {
    const double uniform = 0.5;
    gpt_set_window(m, position, 1);
    gpt_load(m, &token, NULL, NULL);
    gpt_next(m, (Sampling){ .temperature = 1, .top_p = 1 }, &uniform, next);
    return download(m->acts.lnf);
}

static void no_hook(void *context, int group) { (void)context, (void)group; }

/* Steps of generation, recorded, in several splits of the keys, some right behind a change of all weights; beside a
   model with a hook, which may write weights: nothing of it is read early (device_freeze_weights). */
static void early_reads_change_no_bit(void) {
    const int T = strcmp(backend_name, "cpu") ? 300 : 9;
    for (int i = 0; i < 2; i++) {
        const GPTConfig config = { .L = 3, .NH = 2, .C = 256, .T = T, .V = 70, .dtype = dtypes[i] };
        GPT *m[2];
        int32_t next[2] = {0};
        if (device_refuse_dtype(config.dtype)) continue;
        for (int k = 0; k < 2; k++) m[k] = new_model(config, "auto", 1, T, GENERATE);
        m[1]->before_group = no_hook;
        for (int position = 0; position < T; position++) {
            float *lnf[2];
            for (int k = 0; k < 2; k++) {
                if (position % 20 == 0) gpt_init(m[k], (uint64_t)position);
                lnf[k] = next_token(m[k], position, next[k], &next[k]);
            }
            EXPECT(next[0] == next[1] && !memcmp(lnf[0], lnf[1], sizeof(float) * (size_t)config.C),
                   "%s, position %d: another result", dtype_name(config.dtype), position);
        }
    }
}

int main(void) {
    test_device_open((DeviceOptions){0});
    RUN_REFERENCE(PLAIN, WITHOUT, cached_logits_are_those_of_the_context);
    RUN_REFERENCE(AWKWARD, WITHOUT, cached_logits_are_those_of_the_context);
    RUN(early_reads_change_no_bit);
    return test_close();
}
