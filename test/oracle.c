/* oracle.c - The formulas of all ops in double, one loop per sum, without tiling: they can be checked by reading. */
#include "oracle.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t random_state;

void random_open(void) {
    const char *seed = getenv("TEST_SEED");
    random_state = seed ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL);
    printf("TEST_SEED=%llu\n", (unsigned long long)random_state);
}

/* The high bits of a 64-bit linear congruential generator (Knuth's MMIX). */
double uniform(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(random_state >> 40) * 0x1p-23 - 1;
}

int uniform_int(int min, int max) { return min + (int)((uniform() + 1) / 2 * ((double)max - min + 1)); }

/* A double has 52 bits behind the point, a bf16 7: 45 are dropped; below 2^-126 a bf16 has a fixed point, 2^-133. */
double round_bf16(double x) {
    if (fabs(x) < 0x1p-126) return copysign(rint(x * 0x1p133) * 0x1p-133, x);
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (!isfinite(x)) return x;
    bits += (UINT64_C(1) << 44) - 1 + (bits >> 45 & 1);
    bits &= ~((UINT64_C(1) << 45) - 1);
    memcpy(&x, &bits, sizeof x);
    return fabs(x) < 0x1p128 ? x : copysign(INFINITY, x);
}

double round_bf16_shifted(double x, double shift) {
    const double step = ldexp(1, (fabs(x) < 0x1p-126 ? -126 : ilogb(x)) - 7);
    return x != 0 ? step * (rint(x / step + shift) - shift) : 0;
}

double round_e4m3(double x) {
    const double step = ldexp(1, (fabs(x) < 0x1p-6 ? -6 : ilogb(x)) - 3);
    return isnan(x) ? x : copysign(fmin(fabs(rint(x / step) * step), 448), x);
}

double e4m3_value(uint8_t bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    const double size = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return (bits & 127) == 127 ? NAN : bits & 128 ? -size : size;
}

double oracle_stores, oracle_shift;
static double stored(double x)  { return oracle_stores ? round_bf16(x * oracle_stores) / oracle_stores : x; }
static double written(double x) { return oracle_stores ? round_bf16(x) : x; }

static void zero(double *a, int64_t count) { memset(a, 0, sizeof *a * (size_t)count); }

/* Eight sums side by side: the compiler may not reorder one. */
static double dot(const double *a, const double *b, int n) {
    double sum[8] = {0}, rest = 0;
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int lane = 0; lane < 8; lane++) sum[lane] += a[i + lane] * b[i + lane];
    for (; i < n; i++) rest += a[i] * b[i];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7])) + rest;
}

/* y += factor x */
static void add(double *y, double factor, const double *x, int n) {
    for (int i = 0; i < n; i++) y[i] += factor * x[i];
}

/* ---- embedding */

void oracle_embedding_forward(double *x, const int *tokens, const double *wte, const double *wpe, int B, int T, int C) {
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++)
            for (int c = 0; c < C; c++)
                x[(b * T + t) * C + c] = wte[tokens[b * T + t] * C + c] + wpe[t * C + c];
}

void oracle_embedding_backward(double *dwte, double *dwpe, const double *dx, const int *tokens,
                               int B, int T, int C, int Vp, int positions) {
    zero(dwte, (int64_t)Vp * C);
    zero(dwpe, (int64_t)positions * C);
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++) {
            add(dwte + tokens[b * T + t] * C, 1, dx + (b * T + t) * C, C);
            add(dwpe + t * C,                 1, dx + (b * T + t) * C, C);
        }
}

/* ---- layernorm */

void oracle_residual_layernorm_forward(double *sum, double *normed, double *mean, double *rstd,
                                       const double *x, const double *branch, const double *weight, const double *bias,
                                       int rows, int C) {
    for (int r = 0; r < rows; r++) {
        double *s = sum + r * C, total = 0, variance = 0;
        for (int c = 0; c < C; c++) s[c] = written(x[r * C + c] + (branch ? branch[r * C + c] : 0));
        for (int c = 0; c < C; c++) total += s[c];
        mean[r] = total / C;
        for (int c = 0; c < C; c++) variance += (s[c] - mean[r]) * (s[c] - mean[r]) / C;
        rstd[r] = 1 / sqrt(variance + 1e-5);
        for (int c = 0; c < C; c++) normed[r * C + c] = (s[c] - mean[r]) * rstd[r] * weight[c] + bias[c];
    }
}

