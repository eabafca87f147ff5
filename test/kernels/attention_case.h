/* attention_case.h - One case of attention: its operands as they may lie in memory, data that is hard to sum, the
   float64 result of each head, and the checks against it. */
#pragma once
#include "arena.h"

enum { IMPLEMENTATIONS_MAX = 16, T_MAX = 4352, FEW = 256, DRAWS_MAX = 200, FIRST_ROWS = 64 };
enum { OUT, DQ, DK, DV, OUTPUTS };
static const char *const output_name[] = { "out", "dq", "dk", "dv" };
static int on_cpu;

static int ran[IMPLEMENTATIONS_MAX], refused[IMPLEMENTATIONS_MAX];       /* cases of each in attention_list */

/* Several may have one name: the number is the place in attention_list. */
static inline void name_implementation(int n) {
    snprintf(arena_op, sizeof arena_op, "%s %d %s", attention_list[n]->name, n + 1, dtype_name(arena_dtype));
}

/* As in training. */
static inline AttentionSpec spec_of(int B, int NH, int T, int HS) {
    return (AttentionSpec){ .B = B, .NH = NH, .Tq = T, .Tk = T, .HS = HS, .causal = 1, .scale = 1 / sqrtf((float)HS),
                            .dtype = arena_dtype, .out_dtype = arena_dtype };
}

/* ---- operands: each packed; each in its own columns of a (B,T,3C) of its own, whose other columns are NaN and stay as
   they are; q, k and v in one qkv, dq, dk and dv in one dqkv */
typedef enum { PACKED, VIEWS, ONE_QKV } Layout;
enum { LAYOUTS = 3 };

/* rounded: out in the data type of q, for the backward pass; out itself where it has that. */
typedef union {
    struct { Tensor out, dq, dk, dv, q, k, v, dout, lse, rounded; };
    Tensor all[10];                             /* the results first: OUT .. DV */
} Operands;
enum { HEAD_DATA = 9, LSE = 8 };                /* all but rounded, in the order of all */

/* The column-th third of whole; of a buffer of its own where whole is absent. */
static inline Tensor third_as(DType dtype, Tensor whole, int column, int how, int B, int T, int C) {
    if (!whole.data) whole = place(dtype, KEPT, 0, DIMS(B, T, 3 * C));
    Tensor view = tensor_column_range(whole, column * C, C);
    mark(view, how);
    return view;
}

static inline Tensor operand(DType dtype, Layout layout, Tensor whole, int column, int how, int B, int T, int C) {
    return layout == PACKED ? place(dtype, how, 0, DIMS(B, T, C)) : third_as(dtype, whole, column, how, B, T, C);
}

/* All poisoned. Packed outputs lie one after the other in the order of OUT .. DV. */
static inline Operands place_operands(const AttentionSpec *s, Layout layout) {
    int B = s->B, Tq = s->Tq, Tk = s->Tk, C = s->NH * s->HS;
    Tensor qkv  = layout == ONE_QKV ? place(arena_dtype, KEPT, 0, DIMS(B, Tk, 3 * C)) : ABSENT;
    Tensor dqkv = layout == ONE_QKV ? place(s->out_dtype, KEPT, 0, DIMS(B, Tk, 3 * C)) : ABSENT;
    Layout around = layout == VIEWS ? VIEWS : PACKED;
    DType in = arena_dtype, result = s->out_dtype;
    Operands o;
    o.q    = operand(in,     layout, qkv,    0, KEPT,    B, Tq, C);
    o.k    = operand(in,     layout, qkv,    1, KEPT,    B, Tk, C);
    o.v    = operand(in,     layout, qkv,    2, KEPT,    B, Tk, C);
    o.dout = operand(in,     around, ABSENT, 0, KEPT,    B, Tq, C);
    o.out  = operand(result, around, ABSENT, 1, WRITTEN, B, Tq, C);
    o.dq   = operand(result, layout, dqkv,   0, WRITTEN, B, Tq, C);
    o.dk   = operand(result, layout, dqkv,   1, WRITTEN, B, Tk, C);
    o.dv   = operand(result, layout, dqkv,   2, WRITTEN, B, Tk, C);
    o.rounded = result == in ? o.out : output(B, Tq, C);
    o.lse = f32_output(B, s->NH, Tq);
    return o;
}

