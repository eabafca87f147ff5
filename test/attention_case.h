/* test/attention_case.h - The operands of one attention, as they may lie in memory, and data that is hard to sum. */
#ifndef TEST_ATTENTION_CASE_H
#define TEST_ATTENTION_CASE_H
#include "../kernels/attention.h"
#include "arena.h"

enum { MOST_IMPLEMENTATIONS = 16 };
static int ran[MOST_IMPLEMENTATIONS], refused[MOST_IMPLEMENTATIONS];     /* cases, of each in attention_list */

/* Several may have one name: the number is the place in attention_list. */
static inline void name_implementation(int n) {
    snprintf(arena_op, sizeof arena_op, "%s %d %s", attention_list[n]->name, n + 1, dtype_name(arena_dtype));
}

static inline void print_implementations(void) {
    for (int n = 0; attention_list[n]; n++)
        printf("  %s %d: %d cases, %d more refused\n", attention_list[n]->name, n + 1, ran[n], refused[n]);
}

/* How the operands lie: each packed; each in its own columns of a (B,T,3C) of its own, whose other columns are NaN and
   stay as they are; q, k and v in one qkv, dq, dk and dv in one dqkv. */
typedef enum { PACKED, VIEWS, ONE_QKV } Layout;
enum { LAYOUTS = 3 };

typedef struct { Tensor q, k, v, out, dout, dq, dk, dv; } Operands;

/* The column-th third of whole; of a buffer of its own where whole is absent. */
static inline Tensor third(Tensor whole, int column, int how, int B, int T, int C) {
    if (!whole.data) whole = place(arena_dtype, KEPT, 0, DIMS(B, T, 3 * C));
    Tensor view = tensor_column_range(whole, column * C, C);
    mark(view, how);
    return view;
}

static inline Tensor operand(Layout layout, Tensor whole, int column, int how, int B, int T, int C) {
    return layout == PACKED ? place(arena_dtype, how, 0, DIMS(B, T, C)) : third(whole, column, how, B, T, C);
}

/* All poisoned. dq may differ from run to run where the spec does not ask for the same bits. */
static inline Operands place_operands(const AttentionSpec *s, Layout layout) {
    int B = s->B, Tq = s->Tq, Tk = s->Tk, C = s->NH * s->HS, dq_is = s->deterministic ? WRITTEN : SCRATCH;
    Tensor qkv  = layout == ONE_QKV ? place(arena_dtype, KEPT, 0, DIMS(B, Tk, 3 * C)) : ABSENT;
    Tensor dqkv = layout == ONE_QKV ? place(arena_dtype, KEPT, 0, DIMS(B, Tk, 3 * C)) : ABSENT;
    Layout around = layout == VIEWS ? VIEWS : PACKED;
    return (Operands){
        .q   = operand(layout, qkv,    0, KEPT,    B, Tq, C), .dq   = operand(layout, dqkv,   0, dq_is,   B, Tq, C),
        .k   = operand(layout, qkv,    1, KEPT,    B, Tk, C), .dk   = operand(layout, dqkv,   1, WRITTEN, B, Tk, C),
        .v   = operand(layout, qkv,    2, KEPT,    B, Tk, C), .dv   = operand(layout, dqkv,   2, WRITTEN, B, Tk, C),
        .out = operand(around, ABSENT, 1, WRITTEN, B, Tq, C), .dout = operand(around, ABSENT, 0, KEPT,    B, Tq, C),
    };
}

/* What one attention needs besides: each pass a workspace of its own, for it may leave nothing there to the other. */
typedef struct { Tensor state, work[2]; } Memory;

static inline Tensor scratch_bytes(size_t count) { return scratch(count ? (int64_t)(count + 3) / 4 : 1); }

static inline Memory place_memory(const Attention *a, const AttentionSpec *s) {
    return (Memory){ scratch_bytes(a->state_bytes(s)), { scratch_bytes(a->workspace_bytes(s)),
                                                         scratch_bytes(a->workspace_bytes(s)) } };
}

static inline void run_both(const Attention *a, const AttentionSpec *s, Operands o, Memory m) {
    a->forward(s, o.out, m.state.data, o.q, o.k, o.v, m.work[0].data);
    a->backward(s, o.dq, o.dk, o.dv, o.dout, o.out, m.state.data, o.q, o.k, o.v, m.work[1].data);
}

/* ---- one head and its data */

/* Head h of sequence b: (T,HS), the rows as far apart as they are. */
static inline Tensor head_view(Tensor t, const AttentionSpec *s, int b, int h) {
    return tensor_column_range(tensor_row_range(t, b * t.dim[1], t.dim[1]), h * s->HS, s->HS);
}

static inline Operands head_of(Operands o, const AttentionSpec *s, int b, int h) {
    return (Operands){ head_view(o.q, s, b, h), head_view(o.k, s, b, h), head_view(o.v, s, b, h),
                       head_view(o.out, s, b, h), head_view(o.dout, s, b, h), head_view(o.dq, s, b, h),
                       head_view(o.dk, s, b, h), head_view(o.dv, s, b, h) };
}

/* POWERS and ONE_HOT are exact: every P that meets a dout is a power of two, or 0, and every sum has few bits. */
typedef enum { RANDOM, HUNDREDS, ONE_HUGE_SCORE, EQUAL_SCORES, RISING_MAXIMA, FALLING_MAXIMA, FIRST_ROW, INTEGERS,
               HARD_DATA_END, POWERS = HARD_DATA_END, ONE_HOT } Data;
static const char *const data_name[] = { "random", "up to 100", "one huge score a row", "equal scores",
                                         "maxima rising by block", "maxima falling by block", "dout in row 0 only",
                                         "integers", "P in powers of two", "P 0 or 1" };

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
            if (data == INTEGERS)       set(x.k, kd, round(get(x.k, kd)));
            if (data == INTEGERS)       set(x.v, vd, round(get(x.v, vd)));
        }
    for (int i = 0; i < s->Tq; i++)
        for (int d = 0; d < s->HS; d++) {
            int64_t qd = i * x.q.pitch + d, key = (37 * (int64_t)i + 11) % (s->q0 + i + 1);
            if (data == ONE_HUGE_SCORE) set(x.q, qd, 100 * get(x.k, key * x.k.pitch + d));
            if (data == RISING_MAXIMA || data == FALLING_MAXIMA) set(x.q, qd, fabs(get(x.q, qd)));
            if (data == INTEGERS)       set(x.q, qd, round(get(x.q, qd)));
            if (data == FIRST_ROW && i) set(x.dout, i * x.dout.pitch + d, 0);
        }
    if (data == POWERS)  fill_powers(s, x);
    if (data == ONE_HOT) fill_one_hot(s, x);
}

#endif