void oracle_layernorm_backward(double *dx, double *dweight, double *dbias, const double *dnormed, const double *x,
                               const double *mean, const double *rstd, const double *weight, int rows, int C) {
    zero(dweight, C);
    zero(dbias, C);
    for (int r = 0; r < rows; r++) {
        double g_mean = 0, gh_mean = 0;      /* means of g = dh and of g h, where h = (x - mean) rstd */
        for (int c = 0; c < C; c++) {
            double h = (x[r * C + c] - mean[r]) * rstd[r], g = dnormed[r * C + c] * weight[c];
            g_mean += g / C;
            gh_mean += g * h / C;
            dweight[c] += dnormed[r * C + c] * h;
            dbias[c] += dnormed[r * C + c];
        }
        for (int c = 0; c < C; c++) {
            double h = (x[r * C + c] - mean[r]) * rstd[r], g = dnormed[r * C + c] * weight[c];
            dx[r * C + c] = rstd[r] * (g - g_mean - h * gh_mean);
        }
    }
}

/* ---- matmul */

void oracle_matmul_forward(double *out, const double *x, const double *weight, const double *bias,
                           int rows, int N, int K) {
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < N; n++) out[r * N + n] = dot(x + r * K, weight + n * K, K) + (bias ? bias[n] : 0);
}

void oracle_matmul_backward(double *dx, double *dweight, double *dbias, const double *dout, const double *x,
                            const double *weight, int rows, int N, int K) {
    zero(dx, (int64_t)rows * K);
    zero(dweight, (int64_t)N * K);
    zero(dbias, N);
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < N; n++) {
            add(dx + r * K,      dout[r * N + n], weight + n * K, K);
            add(dweight + n * K, dout[r * N + n], x + r * K, K);
            dbias[n] += dout[r * N + n];
        }
}

/* ---- gelu */

static const double sqrt_2_over_pi = 0.79788456080286535588;

void oracle_gelu_forward(double *y, const double *x, int count) {
    for (int i = 0; i < count; i++)
        y[i] = x[i] / 2 * (1 + tanh(sqrt_2_over_pi * (x[i] + 0.044715 * x[i] * x[i] * x[i])));
}

void oracle_gelu_backward(double *dx, const double *dy, const double *x, int count) {
    for (int i = 0; i < count; i++) {
        double t  = tanh(sqrt_2_over_pi * (x[i] + 0.044715 * x[i] * x[i] * x[i]));
        double dt = (1 - t * t) * sqrt_2_over_pi * (1 + 3 * 0.044715 * x[i] * x[i]);
        dx[i] = dy[i] * ((1 + t) / 2 + x[i] / 2 * dt);
    }
}

/* ---- dropout */

void oracle_dropout(double *out, const double *x, const Dropout *d, uint64_t first, int B, int T, int C) {
    const uint32_t threshold = dropout_threshold(d->rate);
    for (int i = 0; i < B * T * C; i++) {
        const DropoutMask mask = dropout_mask(d->seed, d->site, first + (uint64_t)(i / C / T), 0);
        const int t = i / C % T, c = i % C;
        const Random64 kept = dropout_draw(mask, (uint32_t)t / 8, (uint32_t)c / 8, dropout_digits(threshold));
        out[i] = dropout_bit(kept, t % 8, c % 8) ? x[i] * 4096 / (4096 - threshold) : 0;
    }
}

/* ---- head */

/* p = softmax(s); returns the log-sum-exp. p may be s. */
static double softmax(double *p, const double *s, int n) {
    double max = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) max = fmax(max, s[i]);
    for (int i = 0; i < n; i++) sum += exp(s[i] - max);
    double lse = max + log(sum);
    for (int i = 0; i < n; i++) p[i] = exp(s[i] - lse);
    return lse;
}

void oracle_head_loss(double *losses, double *dx, double *dwte, const double *x, const double *wte, const int *targets,
                      int rows, int C, int V, int Vp, double dloss) {
    double *logits = malloc(sizeof *logits * (size_t)V);
    zero(dx, (int64_t)rows * C);
    zero(dwte, (int64_t)Vp * C);
    for (int r = 0; r < rows; r++) {
        losses[r] = 0;
        if (targets[r] == -1) continue;
        for (int i = 0; i < V; i++) logits[i] = written(dot(x + r * C, wte + i * C, C));
        double logit = logits[targets[r]], *p = logits;
        losses[r] = softmax(p, logits, V) - logit;
        for (int i = 0; i < V; i++) {
            double dlogit = stored(dloss * (p[i] - (i == targets[r])));
            add(dx + r * C,   dlogit, wte + i * C, C);
            add(dwte + i * C, dlogit, x + r * C, C);
        }
    }
    free(logits);
}

