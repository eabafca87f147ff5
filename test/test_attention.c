/* Every attention of the linked backend against the oracle: shapes, views, positions, and data that is hard to sum. */
#include "attention_case.h"

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
                    condition = fmax(condition, fabs(spec->scale) * score);
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

/* In every other case, by chance, dq may differ from run to run: an implementation may have two ways to sum it. A scale
   of 0 means 1 / sqrt(HS). */
static void attention_case(AttentionSpec s, Layout layout, Data data) {
    int B = s.B, Tq = s.Tq, Tk = s.Tk, NH = s.NH, any = 0;
    s.dtype = s.out_dtype = arena_dtype;
    s.deterministic = uniform_int(0, 1);
    if (s.scale == 0) s.scale = 1 / sqrtf((float)s.HS);
    arena_begin("attention", "B=%d Tq=%d Tk=%d q0=%d NH=%d HS=%d scale %g layout %d, %s%s", B, Tq, Tk, s.q0, NH, s.HS,
                s.scale, layout, data_name[data], s.deterministic ? ", deterministic" : "");

    Operands o = place_operands(&s, layout);
    for (int b = 0; b < B; b++)
        for (int h = 0; h < NH; h++) fill_head(&s, data, head_of(o, &s, b, h));

    static const char *const name[] = { "out", "dq", "dk", "dv" };
    const Tensor output[] = { o.out, o.dq, o.dk, o.dv };
    double *q = given(o.q), *k = given(o.k), *v = given(o.v), *g = given(o.dout), floor[4], emulated[4], *want[4];
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
        name_implementation(n);
        Memory memory = place_memory(a, &s);
        EACH_RUN run_both(a, &s, o, memory);
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
    attention_case((AttentionSpec){ .B = 1, .NH = 3, .Tq = 833, .Tk = 833, .HS = 24 }, VIEWS, RANDOM);
    attention_case((AttentionSpec){ .B = 1, .NH = 5, .Tq = 200, .Tk = 200, .HS = 128 }, ONE_QKV, RANDOM);
}

static void hard_data(void) {
    static const struct { int B, NH, T, HS; } shapes[] = {{1, 3, 65, 16}, {1, 1, 200, 64}, {3, 1, 129, 40}};
    for (int i = 0; i < COUNT(shapes); i++)
        for (Data data = RANDOM + 1; data < HARD_DATA_END; data++)
            attention_case((AttentionSpec){ .B = shapes[i].B, .NH = shapes[i].NH, .Tq = shapes[i].T, .Tk = shapes[i].T,
                                            .HS = shapes[i].HS }, i % LAYOUTS, data);
}

/* Scores as good as equal, scores that make P 0 or 1, and the order of the keys turned around. */
static void scales(void) {
    static const float scale[] = {1e-6f, 8, -0.25f, -1e-6f};
    for (int i = 0; i < COUNT(scale); i++) {
        AttentionSpec narrow = { .B = 1, .NH = 3, .Tq = 70, .Tk = 70, .HS = 24, .scale = scale[i] };
        AttentionSpec wide = { .B = 3, .NH = 1, .Tq = 130, .Tk = 130, .HS = 64, .scale = scale[i] };
        attention_case(narrow, VIEWS, RANDOM);
        attention_case(wide, ONE_QKV, RANDOM);
    }
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
    RUN_EACH_DTYPE(scales);
    RUN_EACH_DTYPE(picking);
    RUN_EACH_DTYPE(refusals);
    print_implementations();
    arena_close();
    return test_close();
}