/* Head h of sequence b: (T,HS), with the pitch of the whole. */
static inline Tensor head_view(Tensor t, const AttentionSpec *s, int b, int h) {
    return tensor_column_range(tensor_row_range(t, b * t.dim[1], t.dim[1]), h * s->HS, s->HS);
}

static inline Operands head_of(Operands o, const AttentionSpec *s, int b, int h) {
    for (int i = 0; i < COUNT(o.all); i++)
        o.all[i] = i == LSE ? tensor_row_range(o.lse, b * s->NH + h, 1) : head_view(o.all[i], s, b, h);
    return o;
}

/* ---- data. POWERS and ONE_HOT are exact: every P with a dout other than 0 is a power of two, or 0, and every sum has
   few bits. */
typedef enum { RANDOM, HUNDREDS, ONE_HUGE_SCORE, EQUAL_SCORES, RISING_MAXIMA, FALLING_MAXIMA, NEGATIVE_MAXIMA,
               FIRST_ROW, INTEGERS, HARD_DATA_END, POWERS = HARD_DATA_END, ONE_HOT } Data;
static const char *const data_name[] = { "random", "up to 100", "one huge score a row", "equal scores",
                                         "maxima rising by block", "maxima falling by block",
                                         "negative maxima falling by block", "dout in row 0 only", "integers",
                                         "P in powers of two", "P 0 or 1" };

/* The scores are 0: q has even columns only, k odd ones. So P = 2^-n in row 2^n - 1, and dout is 0 in all others.
   v = a + b w, w = 1 or -1 by one bit of the position: out is a there, or a + b while that bit is 0. */
static inline void fill_powers(const AttentionSpec *s, Operands x) {
    for (int d = 0; d < s->HS; d++) {
        int a = uniform_int(-3, 3), b = uniform_int(0, 1) ? 1 : -1;
        for (int i = 0; i < s->Tq; i++) {
            set(x.q, i * x.q.pitch + d, d % 2 ? 0 : uniform_int(-2, 2));
            set(x.k, i * x.k.pitch + d, d % 2 ? uniform_int(-3, 3) : 0);
            set(x.v, i * x.v.pitch + d, i >> d % 3 & 1 ? a - b : a + b);
            set(x.dout, i * x.dout.pitch + d, (i & (i + 1)) == 0 ? uniform_int(-1, 1) : 0);
        }
    }
}

/* A key is its number in digits of 32 and -32, q the digits of the key that it wants: every other score is less by
   2 * 32 * 32 scale or more, 256 at a scale of 1/8. So out is a row of v, dv a sum of rows of dout, and dq = dk = 0. */
static inline void fill_one_hot(const AttentionSpec *s, Operands x) {
    int digits = 0;
    while (s->Tq > 1 << digits) digits++;
    REQUIRE(digits <= s->HS && s->scale == 0.125f, "%d digits, HS %d, scale %g", digits, s->HS, s->scale);
    for (int i = 0; i < s->Tq; i++)
        for (int d = 0; d < s->HS; d++) {
            int wanted = (int)((37 * (int64_t)i + 11) % (i + 1));
            set(x.q, i * x.q.pitch + d, d >= digits ? 0                  : wanted >> d & 1 ? 32 : -32);
            set(x.k, i * x.k.pitch + d, d >= digits ? uniform_int(-3, 3) : i >> d & 1      ? 32 : -32);
            set(x.v, i * x.v.pitch + d, uniform_int(-9, 9));
            set(x.dout, i * x.dout.pitch + d, uniform_int(-9, 9));
        }
}

