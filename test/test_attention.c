/* Every attention of the linked backend against the oracle: shapes, views, positions, and data that is hard to sum. */
#include "../kernels/attention.h"
#include "arena.h"

enum { MOST_IMPLEMENTATIONS = 16 };
static int ran[MOST_IMPLEMENTATIONS], refused[MOST_IMPLEMENTATIONS];

/* How the operands lie: each packed; each in its own columns of a (B,T,3C) of its own, whose other columns are NaN and
   stay as they are; q, k and v in one qkv, dq, dk and dv in one dqkv. */
typedef enum { PACKED, VIEWS, ONE_QKV } Layout;
enum { LAYOUTS = 3 };

typedef enum { RANDOM, HUNDREDS, ONE_HUGE_SCORE, EQUAL_SCORES, RISING_MAXIMA, INTEGERS, DATA_KINDS } Data;
static const char *const data_name[] = { "random", "up to 100", "one huge score a row", "equal scores",
                                         "maxima rising by block", "integers" };

/* The column-th third of whole; of a buffer of its own where whole is absent. */
static Tensor third(Tensor whole, int column, int how, int B, int T, int C) {
    if (!whole.data) whole = place(arena_dtype, KEPT, 0, DIMS(B, T, 3 * C));
    Tensor view = tensor_column_range(whole, column * C, C);
    mark(view, how);
    return view;
}

static Tensor operand(Layout layout, int column, int how, int B, int T, int C) {
    return layout == PACKED ? place(arena_dtype, how, 0, DIMS(B, T, C)) : third(ABSENT, column, how, B, T, C);
}

/* Where head h of sequence b at time i begins. */
static int64_t head_at(Tensor t, int HS, int b, int i, int h) { return (b * t.dim[1] + i) * t.pitch + h * HS; }

static void fill_data(const AttentionSpec *spec, Data data, Tensor q, Tensor k, Tensor v) {
    double amplitude = data == HUNDREDS ? 100 : 1;
    fill(q, 0, amplitude);
    fill(k, 0, amplitude);
    fill(v, 0, amplitude);
    for (int b = 0; b < spec->B; b++)
        for (int h = 0; h < spec->NH; h++)
            for (int d = 0; d < spec->HS; d++) {
                for (int j = 0; j < spec->Tk; j++) {
                    int64_t kd = head_at(k, spec->HS, b, j, h) + d, vd = head_at(v, spec->HS, b, j, h) + d;
                    if (data == EQUAL_SCORES)  set(k, kd, d / 8.0);
                    if (data == RISING_MAXIMA) set(k, kd, fabs(get(k, kd)) * (1 + j / 16));
                    if (data == INTEGERS)      set(k, kd, round(3 * get(k, kd)));
                    if (data == INTEGERS)      set(v, vd, round(3 * get(v, vd)));
                }
                for (int i = 0; i < spec->Tq; i++) {
                    int64_t qd = head_at(q, spec->HS, b, i, h) + d;
                    int key = (37 * i + 11) % (spec->q0 + i + 1);
                    if (data == ONE_HUGE_SCORE) set(q, qd, 100 * get(k, head_at(k, spec->HS, b, key, h) + d));
                    if (data == RISING_MAXIMA)  set(q, qd, fabs(get(q, qd)));
                    if (data == INTEGERS)       set(q, qd, round(3 * get(q, qd)));
                }
            }
}

/* For the bounds, see arena.h. floor: of out, dq, dk and dv, the size of their sums if all terms had random signs,
   where ds = p (dp - sum(p dp)) cancels too. Returns the condition: a score s is a sum that is wrong by about u times
   the sum of its terms' sizes, and exp(s) by as much relative to itself. */