/* ---- attention: the head h of sequence b at time t is HS columns of a (B,T,NH*HS) array. One pass over the query
   rows, one over the keys: every element of an output is a sum of one thread in a fixed order. */

#define AT(array, T, b, t, h) ((array) + (((int64_t)(b) * (T) + (t)) * spec->NH + (h)) * spec->HS)

int oracle_keys_seen(const AttentionSpec *spec, int i) {
    int64_t keys = spec->causal ? (int64_t)spec->q0 + i + 1 : spec->Tk;
    return (int)(keys < 0 ? 0 : keys < spec->Tk ? keys : spec->Tk);
}

int oracle_head;

double oracle_p_factor(const AttentionSpec *spec, int b, int h, int i, int j) {
    const Dropout *d = &spec->dropout;
    if (d->rate == 0) return 1;
    DropoutMask mask = dropout_mask(d->seed, d->site, (d->sequence ? *d->sequence : 0) + (uint64_t)b,
                                    (uint32_t)(oracle_head + h));
    const DropoutDigits digits = dropout_digits(dropout_threshold(d->rate));
    const Random64 kept = dropout_draw(mask, (uint32_t)i / 8, (uint32_t)j / 8, digits);
    return dropout_bit(kept, i % 8, j % 8) ? dropout_scale(d->rate) : 0;
}

void oracle_attention_forward(const AttentionSpec *spec, double *out, double *lse,
                              const double *q, const double *k, const double *v) {
    int Tq = spec->Tq, Tk = spec->Tk, NH = spec->NH, HS = spec->HS;
    zero(out, (int64_t)spec->B * Tq * NH * HS);
    #pragma omp parallel for collapse(3) schedule(dynamic, 4) copyin(oracle_stores)
    for (int b = 0; b < spec->B; b++)
        for (int h = 0; h < NH; h++)
            for (int i = 0; i < Tq; i++) {
                int seen = oracle_keys_seen(spec, i);
                double p[Tk];
                for (int j = 0; j < seen; j++) p[j] = spec->scale * dot(AT(q, Tq, b, i, h), AT(k, Tk, b, j, h), HS);
                lse[((int64_t)b * NH + h) * Tq + i] = softmax(p, p, seen);
                for (int j = 0; j < seen; j++) p[j] = oracle_p_factor(spec, b, h, i, j) * stored(p[j]);
                for (int j = 0; j < seen; j++) add(AT(out, Tq, b, i, h), p[j], AT(v, Tk, b, j, h), HS);
            }
}

void oracle_attention_backward(const AttentionSpec *spec, double *dq, double *dk, double *dv, const double *dout,
                               const double *lse, const double *q, const double *k, const double *v) {
    int B = spec->B, Tq = spec->Tq, Tk = spec->Tk, NH = spec->NH, HS = spec->HS;
    const double shift = oracle_shift;
    double *delta = malloc(sizeof *delta * (size_t)((int64_t)B * NH * Tq));     /* dout . out = the sum of p dp */
    zero(dq, (int64_t)B * Tq * NH * HS);
    zero(dk, (int64_t)B * Tk * NH * HS);
    zero(dv, (int64_t)B * Tk * NH * HS);
    #pragma omp parallel for collapse(3) schedule(dynamic, 4) copyin(oracle_stores)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < NH; h++)
            for (int i = 0; i < Tq; i++) {
                int64_t row = ((int64_t)b * NH + h) * Tq + i;
                int seen = oracle_keys_seen(spec, i);
                const double *q_i = AT(q, Tq, b, i, h), *dout_i = AT(dout, Tq, b, i, h);
                double p[Tk], out[HS];
                zero(out, HS);
                for (int j = 0; j < seen; j++) {
                    p[j] = exp(spec->scale * dot(q_i, AT(k, Tk, b, j, h), HS) - lse[row]);
                    add(out, oracle_p_factor(spec, b, h, i, j) * stored(p[j]), AT(v, Tk, b, j, h), HS);
                }
                for (int d = 0; d < HS; d++) out[d] = oracle_stores ? round_bf16_shifted(out[d], shift) : out[d];
                delta[row] = dot(dout_i, out, HS);
                for (int j = 0; j < seen; j++) {
                    double dp = oracle_p_factor(spec, b, h, i, j) * dot(dout_i, AT(v, Tk, b, j, h), HS);
                    double ds = stored(p[j] * (dp - delta[row]));
                    add(AT(dq, Tq, b, i, h), spec->scale * ds, AT(k, Tk, b, j, h), HS);
                }
            }
    #pragma omp parallel for collapse(3) schedule(dynamic, 4) copyin(oracle_stores)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < NH; h++)
            for (int j = 0; j < Tk; j++)
                for (int i = 0; i < Tq; i++) {
                    int64_t row = ((int64_t)b * NH + h) * Tq + i;
                    if (j >= oracle_keys_seen(spec, i)) continue;
                    const double *q_i = AT(q, Tq, b, i, h), *dout_i = AT(dout, Tq, b, i, h);
                    double p = exp(spec->scale * dot(q_i, AT(k, Tk, b, j, h), HS) - lse[row]);
                    double kept = oracle_p_factor(spec, b, h, i, j);
                    double ds = stored(p * (kept * dot(dout_i, AT(v, Tk, b, j, h), HS) - delta[row]));
                    add(AT(dv, Tk, b, j, h), kept * stored(p), dout_i, HS);
                    add(AT(dk, Tk, b, j, h), spec->scale * ds, q_i, HS);
                }
    free(delta);
}