static inline void fill_head(const AttentionSpec *s, Data data, Operands x) {
    double amplitude = data == HUNDREDS ? 100 : data == INTEGERS ? 3 : 1;
    fill(x.q, 0, amplitude);
    fill(x.k, 0, amplitude);
    fill(x.v, 0, amplitude);
    fill(x.dout, 0, 1);
    for (int j = 0; j < s->Tk; j++)
        for (int d = 0; d < s->HS; d++) {
            int64_t kd = j * x.k.pitch + d, vd = j * x.v.pitch + d;
            if (data == EQUAL_SCORES)   set(x.k, kd, d / 8.0);
            if (data == RISING_MAXIMA)  set(x.k, kd, fabs(get(x.k, kd)) * (1 + j / 16));
            if (data == FALLING_MAXIMA) set(x.k, kd, fabs(get(x.k, kd)) * (1 + (s->Tk - 1 - j) / 16));
            if (data == NEGATIVE_MAXIMA) set(x.k, kd, -fabs(get(x.k, kd)) * (1 + j / 16));
            if (data == INTEGERS)       set(x.k, kd, round(get(x.k, kd)));
            if (data == INTEGERS)       set(x.v, vd, round(get(x.v, vd)));
        }
    for (int i = 0; i < s->Tq; i++)
        for (int d = 0; d < s->HS; d++) {
            int64_t qd = i * x.q.pitch + d, key = (37 * (int64_t)i + 11) % (oracle_keys_seen(s, i) + 1);
            if (data == ONE_HUGE_SCORE) set(x.q, qd, 100 * get(x.k, key % s->Tk * x.k.pitch + d));
            if (data == RISING_MAXIMA || data == FALLING_MAXIMA || data == NEGATIVE_MAXIMA)
                set(x.q, qd, fabs(get(x.q, qd)));
            if (data == INTEGERS)       set(x.q, qd, round(get(x.q, qd)));
            if (data == FIRST_ROW && i) set(x.dout, i * x.dout.pitch + d, 0);
        }
    if (data == POWERS)  fill_powers(s, x);
    if (data == ONE_HOT) fill_one_hot(s, x);
    if (s->out_into != ACCUMULATE) return;
    fill(x.out, 0, 1);                          /* a partial result; one row in three has seen no key */
    fill(x.lse, 0, 5);
    for (int i = 0; i < s->Tq; i++) {
        if (uniform() >= -1.0 / 3) continue;
        set(x.lse, i, -INFINITY);
        for (int d = 0; d < s->HS; d++) set(x.out, i * x.out.pitch + d, 0);
    }
}

/* ---- memory of an implementation */

/* Each pass has its own workspace: what forward leaves there is not for backward. */
typedef struct { Tensor kept, work[2]; } Memory;

enum { MEMORIES = 3 };
static void *too_large[MEMORIES];       /* for the arena: P of a long sequence */

static inline Tensor scratch_bytes(int which, size_t bytes) {
    device_free(too_large[which]);
    too_large[which] = NULL;
    if (arena_used + (int64_t)bytes / 2 + 4 * GUARD_HALVES <= ARENA_HALVES) return scratch((int64_t)(bytes + 4) / 4);
    too_large[which] = device_alloc(bytes, "P");
    return tensor_of(too_large[which], F32, 1, (int64_t)bytes / 4);
}

static inline Memory place_memory(const Attention *a, const AttentionSpec *s) {
    return (Memory){ scratch_bytes(0, a->kept_bytes(s)),
                     { scratch_bytes(1, attention_workspace_bytes(a, s)),
                       scratch_bytes(2, attention_workspace_bytes(a, s)) } };
}

/* The number, from n on, of an implementation that takes the spec, -1 when there is none. What the one before has
   placed is given up. */
typedef struct { int64_t arena, pool; } CaseEnd;
static inline CaseEnd case_end(void) { return (CaseEnd){ arena_used, pool_used }; }

static inline int next_attention(int n, const AttentionSpec *s, CaseEnd end) {
    for (; attention_list[n]; n++) {
        arena_used = end.arena;
        pool_used = end.pool;
        if (attention_list[n]->refuse(s)) { refused[n]++; continue; }
        ran[n]++;
        name_implementation(n);
        return n;
    }
    return -1;
}
#define EACH_ATTENTION(n, s, end) for (int n = -1; (n = next_attention(n + 1, s, end)) >= 0; )