static double sizes(const AttentionSpec *spec, double floor[4], const double *p, const double *q, const double *k,
                    const double *v, const double *dout) {
    int Tq = spec->Tq, Tk = spec->Tk, NH = spec->NH, HS = spec->HS, C = NH * HS;
    double condition = 0, *dp = doubles(Tk), *dk2 = doubles(spec->B * Tk * C), *dv2 = doubles(spec->B * Tk * C);
    memset(dk2, 0, sizeof *dk2 * (size_t)(spec->B * Tk * C));
    memset(dv2, 0, sizeof *dv2 * (size_t)(spec->B * Tk * C));
    for (int f = 0; f < 4; f++) floor[f] = 0;
    for (int b = 0; b < spec->B; b++)
        for (int h = 0; h < NH; h++)
            for (int i = 0; i < Tq; i++) {
                const double *pi = p + (((int64_t)b * NH + h) * Tq + i) * Tk;
                int64_t row = (int64_t)(b * Tq + i) * C + h * HS;
                double p_dp = 0, out2[128] = {0}, dq2[128] = {0};
                for (int j = 0; j <= spec->q0 + i; j++) {
                    int64_t key = (int64_t)(b * Tk + j) * C + h * HS;
                    double score = 0, dp2 = 0;
                    for (int d = 0; d < HS; d++) {
                        score += fabs(q[row + d] * k[key + d]);
                        dp2 += dout[row + d] * v[key + d] * dout[row + d] * v[key + d];
                    }
                    condition = fmax(condition, spec->scale * score);
                    dp[j] = sqrt(dp2);
                    p_dp += pi[j] * pi[j] * dp2;
                }
                for (int j = 0; j <= spec->q0 + i; j++) {
                    int64_t key = (int64_t)(b * Tk + j) * C + h * HS;
                    double ds = spec->scale * pi[j] * (dp[j] + sqrt(p_dp));
                    for (int d = 0; d < HS; d++) {
                        floor[0] = fmax(floor[0], out2[d] += pow(pi[j] * v[key + d], 2));
                        floor[1] = fmax(floor[1], dq2[d] += pow(ds * k[key + d], 2));
                        floor[2] = fmax(floor[2], dk2[key + d] += pow(ds * q[row + d], 2));
                        floor[3] = fmax(floor[3], dv2[key + d] += pow(pi[j] * dout[row + d], 2));
                    }
                }
            }
    for (int f = 0; f < 4; f++) floor[f] = sqrt(floor[f]);
    return condition;
}

/* Of out, dq, dk and dv, the worst over some multiples in which P and dS may be kept: of many where the tensors are
   small, as few roundings may all turn out well. */
static void emulation(const AttentionSpec *s, double error[4], const Tensor output[4], double *const want[4],
                      const double *dout, const double *q, const double *k, const double *v) {
    int64_t pool_before = pool_used, products = (int64_t)s->B * s->NH * s->Tq * s->Tk * s->HS;
    int draws = arena_dtype != BF16 ? 0 : (int)fmin(4 + (double)(1 << 23) / (double)products, 100);
    double *made[4], *p = doubles((int64_t)s->B * s->NH * s->Tq * s->Tk), *lse = doubles(s->B * s->NH * s->Tq);
    for (int i = 0; i < 4; i++) {
        made[i] = doubles(tensor_count(output[i]));
        error[i] = 0;
    }
    for (int draw = 0; draw < draws; draw++) {
        oracle_stores = 1.5 + uniform() / 2;
        oracle_attention_forward(s, made[0], p, lse, q, k, v);
        oracle_attention_backward(s, made[1], made[2], made[3], dout, p, q, k, v);
        for (int i = 0; i < 4; i++) error[i] = fmax(error[i], off(output[i], want[i], made[i]));
    }
    oracle_stores = 0;
    pool_used = pool_before;
}

static Tensor bytes(size_t count) { return scratch(count ? (int64_t)(count + 3) / 4 : 1); }

