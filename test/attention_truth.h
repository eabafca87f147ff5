/* test/attention_truth.h - The float64 attention of one head, what its error in bf16 may be, and the check against it.

   An error may be at most twice that of the same attention with P and dS kept in bf16, dout . out taken from the out
   that was written, and the results rounded; in its maximum and in its root mean square. For the part of f32, see
   arena.h. Tq = Tk = T, q0 = 0, HS is a multiple of 8. */
#ifndef TEST_ATTENTION_TRUTH_H
#define TEST_ATTENTION_TRUTH_H
#include "attention_case.h"

enum { T_MOST = 4352 };
enum { OUT, DQ, DK, DV, OUTPUTS };
static const char *const output_name[] = { "out", "dq", "dk", "dv" };

static inline Tensor output_of(Operands x, int which) { return (const Tensor[]){ x.out, x.dq, x.dk, x.dv }[which]; }

static inline AttentionSpec spec_of(int B, int NH, int T, int HS) {
    return (AttentionSpec){ .B = B, .NH = NH, .Tq = T, .Tk = T, .HS = HS, .scale = 1 / sqrtf((float)HS),
                            .dtype = arena_dtype, .out_dtype = arena_dtype };
}

typedef struct { double *x[OUTPUTS], *lse, *delta; } Results;
typedef struct {
    Results want, from_bf16_p;                          /* the latter of exact data in bf16 only: see Exact */
    double condition, floor[OUTPUTS];                   /* see arena.h */
    double worst[OUTPUTS], root_mean_square[OUTPUTS];   /* error of the emulation */
} Truth;

/* Eight sums, for the compiler may not reorder one. */
static inline double dot(const double *a, const double *b, int n) {
    double sum[8] = {0};
    for (int i = 0; i < n; i += 8)
        for (int lane = 0; lane < 8; lane++) sum[lane] += a[i + lane] * b[i + lane];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

static inline void add(double *y, double factor, const double *x, int n) {
    for (int i = 0; i < n; i++) y[i] += factor * x[i];
}

static inline double kept(double x, double multiple) { return multiple ? round_bf16(x * multiple) / multiple : x; }

/* One head; exact when multiple is 0, else P and dS are kept in bf16, multiple times as large. */
static inline void attend(const AttentionSpec *s, Results r, double multiple, const double *q, const double *k,
                          const double *v, const double *dout) {
    int T = s->Tq, HS = s->HS;
    double scale = s->scale;
    for (int i = 0; i < OUTPUTS; i++) memset(r.x[i], 0, sizeof(double) * (size_t)(T * HS));
    #pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < T; i++) {
        double p[T_MOST], *out = r.x[OUT] + i * HS, *dq = r.x[DQ] + i * HS, greatest = -INFINITY, total = 0;
        for (int j = 0; j <= i; j++) greatest = fmax(greatest, p[j] = scale * dot(q + i * HS, k + j * HS, HS));
        for (int j = 0; j <= i; j++) total += exp(p[j] - greatest);
        r.lse[i] = greatest + log(total);
        r.delta[i] = 0;
        for (int j = 0; j <= i; j++) {
            p[j] = exp(p[j] - r.lse[i]);
            add(out, kept(p[j], multiple), v + j * HS, HS);
        }
        for (int d = 0; d < HS; d++) r.delta[i] += dout[i * HS + d] * (multiple ? round_bf16(out[d]) : out[d]);
        for (int j = 0; j <= i; j++) {
            double ds = p[j] * (dot(dout + i * HS, v + j * HS, HS) - r.delta[i]);
            add(dq, scale * kept(ds, multiple), k + j * HS, HS);
        }
    }
    #pragma omp parallel for schedule(dynamic)
    for (int j = 0; j < T; j++)
        for (int i = j; i < T; i++) {
            double p = exp(scale * dot(q + i * HS, k + j * HS, HS) - r.lse[i]);
            double ds = p * (dot(dout + i * HS, v + j * HS, HS) - r.delta[i]);
            add(r.x[DV] + j * HS, kept(p, multiple), dout + i * HS, HS);
            add(r.x[DK] + j * HS, scale * kept(ds, multiple), q + i * HS, HS);
        }
}

static inline double longest(const double *rows, int count, int HS) {
    double most = 0;
    for (int i = 0; i < count; i++) most = fmax(most, dot(rows + i * HS, rows + i * HS, HS));
    return sqrt(most);
}

static inline Results new_results(const AttentionSpec *s) {
    int64_t count = (int64_t)s->Tq * s->HS;
    return (Results){ { doubles(count), doubles(count), doubles(count), doubles(count) }, doubles(s->Tq),
                      doubles(s->Tq) };
}

static inline double root_mean_square(const double *want, const double *got, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (got[i] - want[i]) * (got[i] - want[i]);
    return sqrt(sum / (double)count);
}

/* The floor of dq and dk is that of dS = scale P (dP - delta) with the longest rows there are. Of a few roundings all
   may turn out well: the emulation is done several times, the shorter the head the more often. exact: not at all. */