static inline void run_both(const Attention *a, const AttentionSpec *s, const AttentionSpec *forward, Operands o,
                            Memory m) {
    AttentionOperands x = { o.q, o.k, o.v, o.out, o.lse, o.dout, o.dq, o.dk, o.dv, m.kept.data, m.work[0].data };
    attention_forward(a, forward, &x);
    if (s->out_into == ACCUMULATE) return;
    if (o.rounded.data != o.out.data) tensor_convert(o.rounded, o.out);
    x.out = o.rounded;
    x.work = m.work[1].data;
    attention_backward(a, s, &x);
}

/* ---- the truth of one head

   An error may be at most twice that of the same attention with P and dS kept in bf16, dout . out taken from the out
   that was written, and the results rounded; in its maximum and in its root mean square. For the part of f32, see
   arena.h. */
typedef struct { double *x[OUTPUTS], *lse; } Results;
typedef struct {
    Results want, from_bf16_p;                          /* the latter of POWERS in bf16 only: see Exact */
    int outputs;                                        /* the first of OUTPUTS */
    double roundings[OUTPUTS], condition, floor[OUTPUTS];   /* see arena.h */
    double worst[OUTPUTS], root_mean_square[OUTPUTS];   /* error of the emulation */
} Truth;

typedef struct { const double *q, *k, *v, *dout, *added_to[OUTPUTS], *lse; } Inputs;      /* lse: of added_to[OUT] */

static inline AttentionSpec one_head(AttentionSpec s) {
    s.B = s.NH = 1;
    return s;
}

static inline Results results_at(double *next, Operands x) {
    Results r = { .lse = next };
    next += x.q.dim[0];
    for (int i = 0; i < OUTPUTS; i++) { r.x[i] = next; next += tensor_count(x.all[i]); }
    return r;
}

static inline int64_t results_count(Operands x) {
    return x.q.dim[0] + 2 * (tensor_count(x.q) + tensor_count(x.k));
}

static inline Results new_results(Operands x) { return results_at(doubles(results_count(x)), x); }

/* Outside of the pool, which is of one thread; lse is the block to free. */
static inline Results allocate_results(Operands x) {
    double *block = malloc(sizeof *block * (size_t)results_count(x));
    REQUIRE(block, "out of memory for the results of a head");
    return results_at(block, x);
}

/* Whether an output is added to, or out is merged with what it holds. */
static inline int adds_to(const AttentionSpec *s, int output) {
    return (output == OUT ? s->out_into : output == DQ ? s->dq_into : s->dkv_into) == ACCUMULATE;
}

static inline Inputs inputs_of(const AttentionSpec *s, Operands x) {
    Inputs in = { given(x.q), given(x.k), given(x.v), given(x.dout), { NULL }, NULL };
    for (int i = 0; i < OUTPUTS; i++)
        if (adds_to(s, i)) in.added_to[i] = given(x.all[i]);
    if (adds_to(s, OUT)) in.lse = given(x.lse);
    return in;
}

/* out, lse = the merge of them with a partial result over other keys. */
static inline void merge(const AttentionSpec *s, double *out, double *lse, const double *part, const double *part_lse) {
    for (int i = 0; i < s->Tq; i++) {
        const double total = exp(part_lse[i]) + exp(lse[i]), weight = total > 0 ? exp(lse[i]) / total : 1;
        for (int at = i * s->HS; at < (i + 1) * s->HS; at++) out[at] = weight * out[at] + (1 - weight) * part[at];
        lse[i] = log(total);
    }
}

/* stores: see oracle_stores. What dq, dk and dv are added to is part of the result, and what out is merged with; then
   there are no gradients. Several threads may call it. */
static inline void attend(const AttentionSpec *s, Operands x, Results r, double stores, Inputs in) {
    AttentionSpec one = one_head(*s);
    oracle_stores = stores;
    oracle_attention_forward(&one, r.x[OUT], r.lse, in.q, in.k, in.v);
    if (in.lse) merge(&one, r.x[OUT], r.lse, in.added_to[OUT], in.lse);
    else oracle_attention_backward(&one, r.x[DQ], r.x[DK], r.x[DV], in.dout, r.lse, in.q, in.k, in.v);
    oracle_stores = 0;
    for (int i = DQ; i < OUTPUTS; i++)
        for (int64_t at = 0, count = tensor_count(x.all[i]); in.added_to[i] && at < count; at++)
            r.x[i][at] += in.added_to[i][at];
}

