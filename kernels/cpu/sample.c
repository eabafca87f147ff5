#include "../sample.h"
#include <stdlib.h>
#include "../check_ops.h"
#include "vecmath.h"

static int descending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* The largest weight c for which the tokens of weight c and more measure target: their number, or their sum where
   by_weight. The smallest weight where all of them measure less. */
static float find_cut(const float *weight, int V, int by_weight, double target) {
    float *sorted = malloc(sizeof *sorted * (size_t)V), cut;
    int i = 0;
    REQUIRE(sorted, "out of memory: %d sorted weights", V);
    qsort(memcpy(sorted, weight, sizeof *sorted * (size_t)V), (size_t)V, sizeof *sorted, descending);
    while (i + 1 < V && (target -= by_weight ? sorted[i] : 1) > 0) i++;
    cut = sorted[i];
    free(sorted);
    return cut;
}

/* The sum of the weights from cut on; the others become 0. */
static double keep(float *weight, int V, double cut) {
    double sum = 0;
    for (int i = 0; i < V; i++) sum += weight[i] = weight[i] >= cut ? weight[i] : 0;
    return sum;
}

static int32_t choose(float *x, int V, const Sampling *s, double uniform) {
    const float temperature = (float)s->temperature;
    int32_t best = 0, chosen = 0;
    for (int i = 0; i < V; i++) {
        if (!isfinite(x[i])) return -1 - i;
        if (x[i] > x[best]) best = i;
    }
    if (s->temperature == 0) return best;
    const float max = x[best];
    for (int i = 0; i < V; i++) x[i] = x[i] == max ? 1 : vec_exp((x[i] - max) / temperature);
    if (s->top_k > 0 && s->top_k < V) keep(x, V, find_cut(x, V, 0, s->top_k));
    if (s->top_p < 1)                 keep(x, V, find_cut(x, V, 1, s->top_p * keep(x, V, 0)));
    /* uniform * sum may round up to sum: then the last token with a weight is chosen */
    double left = uniform * keep(x, V, 0);
    for (int i = 0; i < V && left >= 0; i++) {
        if (x[i] > 0) chosen = i;
        left -= x[i];
    }
    return chosen;
}

void sample_tokens(Tensor tokens, Tensor logits, Tensor uniform, int V, Sampling sampling) {
    check_sample_tokens(tokens, logits, uniform, V);
    #pragma omp parallel for schedule(dynamic)
    for (int64_t b = 0; b < logits.dim[0]; b++)
        ((int32_t *)tokens.data)[b] = choose((float *)logits.data + b * logits.pitch, V, &sampling,
                                             ((const double *)uniform.data)[b]);
}