static inline Truth truth_of(const AttentionSpec *s, Operands x, int exact) {
    int T = s->Tq, HS = s->HS;
    Truth t = { .want = new_results(s) };
    if (exact && arena_dtype == BF16) t.from_bf16_p = new_results(s);
    int64_t pool_before = pool_used;
    const double *q = given(x.q), *k = given(x.k), *v = given(x.v), *dout = given(x.dout);
    double longest_q = longest(q, T, HS), longest_k = longest(k, T, HS);
    double ds = 2 * s->scale * longest(dout, T, HS) * longest(v, T, HS) / sqrt(HS);
    t.condition = 2 * s->scale * longest_q * longest_k;         /* twice: a score is a sum that is rounded, too */
    t.floor[DQ] = ds * longest_k / sqrt(HS);
    t.floor[DK] = ds * longest_q / sqrt(HS);
    attend(s, t.want, 0, q, k, v, dout);
    if (exact && arena_dtype == BF16) attend(s, t.from_bf16_p, 1, q, k, v, dout);

    Results made = new_results(s);
    int draws = exact ? 1 : (int)fmin(3 + (double)(1 << 27) / ((double)T * T * HS), 40);
    for (int draw = 0; draw < draws && arena_dtype == BF16; draw++) {   /* the first rounds the truth, and no more */
        if (draw) attend(s, made, 1.5 + uniform() / 2, q, k, v, dout);
        for (int i = 0; i < OUTPUTS; i++) {
            if (!draw) memcpy(made.x[i], t.want.x[i], sizeof(double) * (size_t)(T * HS));
            t.worst[i] = fmax(t.worst[i], off(output_of(x, i), t.want.x[i], made.x[i]));
            for (int at = 0; at < T * HS; at++) made.x[i][at] = round_bf16(made.x[i][at]);
            t.root_mean_square[i] = fmax(t.root_mean_square[i], root_mean_square(t.want.x[i], made.x[i], T * HS));
        }
    }
    pool_used = pool_before;
    return t;
}

/* ---- checks of what the last run left */

/* What the results must be to the last bit: nothing; the truth, rounded; the same, but out made of a P in bf16. */
typedef enum { NOT_EXACT, EXACT, EXACT_FROM_BF16_P } Exact;

/* The result must be the truth, rounded; where that is as near to the next number as f32 allows, to either. */
static inline void expect_exact(const char *name, Tensor got, const double *want, const double *values) {
    int64_t wrong = 0;
    for (int64_t i = 0; i < tensor_count(got); i++) {
        double true_value = rint(want[i] * 0x1p40) * 0x1p-40;       /* a sum of float64 may not be quite 0 */
        wrong += !(values[i] == round_bf16(true_value * (1 + 0x1p-17)) ||
                   values[i] == round_bf16(true_value * (1 - 0x1p-17)));
    }
    EXPECT(!wrong, "%s %s: %lld of %s are not exact", arena_op, arena_case, (long long)wrong, name);
}

static inline void check_head(const AttentionSpec *s, const Truth *t, Operands x, Exact exact) {
    for (int i = 0; i < OUTPUTS; i++) {
        Tensor got = output_of(x, i);
        int from_bf16_p = exact == EXACT_FROM_BF16_P && i == OUT;       /* the others have only P of a power of two */
        const double *want = (from_bf16_p ? t->from_bf16_p : t->want).x[i], roundings = s->Tq + s->HS;
        int64_t pool_before = pool_used;
        compare(output_name[i], got, want, (Bound){ roundings, t->condition, t->floor[i], t->worst[i] });

        const double *values = result(got);
        double greatest = t->floor[i], error = root_mean_square(want, values, tensor_count(got));
        for (int64_t at = 0; at < tensor_count(got); at++) greatest = fmax(greatest, fabs(want[at]));
        double allowed = 4 * 0x1p-24 * (sqrt(roundings) + t->condition) * greatest + 2 * t->root_mean_square[i];
        if (exact && got.dtype == BF16) expect_exact(output_name[i], got, want, values);
        if (!from_bf16_p)       /* the bound is that of the truth, rounded; to the last bit is less than any bound */
            EXPECT(error <= allowed, "%s %s: root mean square of the error of %s is %.2e, bound %.2e", arena_op,
                   arena_case, output_name[i], error, allowed);
        pool_used = pool_before;
    }
}

/* ---- memory */

/* Of times the length. */
static inline int64_t memory_bytes(const Attention *a, AttentionSpec s, int times) {
    s.Tq *= times;
    s.Tk *= times;
    return (int64_t)(a->state_bytes(&s) + 2 * a->workspace_bytes(&s));
}

static int too_long[MOST_IMPLEMENTATIONS];      /* cases that fits() has left out */

/* Only what keeps all of P may find the test's arena too small. */
static inline int fits(int n, const AttentionSpec *s) {
    const Attention *a = attention_list[n];
    if (arena_used + memory_bytes(a, *s, 1) / 2 + 8 * GUARD_HALVES <= ARENA_HALVES) return 1;
    EXPECT(memory_bytes(a, *s, 2) > 3 * memory_bytes(a, *s, 1), "%s %d: %s does not fit, though its memory is linear: "
           "ARENA_HALVES is too small", a->name, n + 1, arena_case);
    too_long[n]++;
    return 0;
}

#endif