/* Query i and key j: p, p times the mask's factor, |dP|^2, and the sizes of the score's terms, added. */
typedef struct { double p, kept_p, dp2, size; } Pair;

static inline Pair pair_of(const AttentionSpec *s, const Truth *t, Inputs in, double kept, int i, int j) {
    const double *q = in.q + i * s->HS, *k = in.k + j * s->HS, *v = in.v + j * s->HS, *dout = in.dout + i * s->HS;
    double score = 0, size = 0, square = 0;
    #pragma omp simd reduction(+:score, size, square)
    for (int d = 0; d < s->HS; d++) {
        score += q[d] * k[d];
        size += fabs(q[d] * k[d]);
        square += dout[d] * v[d] * dout[d] * v[d];
    }
    const double p = exp(s->scale * score - t->want.lse[i]);
    return (Pair){ p, kept * p, kept * kept * square, size };
}

/* floor: the size that the sums of out, dq, dk and dv would have if all terms had random signs, where
   ds = p (dp - sum(p dp)) cancels too; with dropout of the terms that are kept, times its scale.
   condition: a score s is a sum that is wrong by about u times the sum of its terms' sizes, and exp(s) by as much
   relative to itself. */
static inline void find_sizes(const AttentionSpec *s, Truth *t, Inputs in) {
    const int HS = s->HS;
    const int64_t pool_before = pool_used;
    double condition = 0, *p_dp2 = doubles(s->Tq);              /* known when out is done */
    double *mask = s->dropout.rate > 0 ? doubles(s->Tq * s->Tk) : NULL;
    memset(p_dp2, 0, sizeof *p_dp2 * (size_t)s->Tq);
    #pragma omp parallel for
    for (int i = 0; i < (mask ? s->Tq * s->Tk : 0); i++) mask[i] = oracle_p_factor(s, 0, 0, i / s->Tk, i % s->Tk);
    for (int output = OUT; output < OUTPUTS; output++) {
        const int of_keys = output >= DK;
        double largest = 0;
        #pragma omp parallel for schedule(dynamic, 4) reduction(max:condition, largest)
        for (int row = 0; row < (of_keys ? s->Tk : s->Tq); row++) {
            double sum[HS_MAX] = {0};
            for (int n = 0; n < (of_keys ? s->Tq : s->Tk); n++) {
                const int i = of_keys ? n : row, j = of_keys ? row : n;
                if (j >= oracle_keys_seen(s, i)) continue;
                const Pair x = pair_of(s, t, in, mask ? mask[i * s->Tk + j] : 1, i, j);
                const double *const factor[] = { in.v + j * HS, in.k + j * HS, in.q + i * HS, in.dout + i * HS };
                const double weight = output == OUT || output == DV ? x.kept_p
                                      : s->scale * x.p * (sqrt(x.dp2) + sqrt(p_dp2[i]));
                if (output == OUT) p_dp2[i] += x.p * x.p * x.dp2;
                condition = fmax(condition, fabs(s->scale) * x.size);
                for (int d = 0; d < HS; d++) sum[d] += weight * factor[output][d] * weight * factor[output][d];
            }
            for (int d = 0; d < HS; d++) largest = fmax(largest, sum[d]);
        }
        t->floor[output] = sqrt(largest);
    }
    t->condition = condition;
    pool_used = pool_before;
}

static inline double root_mean_square(const double *want, const double *got, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (got[i] - want[i]) * (got[i] - want[i]);
    return sqrt(sum / (double)count);
}

/* An output with few elements: see truth_of. */
static inline int is_few(int rows, int columns) { return rows * columns < FEW; }

/* products: multiplications of q k^T. */
static inline int emulation_count(int Tk, double products, int few) {
    return (int)fmin((Tk > 1024 ? 3 : 8) + (1 << 27) / products, few ? DRAWS_MAX : DRAWS_MAX / 2);
}

static inline Operands first_rows(Operands x, int rows) {
    for (int i = 0; i < COUNT(x.all); i++) if (i != LSE) x.all[i] = tensor_row_range(x.all[i], 0, rows);
    return x;
}