static void attention_case(AttentionSpec s, Layout layout, Data data) {
    int B = s.B, Tq = s.Tq, Tk = s.Tk, NH = s.NH, C = s.NH * s.HS, any = 0;
    s.dtype = s.out_dtype = arena_dtype;
    s.deterministic = 1;      /* EACH_RUN wants the same bits twice */
    s.scale = 1 / sqrtf((float)s.HS);
    arena_begin("attention", "B=%d Tq=%d Tk=%d q0=%d NH=%d HS=%d layout %d, %s", B, Tq, Tk, s.q0, NH, s.HS, layout,
                data_name[data]);

    Tensor qkv = layout == ONE_QKV ? place(arena_dtype, KEPT, 0, DIMS(B, Tk, 3 * C)) : ABSENT;
    Tensor dqkv = layout == ONE_QKV ? place(arena_dtype, KEPT, 0, DIMS(B, Tk, 3 * C)) : ABSENT;
    Tensor in[3], d[3];
    for (int i = 0; i < 3; i++) {
        in[i] = layout == ONE_QKV ? third(qkv,  i, KEPT,    B, Tk, C) : operand(layout, i, KEPT,    B, i ? Tk : Tq, C);
        d[i]  = layout == ONE_QKV ? third(dqkv, i, WRITTEN, B, Tk, C) : operand(layout, i, WRITTEN, B, i ? Tk : Tq, C);
    }
    Layout around = layout == VIEWS ? VIEWS : PACKED;
    Tensor out = operand(around, 1, WRITTEN, B, Tq, C), dout = fill(operand(around, 0, KEPT, B, Tq, C), 0, 1);
    fill_data(&s, data, in[0], in[1], in[2]);

    static const char *const name[] = { "out", "dq", "dk", "dv" };
    const Tensor output[] = { out, d[0], d[1], d[2] };
    double *q = given(in[0]), *k = given(in[1]), *v = given(in[2]), *g = given(dout), floor[4], emulated[4], *want[4];
    double *p = doubles((int64_t)B * NH * Tq * Tk), *lse = doubles(B * NH * Tq);
    for (int i = 0; i < 4; i++) want[i] = doubles(tensor_count(output[i]));
    oracle_attention_forward(&s, want[0], p, lse, q, k, v);
    oracle_attention_backward(&s, want[1], want[2], want[3], g, p, q, k, v);
    emulation(&s, emulated, output, want, g, q, k, v);
    double condition = sizes(&s, floor, p, q, k, v, g);
    int64_t arena_case_end = arena_used, pool_case_end = pool_used;

    for (int n = 0; attention_list[n]; n++) {
        const Attention *a = attention_list[n];
        if (a->refuse(&s)) { refused[n]++; continue; }
        ran[n]++;
        any = 1;
        arena_used = arena_case_end;
        pool_used = pool_case_end;
        snprintf(arena_op, sizeof arena_op, "%s %s", a->name, dtype_name(arena_dtype));
        Tensor state = bytes(a->state_bytes(&s)), work = bytes(a->workspace_bytes(&s));
        EACH_RUN {
            a->forward(&s, out, state.data, in[0], in[1], in[2], work.data);
            a->backward(&s, d[0], d[1], d[2], dout, out, state.data, in[0], in[1], in[2], work.data);
        }
        for (int i = 0; i < 4; i++)
            compare(name[i], output[i], want[i], (Bound){ Tk + s.HS, condition, floor[i], emulated[i] });
    }
    EXPECT(any || s.HS % 8, "%s: every implementation refuses", arena_case);
}

/* ---- the cases */

static void head_sizes(void) {
    static const int head_sizes[] = {1, 3, 8, 16, 24, 32, 40, 64, 80, 96, 127, 128};
    static const int lengths[] = {1, 7, 63, 64, 65, 127};
    static const struct { int B, NH; } heads[] = {{1, 1}, {1, 3}, {3, 1}, {5, 1}, {3, 3}};
    for (int i = 0; i < COUNT(head_sizes) * COUNT(lengths); i++) {
        int T = lengths[i % COUNT(lengths)];
        attention_case((AttentionSpec){ .B = heads[i % COUNT(heads)].B, .NH = heads[i % COUNT(heads)].NH, .Tq = T,
                                        .Tk = T, .HS = head_sizes[i / COUNT(lengths)] }, i % LAYOUTS, RANDOM);
    }
}

/* Queries that begin behind position 0, as in a cache or a ring; with q0 + Tq < Tk the last keys are seen by nobody. */
static void positions(void) {
    static const struct { int B, NH, Tq, Tk, q0, HS; } shapes[] = {
        {1, 1, 1, 2, 1, 8}, {1, 3, 1, 65, 64, 16}, {3, 1, 7, 63, 56, 40}, {1, 1, 65, 130, 65, 64},
        {1, 3, 64, 128, 33, 32}, {1, 5, 5, 70, 3, 24}, {3, 1, 63, 65, 0, 80}, {1, 1, 9, 1000, 991, 128},
        {1, 3, 100, 333, 200, 96}, {1, 1, 70, 300, 20, 16},
    };
    for (int i = 0; i < COUNT(shapes); i++) {
        AttentionSpec spec = { .B = shapes[i].B, .Tq = shapes[i].Tq, .Tk = shapes[i].Tk, .NH = shapes[i].NH,
                               .HS = shapes[i].HS, .q0 = shapes[i].q0 };
        attention_case(spec, PACKED, RANDOM);
        attention_case(spec, VIEWS, RANDOM);
    }
}

static void long_sequences(void) {
    attention_case((AttentionSpec){ .B = 1, .NH = 1, .Tq = 1000, .Tk = 1000, .HS = 64 }, ONE_QKV, RANDOM);
    attention_case((AttentionSpec){ .B = 1, .NH = 3, .Tq = 1000, .Tk = 1000, .HS = 24 }, VIEWS, RANDOM);
    attention_case((AttentionSpec){ .B = 1, .NH = 5, .Tq = 200, .Tk = 200, .HS = 128 }, ONE_QKV, RANDOM);
}