/* ---- update */

double oracle_norm(const double *grad, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += grad[i] * grad[i];
    return sqrt(sum);
}

double oracle_clip(double norm, double max_norm) {
    return max_norm > 0 && norm > max_norm ? max_norm / norm : 1;
}

void oracle_adamw(double *param, double *m, double *v, const double *grad, int64_t count, int decay,
                  const StepStats *stats) {
    double beta1 = stats->beta1, beta2 = stats->beta2;
    for (int64_t i = 0; i < count; i++) {
        double g = stats->clip * grad[i];
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        double step = m[i] / stats->correction1 / (sqrt(v[i] / stats->correction2) + stats->eps);
        param[i] -= stats->learning_rate * (step + (decay ? stats->weight_decay * param[i] : 0));
    }
}

/* ---- Muon */

/* (x x^T) x = x (x^T x): works on the transpose of a tall matrix. */
static void newton_schulz(double *x, int rows, int columns) {
    const int wide = rows <= columns, S = wide ? rows : columns, K = wide ? columns : rows;
    const double norm = oracle_norm(x, (int64_t)rows * columns) + 1e-7;
    double *y = malloc(sizeof *y * (size_t)(2 * S * K + 2 * S * S)), *next = y + S * K;
    double *gram = next + S * K, *sum = gram + S * S;
    for (int i = 0; i < S * K; i++) y[i] = written(x[wide ? i : i % K * S + i / K] / norm);
    for (int iteration = 0; iteration < 5; iteration++) {
        for (int i = 0; i < S * S; i++) gram[i] = written(dot(y + i / S * K, y + i % S * K, K));
        for (int i = 0; i < S * S; i++)
            sum[i] = written(-4.7750 * gram[i] + 2.0315 * dot(gram + i / S * S, gram + i % S * S, S));
        zero(next, S * K);
        add(next, 3.4445, y, S * K);
        for (int i = 0; i < S * S; i++) add(next + i / S * K, sum[i], y + i % S * K, K);
        for (int i = 0; i < S * K; i++) y[i] = written(next[i]);
    }
    for (int i = 0; i < S * K; i++) x[wide ? i : i % K * S + i / K] = y[i];
    free(y);
}

void oracle_muon(double *param, double *m, const double *grad, int rows, int columns, const StepStats *stats) {
    double *x = malloc(sizeof *x * (size_t)(rows * columns));
    for (int i = 0; i < rows * columns; i++) {
        m[i] = 0.95 * m[i] + stats->clip * grad[i];
        x[i] = written(stats->clip * grad[i] + 0.95 * m[i]);
    }
    newton_schulz(x, rows, columns);
    for (int i = 0; i < rows * columns; i++)
        param[i] -= stats->learning_rate * (0.2 * sqrt(fmax(rows, columns)) * x[i] + stats->weight_decay * param[i]);
    free(x);
}

void oracle_reflect(double *x, const double *u, const double *v, int rows, int columns) {
    const double uu = dot(u, u, rows), vv = dot(v, v, columns);
    for (int r = 0; r < rows; r++) add(x + r * columns, -2 * dot(x + r * columns, v, columns) / vv, v, columns);
    for (int c = 0; c < columns; c++) {
        double xu = 0;
        for (int r = 0; r < rows; r++) xu += x[r * columns + c] * u[r];
        for (int r = 0; r < rows; r++) x[r * columns + c] -= 2 * xu / uu * u[r];
    }
}
