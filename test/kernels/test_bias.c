/* The bias of rounding in flash attention (Qiu, Yao 2025, arXiv 2510.04212), and that ours is free of it.

   dS = P (dP - delta) must add up to 0 over a row, and does so as well as out and P agree. Where several scores of a
   row tie for its maximum m, P = exp(s - m) is 1 for all of them, and
   - out, the mean of two v, lies half way between two bf16 in every other column. What the other keys add, however
     little, decides which of them is taken: the same one in every row, a quarter of a step off in the mean;
   - P of a score that is less by under 2^-9 is rounded up to 1, while the sum that divides takes it as it is.
   So delta is wrong by the same sign in row after row, and the weights' gradients add that up.

   The remedy: exp(s - m - f), where f makes P less than 1 by a fraction of one step of bf16 that is taken from the low
   bits of m. P of the tied keys is rounded up in some rows and down in others; neither the sum that divides nor lse
   know of it. Where one key has all the weight, P is off by half a step at most, and out is still its v.

   The mean error over rows counts as zero when it is under 4 standard errors and a 32nd of a step. */
#include "attention_case.h"

enum { FIRST_ROW_COUNTED = 64 };
typedef enum { PAIR, NEAR_TIES } Tie;
typedef struct { double sum, squares; int count; } Sample;

static void sample(Sample *s, double x) { s->sum += x; s->squares += x * x; s->count++; }
static double mean(Sample s)            { return s.sum / s.count; }
static double standard_error(Sample s)  { return sqrt((s.squares / s.count - mean(s) * mean(s)) / s.count); }
static int    is_zero(Sample s)         { return fabs(mean(s)) <= 4 * standard_error(s) + 1.0 / 32; }

/* Two keys with equal scores, or eight within 2^-9; the others' P adds up to 5e-4 at most. The tied v are in [1, 2), so
   that a step is 2^-7. */
static void fill_ties(const AttentionSpec *s, Tie tie, Operands x) {
    int tied = tie == PAIR ? 2 : 8;
    fill(x.q, 0, 0.5);
    fill(x.k, 0, 0.5);
    fill(x.v, 0, 1);
    fill(x.dout, 1, 0.5);
    for (int i = 0; i < s->Tq; i++)
        for (int d = 0; d < s->HS; d++) {
            int64_t kd = i * x.k.pitch + d;
            if (d < 9) set(x.q, i * x.q.pitch + d, 3.7 + 0.1 * uniform());
            if (d < 9) set(x.k, kd, i >= tied ? 0 : d < 8 ? 4 : tie == PAIR ? 0 : -i * 0x1p-11);
            if (d >= 9 && i < tied) set(x.k, kd, get(x.k, d));      /* as key 0 */
            if (i < tied) set(x.v, i * x.v.pitch + d, 1.5 + uniform() / 2);
        }
}

/* A row of out as flash makes it: f32 but for P, and out at the end. */
static void emulate(const AttentionSpec *s, double *out, const double *q, const double *k, const double *v, int keys,
                    int moved) {
    float score[T_MAX], scale2 = s->scale * 1.44269504f, top = -INFINITY, total = 0, sums[128] = {0};
    for (int j = 0; j < keys; j++) {
        score[j] = 0;
        for (int d = 0; d < s->HS; d++) score[j] += (float)q[d] * (float)k[j * s->HS + d];
        top = fmaxf(top, score[j]);
    }
    uint32_t bits;
    memcpy(&bits, &top, sizeof bits);
    float fraction = moved ? (float)(bits & 0xfff) / 4096 * 0.005647f : 0;      /* -log2(1 - 2^-8) */
    for (int j = 0; j < keys; j++) {
        float p = exp2f((score[j] - top) * scale2 - fraction);
        total += p;
        for (int d = 0; d < s->HS; d++) sums[d] += (float)round_bf16(p) * (float)v[j * s->HS + d];
    }
    for (int d = 0; d < s->HS; d++) out[d] = round_bf16(sums[d] * (1 / total));
}

