#include "../sample.h"
#include <math.h>
#include "../check_ops.h"
#include "vecmath.h"

/* Positive floats are ordered as their bits. */
static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The largest weight c for which the tokens of weight c and more measure target: their number, or their sum where
   by_weight. Digit by digit of its bits, from the highest: O(V). 0 where all of them measure less. */
static float find_cut(const float *weight, int V, int by_weight, double target) {
    uint32_t cut = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        double measure[256] = {0};
        for (int i = 0; i < V; i++)
            if ((uint64_t)bits_of(weight[i]) >> (shift + 8) == cut)
                measure[bits_of(weight[i]) >> shift & 255] += by_weight ? weight[i] : 1;
        uint32_t digit = 255;
        while (digit > 0 && measure[digit] < target) target -= measure[digit--];
        cut = cut << 8 | digit;
    }
    float found;
    memcpy(&found, &cut, sizeof found);
    return found;
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