/* A few roundings may all turn out well: the emulation is done several times, the shorter the head the more often,
   with P and dS stored at some multiples. For exact data not at all. The first rows of a long head see the fewest keys
   and have the largest P and dS, and with them the largest errors of out and dq, and of dk and dv of their keys: they
   are emulated as often as a head of so many rows.

   Few results may round to the same numbers in every emulation, close to the truth, while an implementation rounds one
   of them to the next number. So each emulation rounds out and the results to a grid of bf16 that is shifted by up to
   half a step: errors up to half a step are then equally likely. In the worst case all elements share one normal error:
   twice the largest of about 200 is exceeded with a probability of 3e-7 (of 100: 3e-6; of 8: 1e-2).

   FEW and more need no shift. By Hoeffding's inequality the mean of n squares of roundings by up to the same h is
   (1/3 +- 2.7 / sqrt(n)) h^2 but for 1 case in 2e6 on either side, and for n > 182 the greatest of these is less than
   four times the least, where the bound is twice the root. (Normal values, of several h, count as 0.29 n; of 256 the
   mean square has a relative standard deviation of 0.1, and a ratio of 4 is more than six of them.) */
static inline Truth truth_of(const AttentionSpec *s, Operands x, Data data) {
    int in_bf16 = arena_dtype == BF16, exact = data >= HARD_DATA_END;
    Truth t = { .want = new_results(x), .outputs = s->out_into == ACCUMULATE ? DQ : OUTPUTS };
    if (data == POWERS && in_bf16) t.from_bf16_p = new_results(x);
    int64_t pool_before = pool_used;
    Inputs in = inputs_of(s, x);
    attend(s, x, t.want, 0, in);
    if (data == POWERS && in_bf16) attend(s, x, t.from_bf16_p, 1, in);
    find_sizes(s, &t, in);
    if (data != RANDOM) t.condition *= 2;       /* the roundings of a large score itself count, too */
    for (int i = 0; i < OUTPUTS; i++) t.roundings[i] = s->Tk + s->HS;
    /* A sequential sum of Tk equal terms, as in out, rounds to one side: its error is up to Tk/2 ulp, not sqrt(Tk). */
    if (data == POWERS && !in_bf16) t.roundings[OUT] = fmax(t.roundings[OUT], s->Tk / 8.0 * s->Tk / 8.0);

    int few = is_few(s->Tq < s->Tk ? s->Tq : s->Tk, s->HS);
    int draws = !in_bf16 ? 0 : exact ? 1 : emulation_count(s->Tk, (double)s->Tq * s->Tk * s->HS, few);
    double stores[DRAWS_MAX], shifts[DRAWS_MAX];
    for (int draw = 0; draw < draws; draw++) {
        stores[draw] = draw ? 1.5 + uniform() / 2 : 0;
        shifts[draw] = draw && few ? uniform() / 2 : 0;
    }
    /* Many emulations of a short head: one per thread. A long head is divided among the threads by the oracle. */
    #pragma omp parallel for schedule(dynamic, 1) if (draws > 8)
    for (int draw = 0; draw < draws; draw++) {          /* the first rounds the truth, and no more */
        Results made = allocate_results(x);
        oracle_shift = shifts[draw];
        if (draw) attend(s, x, made, stores[draw], in);
        oracle_shift = 0;
        for (int i = 0; i < t.outputs; i++) {
            int64_t count = tensor_count(x.all[i]);
            if (!draw) memcpy(made.x[i], t.want.x[i], sizeof(double) * (size_t)count);
            double error = 0;
            for (int64_t at = 0; at < count; at++) {
                double *value = &made.x[i][at];
                if (x.all[i].dtype == BF16) *value = round_bf16_shifted(*value, shifts[draw]);
                double distance = fabs(*value - t.want.x[i][at]);
                error = distance > error ? distance : error;
            }
            double mean_error = root_mean_square(t.want.x[i], made.x[i], count);
            #pragma omp critical
            {
                t.worst[i] = fmax(t.worst[i], error);
                t.root_mean_square[i] = fmax(t.root_mean_square[i], mean_error);
            }
        }
        free(made.lse);
    }
    if (t.outputs < OUTPUTS) t.floor[OUT] = fmax(t.floor[OUT], 1);         /* size of what it is merged with */
    else if (s->causal && s->q0 == 0 && s->Tq == s->Tk && s->Tq > FIRST_ROWS && draws > 1) {
        AttentionSpec part = *s;
        part.Tq = part.Tk = FIRST_ROWS;
        Truth first = truth_of(&part, first_rows(x, FIRST_ROWS), data);
        for (int i = 0; i < OUTPUTS; i++) t.worst[i] = fmax(t.worst[i], first.worst[i]);
    }
    pool_used = pool_before;
    return t;
}