/* In steps of bf16, the mean over the columns. */
static double out_error(const AttentionSpec *s, const double *out, const double *want) {
    double sum = 0;
    for (int d = 0; d < s->HS; d++) sum += (out[d] - want[d]) * 0x1p7;
    return sum / s->HS;
}

/* The tied keys are one k: an error e of delta moves dq by -scale e k. In steps of out, the mean over the columns. */
static double delta_error(const AttentionSpec *s, const double *dq, const double *want, const double *k) {
    double along = 0, length2 = 0;
    for (int d = 0; d < s->HS; d++) {
        along += (dq[d] - want[d]) * k[d];
        length2 += k[d] * k[d];
    }
    return -along / (s->scale * length2) * 0x1p7 / s->HS;
}

static void bias(Tie tie) {
    arena_dtype = BF16;
    AttentionSpec s = spec_of(1, on_cpu ? 3 : 8, on_cpu ? 400 : 1024, 64);
    s.deterministic = 1;
    arena_begin("bias", "%s", tie == PAIR ? "two equal maxima" : "eight scores within 2^-9 of the maximum");
    Operands all = place_operands(&s, ONE_QKV), x[8];
    Truth truth[8];
    Sample plain = {0}, moved = {0};
    for (int h = 0; h < s.NH; h++) {
        x[h] = head_of(all, &s, 0, h);
        fill_ties(&s, tie, x[h]);
        truth[h].want = new_results(x[h]);
        int64_t pool_before = pool_used;
        Inputs in = inputs_of(&s, x[h]);
        attend(&s, x[h], truth[h].want, 0, in);
        for (int i = FIRST_ROW_COUNTED; i < s.Tq; i += 2)
            for (int move = 0; move < 2; move++) {
                double out[128];
                emulate(&s, out, in.q + i * s.HS, in.k, in.v, i + 1, move);
                sample(move ? &moved : &plain, out_error(&s, out, truth[h].want.x[OUT] + i * s.HS));
            }
        pool_used = pool_before;
    }
    printf("  %s: out of the plain algorithm is off by %.3f +- %.3f steps, with a moved maximum by %.3f +- %.3f\n",
           arena_case, mean(plain), standard_error(plain), mean(moved), standard_error(moved));
    EXPECT(fabs(mean(plain)) > 0.1 && !is_zero(plain), "%s: the plain algorithm has no bias", arena_case);
    EXPECT(is_zero(moved), "%s: the moved maximum does not help", arena_case);

    const CaseEnd end = case_end();
    EACH_ATTENTION(n, &s, end) {            /* none where the device has no bf16 */
        const Attention *a = attention_list[n];
        Memory memory = place_memory(a, &s);
        EACH_RUN run_both(a, &s, &s, all, memory);
        Sample out = {0}, delta = {0};
        for (int h = 0; h < s.NH; h++, pool_used = end.pool) {
            const double *got_out = result(x[h].out), *got_dq = result(x[h].dq), *k = given(x[h].k);
            for (int i = FIRST_ROW_COUNTED; i < s.Tq; i++) {
                sample(&out, out_error(&s, got_out + i * s.HS, truth[h].want.x[OUT] + i * s.HS));
                sample(&delta, delta_error(&s, got_dq + i * s.HS, truth[h].want.x[DQ] + i * s.HS, k));
            }
        }
        printf("  %s: out is off by %.3f +- %.3f steps, delta by %.3f +- %.3f\n", arena_op, mean(out),
               standard_error(out), mean(delta), standard_error(delta));
        EXPECT(strcmp(a->name, "flash") || (is_zero(out) && is_zero(delta)), "%s %s: biased", arena_op, arena_case);
    }
}

static void two_equal_maxima(void) { bias(PAIR); }
static void near_ties(void)        { bias(NEAR_TIES); }

int main(void) {
    arena_open();
    on_cpu = strcmp(backend_name, "cpu") == 0;
    RUN(two_equal_maxima);
    RUN(near_ties);
    if (device_refuse_dtype(BF16)) printf("  emulated only: %s\n", device_refuse_dtype(BF16));
    arena_close();
    return test_close();
}