static void hard_data(void) {
    static const struct { int B, NH, T, HS; } shapes[] = {{1, 3, 65, 16}, {1, 1, 200, 64}, {3, 1, 129, 40}};
    for (int i = 0; i < COUNT(shapes); i++)
        for (Data data = RANDOM + 1; data < DATA_KINDS; data++)
            attention_case((AttentionSpec){ .B = shapes[i].B, .NH = shapes[i].NH, .Tq = shapes[i].T, .Tk = shapes[i].T,
                                            .HS = shapes[i].HS }, i % LAYOUTS, data);
}

/* ---- the list, and what is refused */

static AttentionSpec small = { .B = 2, .NH = 2, .Tq = 5, .Tk = 7, .q0 = 1, .HS = 8, .scale = 0.5f };
static const Attention *chosen;
static AttentionSpec chosen_spec;

static void call_pick(void *name) { attention_pick(name, &chosen_spec); }

static void picking(void) {
    small.dtype = small.out_dtype = arena_dtype;
    chosen_spec = small;
    const Attention *first = NULL;
    for (int n = 0; attention_list[n]; n++) {
        if (attention_list[n]->refuse(&small)) continue;
        if (!first) first = attention_list[n];
        EXPECT(attention_pick(attention_list[n]->name, &small) == attention_list[n], "%s", attention_list[n]->name);
    }
    EXPECT(first && attention_pick("auto", &small) == first, "auto is not the first that can run");
    expect_fails("\"flesh\" is none of ours, want one of auto", call_pick, "flesh");

    chosen_spec.dropout = 0.1f;
    for (int n = 0; attention_list[n]; n++) {
        const char *reason = attention_list[n]->refuse(&chosen_spec);
        EXPECT(reason && strstr(reason, "dropout"), "%s: %s", attention_list[n]->name, reason ? reason : "takes it");
        if (reason) expect_fails(reason, call_pick, (char *)attention_list[n]->name);
    }
    chosen_spec = small;
    chosen_spec.dtype = chosen_spec.out_dtype = BF16;
    for (int n = 0; attention_list[n] && device_refuse_dtype(BF16); n++)
        EXPECT(attention_list[n]->refuse(&chosen_spec), "%s takes bf16, the device does not", attention_list[n]->name);
}

static char room[1 << 16];
static void call_forward(Tensor *t)  { chosen->forward(&chosen_spec, t[0], room, t[1], t[2], t[3], room); }
static void call_backward(Tensor *t) {
    chosen->backward(&chosen_spec, t[0], t[1], t[2], t[3], t[4], room, t[5], t[6], t[7], room);
}

static void refusals(void) {
    enum { C = 16 };
    if (!strcmp(backend_name, "cpu")) device_open((DeviceOptions){ .threads = 1 });      /* fork keeps one thread */
    small.dtype = small.out_dtype = arena_dtype;
    arena_begin("refusals", "Tq=5 Tk=7");
    Tensor q = input(1, 2, 5, C), k = input(1, 2, 7, C), v = input(1, 2, 7, C), out = output(2, 5, C);
    Tensor dq = output(2, 5, C), dk = output(2, 7, C), dv = output(2, 7, C), dout = input(1, 2, 5, C);
    arena_upload();
    for (int n = 0; (chosen = attention_list[n]); n++) {
        chosen_spec = small;
        if (chosen->refuse(&small)) continue;
        expect_refusals((Call){ "attention", call_forward, 4, 0, .t = { out, q, k, v } });
        expect_refusals((Call){ "attention", call_backward, 8, 0, .t = { dq, dk, dv, dout, out, q, k, v } });
        static const int bad_q0[] = {3, -1}, bad_Tk[] = {6, 8};
        for (int i = 0; i < 4; i++) {
            chosen_spec = small;
            if (i < 2) chosen_spec.q0 = bad_q0[i];
            else       chosen_spec.Tk = bad_Tk[i - 2];
            expect_fails("attention", make_call, &(Call){ .call = call_forward, .t = { out, q, k, v } });
        }
    }
}

int main(void) {
    arena_open();
    RUN_EACH_DTYPE(head_sizes);
    RUN_EACH_DTYPE(positions);
    RUN_EACH_DTYPE(long_sequences);
    RUN_EACH_DTYPE(hard_data);
    RUN_EACH_DTYPE(picking);
    RUN_EACH_DTYPE(refusals);
    for (int n = 0; attention_list[n]; n++)
        printf("  %s: %d cases, %d more refused\n", attention_list[n]->name, ran[n], refused[n]);
    arena_close();
    return test_close();
}