static inline Bound bound_of(const Truth *t, int which) {
    return (Bound){ .roundings = t->roundings[which], .condition = t->condition, .floor = t->floor[which],
                    .emulated = t->worst[which] };
}

/* ---- checks of what the last run left */

/* What the results must be to the last bit: nothing; the truth, rounded; the same, but out made of a P in bf16. */
typedef enum { NOT_EXACT, EXACT, EXACT_FROM_BF16_P } Exact;

/* The result must be the truth, rounded; where that is as near to the next number as f32 allows, to either. */
static inline void expect_exact(const char *name, Tensor got, const double *want, const double *values) {
    int64_t wrong = 0, count = tensor_count(got);
    for (int64_t i = 0; i < count; i++) {
        double true_value = rint(want[i] * 0x1p40) * 0x1p-40;       /* a sum of float64 may not be quite 0 */
        wrong += !(values[i] == round_bf16(true_value * (1 + 0x1p-17)) ||
                   values[i] == round_bf16(true_value * (1 - 0x1p-17)));
    }
    EXPECT(!wrong, "%s %s: %lld of %s are not exact", arena_op, arena_case, (long long)wrong, name);
}

static inline void check_head(const Truth *t, Operands x, Exact exact) {
    for (int i = 0; i < t->outputs; i++) {
        Tensor got = x.all[i];
        int from_bf16_p = exact == EXACT_FROM_BF16_P && i == OUT;       /* the others have only P of a power of two */
        const double *want = (from_bf16_p ? t->from_bf16_p : t->want).x[i];
        int64_t pool_before = pool_used, count = tensor_count(got);
        compare_within(output_name[i], got, want, bound_of(t, i));

        const double *values = result(got);
        double max = t->floor[i], error = root_mean_square(want, values, count);
        for (int64_t at = 0; at < count; at++) max = fmax(max, fabs(want[at]));
        double allowed = 4 * 0x1p-24 * (sqrt(t->roundings[i]) + t->condition) * max + 2 * t->root_mean_square[i];
        if (exact && got.dtype == BF16) expect_exact(output_name[i], got, want, values);
        if (!from_bf16_p)       /* the bound is that of the truth, rounded; to the last bit is less than any bound */
            EXPECT(error <= allowed, "%s %s: root mean square of the error of %s is %.2e, bound %.2e", arena_op,
                   arena_case, output_name[i], error, allowed);
        pool_used = pool_before;
    }
}

/* lse of one head. A score is a sum of HS terms, and its error is that of lse. */
static inline void check_lse(const AttentionSpec *s, const Truth *t, Tensor lse, int head) {
    double worst_ratio = 0;
    for (int i = 0; i < s->Tq; i++) {
        double want = t->want.lse[i], got = element(lse, arena_after, (int64_t)head * s->Tq + i);
        if (got == want) continue;              /* -INFINITY where the row sees no key */
        double size = t->outputs < OUTPUTS ? fmax(fabs(want), 5) : fabs(want);      /* merged with one of up to 5 */
        double ratio = fabs(got - want) /
                       (4 * 0x1p-24 * (sqrt(s->Tk + s->HS) + sqrt(s->HS) * t->condition + size));
        if (!(ratio <= worst_ratio)) worst_ratio = isnan(ratio) ? INFINITY : ratio;
    }
    EXPECT(worst_ratio <= 1, "%s %s: lse of head %d is off by %.3f of its bound", arena_op, arena_case, head,
           worst_ratio);
}
