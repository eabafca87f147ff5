/* Every attention of the linked backend against the oracle: shapes, views, positions, masks, data that is hard to sum
   and sums that are exact, partial results that are merged, rows so far apart that 32 bits cannot count the elements
   between them, and hundreds of runs with the same bits. */
#include "attention_case.h"

static void copy_rows(Tensor to, Tensor from) {
    for (int64_t r = 0; r < tensor_rows(to); r++)
        memcpy(arena_before + halves_from(to, r), arena_before + halves_from(from, r), row_bytes(to));
}

/* ---- one case */

/* Some heads have data and a truth of their own, every other is the twin of one of these. With dropout there are no
   twins: each head has another mask. */
typedef struct { Operands x[210]; Truth truth[6]; int heads, own, twin[210]; } Heads;

/* The spec of one head for the oracle, which reads the number of the sequence on the host. */
static AttentionSpec spec_of_head(const AttentionSpec *s, int head, uint64_t first_sequence) {
    static uint64_t sequence;
    AttentionSpec one = *s;
    sequence = first_sequence + (uint64_t)(head / s->NH);
    one.dropout.sequence = &sequence;
    oracle_head = head % s->NH;
    return one;
}

static void place_heads(Heads *h, const AttentionSpec *s, Operands all, Data data, uint64_t first_sequence) {
    h->heads = s->B * s->NH;
    h->own = s->Tq * s->HS > 250000 ? 1 : h->heads < 3 ? h->heads : 3;
    if (s->dropout.rate > 0) h->own = h->heads;
    REQUIRE(h->own <= COUNT(h->truth), "%d heads of their own", h->own);
    for (int head = 0; head < h->heads; head++) {
        Operands *x = &h->x[head];
        *x = head_of(all, s, head / s->NH, head % s->NH);
        h->twin[head] = head < h->own ? head : uniform_int(0, h->own - 1);
        for (int i = 0; i < HEAD_DATA && head >= h->own; i++)
            if (i >= OUTPUTS || adds_to(s, i)) copy_rows(x->all[i], h->x[h->twin[head]].all[i]);
        if (head >= h->own) continue;
        fill_head(s, data, *x);
        for (int i = DQ; i < OUTPUTS; i++)
            if (adds_to(s, i)) fill(x->all[i], 0, 1);
        AttentionSpec one = spec_of_head(s, head, first_sequence);
        h->truth[head] = truth_of(&one, *x, data);
        oracle_head = 0;
    }
}

/* The results of twins have the same bits; dq only where that is asked for. */
static void check_twin(const AttentionSpec *s, const Heads *h, int head) {
    int64_t pool_before = pool_used;
    const Truth *t = &h->truth[h->twin[head]];
    for (int i = 0; i < t->outputs; i++) {
        Tensor got = h->x[head].all[i];
        if (same_bits(got, h->x[h->twin[head]].all[i])) continue;
        EXPECT(i == DQ && !s->deterministic, "%s %s: %s of head %d differs from that of head %d with the same data",
               arena_op, arena_case, output_name[i], head, h->twin[head]);
        compare_within(output_name[i], got, t->want.x[i], bound_of(t, i));
        pool_used = pool_before;
    }
}

/* On a GPU only the first implementation depends on `deterministic`: it runs with 0 and with 1, the others with one of
   them by turns. The CPU, always deterministic, runs with 1. */
static int runs_with(int n, int deterministic, int turn) { return on_cpu || n == 0 || deterministic == turn % 2; }

/* Attention over a cache adds up a score in another order than the flash backward pass that follows it, so that the
   roundings of both count: 3 instead of 2 times the condition for large scores. */
static double condition_in(const Attention *a, AttentionSpec s, Data data) {
    s.Tk = s.Tq;                                /* only this implementation refuses as many queries as keys */
    s.position = NULL;
    return data != RANDOM && a->refuse(&s) ? 1.5 : 1;
}

static int f32_results;         /* results in F32, whatever the data type of q, k and v */

/* On the device */
static const uint64_t *place_sequence(uint64_t number) {
    Tensor words = integers(0, 0, 2);
    memcpy(arena_host(words), &number, sizeof number);
    return words.data;
}

/* A scale of 0 means 1 / sqrt(HS). The sequence of dropout is chosen here. */
static void attention_case(AttentionSpec s, Layout layout, Data data) {
    static Heads h;
    static int case_number;
    int any = 0;
    case_number++;
    s.dtype = arena_dtype;
    s.out_dtype = f32_results ? F32 : arena_dtype;
    if (s.scale == 0) s.scale = 1 / sqrtf((float)s.HS);
    arena_begin("attention", "B=%d NH=%d Tq=%d Tk=%d %s q0=%d HS=%d scale %g layout %d, %s%s%s, dropout %g", s.B, s.NH,
                s.Tq, s.Tk, s.causal ? "causal" : "full", s.q0, s.HS, s.scale, layout, data_name[data],
                s.out_into ? ", merged" : s.dq_into && s.dkv_into ? ", added" : s.dq_into ? ", dq added"
                : s.dkv_into ? ", dk and dv added" : "",
                f32_results ? ", results in f32" : "", s.dropout.rate);
    uint64_t first_sequence = case_number % 3 ? (uint64_t)uniform_int(0, INT32_MAX) << 9 | 0x1ff : 0;
    s.dropout.sequence = case_number % 3 ? place_sequence(first_sequence) : NULL;
    Operands all = place_operands(&s, layout);
    place_heads(&h, &s, all, data, first_sequence);
    AttentionSpec from_device = s;              /* as in generation: the position is read on the device */
    if (s.causal && s.q0 >= 0 && s.q0 < s.Tk && s.Tq < s.Tk) {
        from_device.position = integers(s.q0, s.q0, 1).data;
        from_device.q0 = 0;
    }
    const CaseEnd end = case_end();
    for (s.deterministic = on_cpu; s.deterministic < 2; s.deterministic++)
        EACH_ATTENTION(n, &s, end) {
            any = 1;
            if (!runs_with(n, s.deterministic, case_number)) continue;
            mark(all.dq, s.deterministic ? WRITTEN : SCRATCH);
            Memory memory = place_memory(attention_list[n], &s);
            const AttentionSpec *by_turns[] = { &s, attention_list[n]->refuse(&from_device) ? &s : &from_device };
            EACH_RUN run_both(attention_list[n], &s, by_turns[run_ % 2], all, memory);
            int bf16_p = data == POWERS && arena_dtype == BF16 && !strcmp(attention_list[n]->name, "naive");
            Exact claim = data < HARD_DATA_END ? NOT_EXACT : bf16_p ? EXACT_FROM_BF16_P : EXACT;
            double factor = condition_in(attention_list[n], s, data);
            for (int i = 0; i < h.own; i++) h.truth[i].condition *= factor;
            for (int head = 0; head < h.heads; head++) {
                const Truth *t = &h.truth[h.twin[head]];
                check_lse(&s, t, all.lse, head);
                if (head < h.own) check_head(t, h.x[head], claim);
                else              check_twin(&s, &h, head);
            }
            for (int i = 0; i < h.own; i++) h.truth[i].condition /= factor;
        }
    EXPECT(any || s.HS % 8 || s.out_into, "%s: every implementation refuses", arena_case);
}

/* ---- shapes and data */

static const int lengths[] = { 1, 2, 7, 8, 15, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 257, 383,
                               1000, 1023, 1024, 1025, 2047, 4096, 4097, 4225 };

/* Whether its operands and a dq in f32, for either pass, of whole tiles of 128 rows, leave room; on the CPU, whether it
   is quick. */
static int affordable(AttentionSpec s, Layout layout) {
    int64_t count = (int64_t)s.B * s.NH * s.Tq * s.HS;
    int64_t padded = (int64_t)s.B * s.NH * ((s.Tq + 127) / 128 * 128) * (s.HS + 8);
    if (on_cpu && ((int64_t)s.Tq * s.Tq * s.HS > 3 << 22 || count > 1 << 20)) return 0;
    int64_t operands = (layout == VIEWS ? 24 : 8) * count * (int64_t)dtype_bytes(arena_dtype) / 2;
    return operands + 4 * padded + (1 << 18) <= ARENA_HALVES;
}

/* All lengths up to two tiles with 1, 3, 131 and 133 heads, longer ones with 1 or 3. */
TEST_EACH_DTYPE(lengths_and_heads) {
    static const struct { int B, NH; } heads[] = { {3, 1}, {1, 1}, {1, 131}, {7, 19} };
    int left_out = 0, cases = 0;
    for (int i = 0; i < COUNT(lengths); i++)
        for (int wide = 0; wide < 2; wide++)
            for (int h = 0; h < COUNT(heads); h++) {
                AttentionSpec s = spec_of(heads[h].B, heads[h].NH, lengths[i], wide ? 128 : 64);
                if (lengths[i] > 129 && h != (i + wide) % 2) continue;
                if (!affordable(s, PACKED)) { left_out++; continue; }
                s.dq_into = s.dkv_into = cases % 8 == 5 ? ACCUMULATE : OVERWRITE;
                attention_case(s, cases++ % 2 ? ONE_QKV : PACKED, RANDOM);
            }
    printf("  %d shapes, %d more are too large for this test on this device\n", cases, left_out);
}

TEST_EACH_DTYPE(head_sizes) {
    static const int head_sizes[] = {1, 3, 8, 16, 24, 32, 40, 64, 72, 80, 96, 120, 127, 128};
    static const int lengths[] = {1, 7, 63, 64, 65, 129};
    static const struct { int B, NH; } heads[] = {{1, 1}, {1, 3}, {3, 2}, {5, 1}, {3, 3}};
    for (int i = 0; i < COUNT(head_sizes) * COUNT(lengths); i++)
        attention_case(spec_of(heads[i % COUNT(heads)].B, heads[i % COUNT(heads)].NH, lengths[i % COUNT(lengths)],
                               head_sizes[i / COUNT(lengths)]), i % LAYOUTS, RANDOM);
    for (int i = 0; i < COUNT(head_sizes); i++)
        attention_case(spec_of(1, 1, on_cpu ? 400 : 600, head_sizes[i]), i % LAYOUTS, RANDOM);
    attention_case(spec_of(1, 3, 833, 24), VIEWS, RANDOM);
    /* Hopper: blocks that share K and V; dQ a step late in more tiles (140) than there are SMs */
    const AttentionSpec long_wide[] = { spec_of(2, 1, 2111, 128), spec_of(1, 5, 3500, 72) };
    for (int i = 0; i < COUNT(long_wide); i++)
        if (!on_cpu && affordable(long_wide[i], PACKED)) attention_case(long_wide[i], PACKED, RANDOM);
    attention_case(spec_of(on_cpu ? 7 : 70, 3, 300, 8), PACKED, RANDOM); /* naive launches 64 sequences */
}

enum { FULL = 1 << 20 };                        /* q0 of a shape that is not causal */
typedef struct { int B, NH, Tq, Tk, q0, HS; } Shape;

static AttentionSpec spec_of_shape(Shape s) {
    return (AttentionSpec){ .B = s.B, .NH = s.NH, .Tq = s.Tq, .Tk = s.Tk, .HS = s.HS, .causal = s.q0 != FULL,
                            .q0 = s.q0 == FULL ? 0 : s.q0 };
}

/* Queries that begin behind key 0, as in a cache, or before it, as in a ring; keys that no row sees, rows that see no
   key or all of them; no mask at all. */
TEST_EACH_DTYPE(positions) {
    static const Shape shapes[] = {
        {1, 1, 1, 2, 1, 8}, {1, 3, 1, 65, 64, 16}, {3, 1, 7, 63, 56, 40}, {1, 1, 65, 130, 65, 64},
        {1, 3, 64, 128, 33, 32}, {1, 5, 5, 70, 3, 24}, {3, 1, 63, 65, 0, 80}, {1, 1, 9, 1000, 991, 128},
        {1, 3, 100, 333, 200, 96}, {1, 1, 70, 300, 20, 16},
        {1, 1, 1, 1, -1, 8}, {1, 3, 65, 65, -1, 64}, {3, 1, 130, 70, -67, 40}, {1, 2, 129, 129, -129, 128},
        {1, 1, 300, 129, -100, 64}, {1, 3, 64, 7, -60, 16}, {2, 1, 257, 400, -128, 128}, {1, 1, 40, 64, -1000, 64},
        {1, 3, 129, 50, 10, 64}, {2, 1, 200, 65, 64, 128}, {1, 1, 70, 129, 1000, 80}, {1, 2, 300, 1, 0, 64},
        {1, 1, 100, 200, INT32_MAX, 64}, {1, 1, 100, 200, INT32_MIN, 64},
        {1, 1, 1, 1, FULL, 8}, {1, 3, 65, 129, FULL, 64}, {3, 1, 129, 65, FULL, 128}, {1, 2, 200, 200, FULL, 40},
        {1, 1, 31, 1000, FULL, 96}, {2, 2, 128, 128, FULL, 64}, {1, 1, 500, 77, FULL, 16},
    };
    for (int i = 0; i < COUNT(shapes); i++) {
        AttentionSpec s = spec_of_shape(shapes[i]);
        s.dq_into = i % 2 ? OVERWRITE : ACCUMULATE;
        s.dkv_into = i % 3 ? OVERWRITE : ACCUMULATE;
        attention_case(s, PACKED, RANDOM);
        s.dq_into = i % 2 ? ACCUMULATE : OVERWRITE;
        s.dkv_into = i % 3 ? ACCUMULATE : OVERWRITE;
        attention_case(s, VIEWS, i % 3 ? RANDOM : i % 2 ? RISING_MAXIMA : FALLING_MAXIMA);
    }
}

/* What a step of ring attention computes: rectangles without a mask, both ways, and causal squares whose diagonal is
   shifted by 0 or 1, with results in f32; rectangles with results in bf16, too. */
TEST_EACH_DTYPE(parts) {
    enum { HEADS = 4, SIZES = 5 };
    static const int lengths[] = { 1, 63, 64, 65, 127, 128, 129, 192, 193, 257, 1000 }, count = COUNT(lengths);
    static const struct { int B, NH; } heads[HEADS] = { {1, 1}, {1, 3}, {2, 2}, {3, 1} };
    static const int sizes[SIZES] = { 64, 128, 80, 40, 128 };
    for (int i = 0; i < (arena_dtype == F32 ? 5 : 8) * count; i++) {
        f32_results = i < 5 * count;
        int square = f32_results && i / count >= 3, Tq = lengths[i % count];
        int Tk = square ? Tq : lengths[(3 * i + i / count) % count];
        AttentionSpec s = { .B = heads[i % HEADS].B, .NH = heads[i % HEADS].NH, .Tq = Tq, .Tk = Tk,
                            .HS = sizes[i % SIZES], .causal = square, .q0 = square ? 3 - i / count : 0 };
        if (on_cpu && (int64_t)Tq * Tk * s.HS > 1 << 22) continue;
        s.dq_into = f32_results && i % 2 ? ACCUMULATE : OVERWRITE;
        s.dkv_into = !f32_results || i % 3 ? OVERWRITE : ACCUMULATE;
        Layout layout = square ? i % LAYOUTS : i % 2 ? VIEWS : PACKED;
        AttentionSpec room = s;
        room.B *= 2;                            /* the results are in f32 */
        room.Tq = Tq > Tk ? Tq : Tk;
        if (!affordable(room, layout)) { s.B = s.NH = 1; layout = PACKED; }
        attention_case(s, layout, i % 7 == 6 ? RISING_MAXIMA : i % 7 == 5 ? FALLING_MAXIMA : RANDOM);
    }
    /* Many heads and few keys, or more tiles than multiprocessors. */
    f32_results = 1;
    static const Shape crowds[] = {
        {5, 9, 129, 257, FULL, 64}, {1, 67, 193, 65, FULL, 64}, {9, 5, 65, 257, FULL, 128}, {7, 19, 8, 40, FULL, 128},
        {3, 1, 1000, 1025, FULL, 64}
    };
    for (int i = 0; i < COUNT(crowds); i++) {
        AttentionSpec s = spec_of_shape(crowds[i]);
        s.dq_into = i % 2 ? OVERWRITE : ACCUMULATE;
        s.dkv_into = ACCUMULATE;
        attention_case(s, PACKED, RANDOM);
    }
    f32_results = 0;
}

/* Few queries over many keys, as in generation: around the ends of warps, splits and tiles. */
TEST_EACH_DTYPE(decoding) {
    static const int lengths[] = { 1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 257, 511, 512, 513, 1000, 1025, 4095, 4097 };
    static const struct { int B, NH, HS; } heads[] = {
        {1, 1, 64}, {1, 12, 64}, {2, 5, 128}, {1, 25, 64}, {3, 3, 80}, {1, 2, 16}, {2, 7, 8}, {1, 9, 24}, {16, 3, 64},
        {1, 3, 40}, {5, 1, 96}, {1, 4, 4}
    };
    for (int i = 0; i < COUNT(lengths) * COUNT(heads); i++) {
        int Tk = lengths[i / COUNT(heads)], h = i % COUNT(heads), Tq = i % 3 ? 1 : 1 + i % 8;
        AttentionSpec s = { .B = heads[h].B, .NH = heads[h].NH, .HS = heads[h].HS, .Tq = Tq, .Tk = Tk,
                            .causal = i % 7 != 0 };
        s.q0 = i % 5 == 4 ? Tk / 3 : i % 5 == 3 ? -Tq / 2 : Tk - Tq;        /* a cache is full, in part, or empty */
        Layout layout = (i / COUNT(heads) + h) % 2 ? VIEWS : PACKED;
        int64_t count = (int64_t)s.B * s.NH * Tk * s.HS, operands = layout == VIEWS ? 12 : 4;  /* k, v, dk and dv */
        if (count > 1 << 18 && on_cpu) continue;
        if (operands * count * (int64_t)dtype_bytes(arena_dtype) / 2 > ARENA_HALVES / 4 * 3) continue;
        Data data = i % 11 == 10 ? RISING_MAXIMA : i % 11 == 9 ? ONE_HUGE_SCORE : RANDOM;
        attention_case(s, layout, data);
    }
}

TEST_EACH_DTYPE(hard_data) {
    for (Data data = RANDOM + 1; data < HARD_DATA_END; data++) {
        attention_case(spec_of(1, 2, 383, 64), data % LAYOUTS, data);
        attention_case(spec_of(2, 1, on_cpu ? 300 : 600, 128), (data + 1) % LAYOUTS, data);
        attention_case(spec_of(3, 1, 193, 40), (data + 2) % LAYOUTS, data);
        attention_case(spec_of(1, 3, 65, 16), data % LAYOUTS, data);
    }
}

/* Scores that are almost equal, scores that make P 0 or 1, and the order of the keys turned around. */
TEST_EACH_DTYPE(scales) {
    static const float scale[] = {1e-6f, 8, -0.25f, -1e-6f};
    for (int i = 0; i < COUNT(scale); i++) {
        AttentionSpec narrow = spec_of(1, 3, 70, 24), wide = spec_of(3, 1, 130, 64);
        narrow.scale = wide.scale = scale[i];
        attention_case(narrow, VIEWS, RANDOM);
        attention_case(wide, ONE_QKV, RANDOM);
    }
}

/* ---- dropout */

static Dropout random_dropout(float rate) {
    return (Dropout){ .rate = rate, .site = (uint32_t)uniform_int(0, INT32_MAX),
                      .seed = (uint64_t)uniform_int(0, INT32_MAX) << 33 | (uint64_t)uniform_int(0, INT32_MAX) };
}

/* Results and gradients with the mask that dropout.h gives each head: odd shapes, causal and not. */
TEST_EACH_DTYPE(with_dropout) {
    static const Shape shapes[] = {
        {2, 3, 65, 65, 0, 64}, {1, 2, 191, 191, 0, 128}, {3, 1, 130, 130, 0, 40}, {1, 3, 257, 257, 0, 64},
        {2, 1, 129, 129, 0, 96}, {1, 2, 100, 257, FULL, 64}, {2, 2, 33, 70, 30, 24}, {1, 1, 383, 383, 0, 120},
        {1, 2, 77, 77, 0, 127}, {3, 2, 1, 1, 0, 8}, {1, 1, 15, 9, -3, 64}, {1, 2, 200, 130, FULL, 128},
        {1, 1, 500, 500, 0, 64}, {2, 1, 320, 320, 0, 80},
    };
    static const float rates[] = { 0.1f, 0.5f, 0.9f };
    for (int i = 0; i < COUNT(shapes) * COUNT(rates); i++) {
        AttentionSpec s = spec_of_shape(shapes[i / 3]);
        s.dq_into = i % 4 == 3 ? ACCUMULATE : OVERWRITE;
        s.dkv_into = i % 4 > 1 ? ACCUMULATE : OVERWRITE;
        s.dropout = random_dropout(rates[i % 3]);
        attention_case(s, i % LAYOUTS == ONE_QKV && s.Tq != s.Tk ? VIEWS : i % LAYOUTS, RANDOM);
    }
}

/* Bit by bit. The scores are 0, so that P is uniform. v is 1 where column d of key j is key - j0, otherwise 0: out is 0
   where the mask drops key j0 + d; the same with dout, queries and dv. */
TEST_EACH_DTYPE(masks) {
    static const struct { int B, NH, T, HS; float rate; } shapes[] = {
        {2, 3, 200, 64, 0.5f}, {1, 2, 333, 128, 0.2f}, {3, 1, 70, 32, 0.95f}, {1, 1, 129, 64, 0.001f}
    };
    for (int n = 0; n < COUNT(shapes); n++) {
        const int B = shapes[n].B, NH = shapes[n].NH, T = shapes[n].T, HS = shapes[n].HS;
        AttentionSpec s = spec_of(B, NH, T, HS);
        s.dropout = random_dropout(shapes[n].rate);
        const uint64_t first_sequence = (uint64_t)uniform_int(1, INT32_MAX) << 32;
        AttentionSpec on_host = s;
        on_host.dropout.sequence = &first_sequence;
        for (int j0 = 0; j0 < T; j0 += HS) {
            arena_begin("masks", "B=%d NH=%d T=%d HS=%d rate %g, keys from %d", B, NH, T, HS, s.dropout.rate, j0);
            s.dropout.sequence = place_sequence(first_sequence);
            Operands all = place_operands(&s, PACKED);
            const Tensor zero[] = { all.q, all.k, all.v, all.dout };
            for (int i = 0; i < 4; i++) fill(zero[i], 0, 0);
            for (int row = 0; row < B * T; row++)
                for (int h = 0; h < NH && row % T >= j0 && row % T < j0 + HS; h++) {
                    set(all.v,    (int64_t)row * NH * HS + h * HS + row % T - j0, 1);
                    set(all.dout, (int64_t)row * NH * HS + h * HS + row % T - j0, 1);
                }
            const CaseEnd end = case_end();
            EACH_ATTENTION(a, &s, end) {
                mark(all.dq, SCRATCH);
                Memory memory = place_memory(attention_list[a], &s);
                EACH_RUN run_both(attention_list[a], &s, &s, all, memory);
                int64_t wrong[2] = { 0, 0 };
                for (int64_t at = 0; at < (int64_t)B * T * NH * HS; at++) {
                    const int b = (int)(at / HS / NH / T), h = (int)(at / HS % NH), t = (int)(at / HS / NH % T);
                    const int other = j0 + (int)(at % HS);
                    if (other >= T) continue;
                    const int in_row = other <= t && oracle_p_factor(&on_host, b, h, t, other) != 0;
                    const int in_column = t <= other && oracle_p_factor(&on_host, b, h, other, t) != 0;
                    wrong[0] += (element(all.out, arena_after, at) != 0) != in_row;
                    wrong[1] += (element(all.dv,  arena_after, at) != 0) != in_column;
                }
                EXPECT(!wrong[0] && !wrong[1], "%s %s: %lld elements of the mask differ in the forward pass, %lld in "
                       "the backward pass", arena_op, arena_case, (long long)wrong[0], (long long)wrong[1]);
            }
        }
    }
}

TEST_EACH_DTYPE(exact_data) {
    static const int head_sizes[] = { 64, 128, 16, 40, 120 };
    for (int i = 0; i < COUNT(lengths); i++) {
        AttentionSpec s = spec_of(1, 2, lengths[i], i % 2 ? 64 : 128);
        AttentionSpec other = spec_of(2, 1, lengths[i], head_sizes[i % COUNT(head_sizes)]);
        s.scale = other.scale = 0.125f;
        if (lengths[i] == 4096 || lengths[i] == 4097) continue;         /* 4225 is as long */
        if (affordable(s, ONE_QKV))   attention_case(s, ONE_QKV, POWERS);
        if (affordable(s, PACKED))    attention_case(s, PACKED, ONE_HOT);
        if (lengths[i] > 1025) continue;
        if (affordable(other, VIEWS)) attention_case(other, VIEWS, i % 2 ? POWERS : ONE_HOT);
    }
}

/* An implementation that is called flash has no memory that grows with T squared. */
TEST(linear_memory) {
    for (int n = 0; attention_list[n]; n++) {
        const Attention *a = attention_list[n];
        const AttentionSpec s = spec_of(2, 3, 8192, 64), twice = spec_of(2, 3, 16384, 64);
        const size_t bytes[] = { a->kept_bytes(&s) + attention_workspace_bytes(a, &s),
                                 a->kept_bytes(&twice) + attention_workspace_bytes(a, &twice) };
        EXPECT(strcmp(a->name, "flash") || a->refuse(&s) || bytes[1] <= 2 * bytes[0] + 65536,
               "flash %d: %zu bytes at T = 8192, %zu at 16384", n + 1, bytes[0], bytes[1]);
    }
}

/* ---- partial results over disjoint keys */

/* A merge of random partial results, one row in three without any on either side, against the formula in double: in
   place, to another tensor, and rounded. A row of which one side is empty is the other's, to the bit. */
TEST(merge_rows) {
    static const struct { int B, NH, T, HS; } shapes[] = {
        {1, 1, 1, 1}, {2, 3, 37, 40}, {1, 5, 129, 64}, {3, 1, 7, 127}, {2, 16, 33, 128}
    };
    enum { IN_PLACE, APART, ROUNDED, KINDS };
    for (int n = 0; n < COUNT(shapes) * KINDS; n++) {
        const int kind = n % KINDS, B = shapes[n / KINDS].B, NH = shapes[n / KINDS].NH, T = shapes[n / KINDS].T;
        const int HS = shapes[n / KINDS].HS, C = NH * HS;
        if (kind == ROUNDED && device_refuse_dtype(BF16)) continue;
        arena_begin("merge", "B=%d NH=%d T=%d HS=%d, kind %d", B, NH, T, HS, kind);
        const AttentionSpec s = { .B = B, .NH = NH, .Tq = T, .Tk = T, .HS = HS };
        Tensor out = third_as(F32, ABSENT, 1, kind ? KEPT : WRITTEN, B, T, C), part = input(1, B, T, C);
        Tensor merged = kind ? output_as(kind == ROUNDED ? BF16 : F32, B, T, C) : out;
        Tensor lse = f32_base(5, B, NH, T), part_lse = f32_input(5, B, NH, T);
        fill(out, 0, 1);
        for (int row = 0; row < B * NH * T; row++) {
            if (uniform() < -1.0 / 3) set(lse, row, -INFINITY);
            if (uniform() < -1.0 / 3) set(part_lse, row, -INFINITY);
        }
        EACH_RUN attention_merge(merged, lse, out, part, part_lse);
        for (int head = 0; head < B * NH; head++) {
            const int b = head / NH, h = head % NH;
            const Tensor to = head_view(merged, &s, b, h), to_lse = tensor_row_range(lse, head, 1);
            double *want = given(head_view(out, &s, b, h)), *want_lse = given(to_lse), *old = given(to_lse);
            const double *p = given(tensor_row_range(part_lse, head, 1)), *got = result(to), *got_lse = result(to_lse);
            int64_t wrong = 0;
            merge(&s, want, want_lse, given(head_view(part, &s, b, h)), p);
            for (int i = 0; i < T; i++) {
                const int one_side = old[i] == -INFINITY || p[i] == -INFINITY;
                for (int at = i * HS; at < (i + 1) * HS; at++)
                    wrong += one_side && got[at] != (kind == ROUNDED ? round_bf16(want[at]) : want[at]);
                wrong += one_side && got_lse[i] != (float)want_lse[i];
                if (got_lse[i] == -INFINITY && want_lse[i] == -INFINITY) {          /* which compare() cannot take */
                    ((float *)(arena_after + halves_from(to_lse, 0)))[i] = 0;
                    want_lse[i] = 0;
                }
            }
            EXPECT(!wrong, "%s: %lld elements of rows with one side differ from that side", arena_case,
                   (long long)wrong);
            compare_within("merged", to, want, (Bound){ .roundings = 4, .condition = 10 });
            compare_within("lse", to_lse, want_lse, (Bound){ .roundings = 4, .floor = 5 });
        }
    }
}

/* out_into = ACCUMULATE: out and lse = the merge of what they hold with attention. */
TEST_EACH_DTYPE(merged_in_place) {
    static const Shape shapes[] = {
        {1, 1, 1, 1, 0, 8}, {2, 3, 65, 65, 0, 64}, {1, 2, 129, 129, -1, 128}, {1, 3, 130, 130, 0, 128},
        {2, 1, 300, 129, FULL, 128}, {1, 3, 64, 257, FULL, 80}, {3, 1, 193, 65, FULL, 128}, {1, 2, 1, 64, FULL, 40},
        {1, 5, 129, 200, FULL, 64}, {2, 9, 257, 129, FULL, 96}, {1, 1, 70, 129, -30, 128}, {1, 2, 5, 300, FULL, 64},
        {2, 2, 33, 33, -1, 32}, {1, 7, 500, 384, FULL, 128},
        {1, 1, 2300, 193, FULL, 128}, {1, 2, 2049, 20, FULL, 72},           /* by clusters on Hopper */
    };
    for (int i = 0; i < COUNT(shapes) * 2; i++) {
        AttentionSpec s = spec_of_shape(shapes[i / 2]);
        if (i % 2 && arena_dtype == F32) continue;
        s.out_into = ACCUMULATE;
        f32_results = i % 2 == 0;
        attention_case(s, i / 2 % 2 ? PACKED : VIEWS, RANDOM);
    }
    f32_results = 0;
}

/* ---- rows that are far apart: offsets beyond 2^31 elements, 2^32 bytes */

TEST_EACH_DTYPE(far_rows) {
    AttentionSpec s = spec_of(1, 2, on_cpu ? 100 : 2100, 64);
    int64_t pitch = on_cpu ? 1 << 12 : (1 << 20) + 8;
    size_t bytes = (size_t)(s.Tq * pitch) * dtype_bytes(arena_dtype);
    if (device_info().free_bytes < (int64_t)bytes + (1 << 28)) {
        test_skip_reason = "rows 2 MiB apart need more memory than is free";
        return;
    }
    s.deterministic = 1;
    arena_begin("far rows", "T=%d pitch=%lld", s.Tq, (long long)pitch);
    Operands near = place_operands(&s, PACKED), far;
    for (int h = 0; h < s.NH; h++) fill_head(&s, RANDOM, head_of(near, &s, 0, h));
    char *device = new_device_memory(bytes);
    for (int i = 0; i < LSE; i++) {
        far.all[i] = near.all[i];
        far.all[i].data = device + (size_t)i * row_bytes(near.q);
        far.all[i].pitch = pitch;
        for (int t = 0; t < s.Tq; t++)
            device_upload((char *)far.all[i].data + (size_t)(t * pitch) * dtype_bytes(arena_dtype),
                          arena_before + halves_from(near.all[i], t), row_bytes(near.q));
    }
    far.rounded = far.out;
    far.lse = near.lse;
    const CaseEnd end = case_end();
    EACH_ATTENTION(n, &s, end) {
        Memory memory = place_memory(attention_list[n], &s);
        EACH_RUN run_both(attention_list[n], &s, &s, near, memory);
        run_both(attention_list[n], &s, &s, far, memory);
        char row[sizeof(float) * 2 * 64];
        int64_t different = 0;
        for (int i = OUT; i < OUTPUTS; i++)
            for (int t = 0; t < s.Tq; t++) {
                device_download(row, (char *)far.all[i].data + (size_t)(t * pitch) * dtype_bytes(arena_dtype),
                                row_bytes(near.q));
                different += memcmp(row, arena_after + halves_from(near.all[i], t), row_bytes(near.q)) != 0;
            }
        EXPECT(!different, "%s %s: %lld rows differ from those of packed operands", arena_op, arena_case,
               (long long)different);
    }
}

/* ---- the same bits, run after run, on two streams by turns */

/* cudaStreamPerThread, which needs no CUDA header to be named: work goes to it and to the backend's own stream by
   turns. */
static void *const other_stream = (void *)2;

/* 200 runs of flash in bf16, for what may go wrong one time in a hundred. */
static void repeat(AttentionSpec s) {
    arena_begin("repetition", "B=%d NH=%d T=%d HS=%d%s", s.B, s.NH, s.Tq, s.HS,
                s.deterministic ? ", deterministic" : "");
    Operands all = place_operands(&s, PACKED), first = head_of(all, &s, 0, 0);
    for (int head = 0; head < s.B * s.NH; head++) fill_head(&s, RANDOM, head_of(all, &s, head / s.NH, head % s.NH));
    Truth truth = truth_of(&s, first, RANDOM);
    const CaseEnd end = case_end();
    EACH_ATTENTION(n, &s, end) {
        if (!runs_with(n, s.deterministic, s.HS / 128)) continue;
        Memory memory = place_memory(attention_list[n], &s);
        int flash = strcmp(attention_list[n]->name, "flash") == 0, different[OUTPUTS] = {0};
        int runs = on_cpu ? 5 : flash && arena_dtype == BF16 ? 200 : 20;
        arena_run(0);
        run_both(attention_list[n], &s, &s, all, memory);
        arena_run(1);                                   /* into arena_first; poison again */
        for (int run = 1; run < runs; run++) {
            if (run % 20 == 0) arena_upload();
            device_use_stream(run % 2 ? other_stream : NULL);
            run_both(attention_list[n], &s, &s, all, memory);
            device_download(arena_after + halves_from(all.out, 0), all.out.data,
                            tensor_bytes(all.dv) + (size_t)((char *)all.dv.data - (char *)all.out.data));
            for (int i = 0; i < OUTPUTS; i++) {
                int64_t at = halves_from(all.all[i], 0);
                if (!memcmp(arena_after + at, arena_first + at, tensor_bytes(all.all[i]))) continue;
                different[i]++;
                if (i != DQ || s.deterministic) continue;
                compare_within("dq", first.dq, truth.want.x[DQ], bound_of(&truth, DQ));
                pool_used = end.pool;
            }
        }
        device_use_stream(NULL);
        for (int i = 0; i < OUTPUTS; i++)
            EXPECT(!different[i] || (i == DQ && !s.deterministic), "%s %s: %s differs from the first run's in %d of %d",
                   arena_op, arena_case, output_name[i], different[i], runs);
    }
}

TEST_EACH_DTYPE(repetition) {
    for (int wide = 0; wide < 2; wide++)
        for (int deterministic = on_cpu; deterministic < 2; deterministic++) {
            AttentionSpec s = on_cpu ? spec_of(1, 3, 200, wide ? 128 : 64)
                                     : spec_of(arena_dtype == BF16 ? 2 : 1, wide ? 8 : 17, 511, wide ? 128 : 64);
            s.deterministic = deterministic;
            repeat(s);
        }
}

/* ---- The bias of rounding in flash attention (Qiu, Yao 2025, arXiv 2510.04212), and that ours is free of it

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
    if (device_refuse_dtype(BF16)) {
        test_skip_reason = device_refuse_dtype(BF16);
        return;
    }
    arena_dtype = BF16;
    AttentionSpec s = spec_of(1, 8, 1024, 64);
    s.deterministic = 1;
    arena_begin("bias", "%s", tie == PAIR ? "two equal maxima" : "eight scores within 2^-9 of the maximum");
    Operands all = place_operands(&s, ONE_QKV), x[8];
    Truth truth[8];
    for (int h = 0; h < s.NH; h++) {
        x[h] = head_of(all, &s, 0, h);
        fill_ties(&s, tie, x[h]);
        truth[h].want = new_results(x[h]);
        int64_t pool_before = pool_used;
        attend(&s, x[h], truth[h].want, 0, inputs_of(&s, x[h]));
        pool_used = pool_before;
    }
    const CaseEnd end = case_end();
    EACH_ATTENTION(n, &s, end) {
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
    arena_dtype = F32;
}

TEST(two_equal_maxima) { bias(PAIR); }
TEST(near_ties)        { bias(NEAR_TIES); }

/* ---- the list, and what is refused */

static AttentionSpec small = { .B = 2, .NH = 2, .Tq = 5, .Tk = 7, .q0 = 1, .causal = 1, .HS = 8, .scale = 0.5f };
static const Attention *chosen;
static AttentionSpec chosen_spec;

TEST_EACH_DTYPE(picking) {
    small.dtype = small.out_dtype = arena_dtype;
    const Attention *first = NULL;
    for (int n = 0; attention_list[n]; n++) {
        if (attention_list[n]->refuse(&small)) continue;
        if (!first) first = attention_list[n];
        int same = 0;                       /* the first of that name */
        while (attention_list[same]->refuse(&small) || strcmp(attention_list[same]->name, attention_list[n]->name))
            same++;
        EXPECT(attention_pick(attention_list[n]->name, &small) == attention_list[same], "%s", attention_list[n]->name);
    }
    EXPECT(first && attention_pick("auto", &small) == first, "auto is not the first that can run");
    EXPECT_FAILS("unknown name \"flesh\", want auto, flash or naive", attention_pick("flesh", &small));
    for (int i = 0; i < 3; i++) {
        AttentionSpec s = small;
        s.dropout.rate = (float[]){ -0.1f, 0.96f, NAN }[i];
        EXPECT_FAILS("want 0 .. 0.95", attention_forward(attention_pick("auto", &small), &s, &(AttentionOperands){0}));
    }

    AttentionSpec wide = small, bf16 = small;
    wide.HS = HS_MAX + 8;
    bf16.dtype = bf16.out_dtype = BF16;
    for (int n = 0; attention_list[n]; n++) {
        const Attention *a = attention_list[n];
        EXPECT_FAILS("head size", attention_pick(a->name, &wide));
        EXPECT(!device_refuse_dtype(BF16) || a->refuse(&bf16), "%s runs bf16, the device does not", a->name);
    }
}

static char room[1 << 16];
static void call_forward(Tensor *t)  {
    attention_forward(chosen, &chosen_spec, &(AttentionOperands){
        .out = t[0], .lse = t[1], .q = t[2], .k = t[3], .v = t[4], .kept = room, .work = room });
}
static void call_backward(Tensor *t) {
    attention_backward(chosen, &chosen_spec, &(AttentionOperands){
        .dq = t[0], .dk = t[1], .dv = t[2], .dout = t[3], .out = t[4], .lse = t[5], .q = t[6], .k = t[7], .v = t[8],
        .kept = room, .work = room });
}
static void call_merge(Tensor *t)    { attention_merge(t[0], t[1], t[2], t[3], t[4]); }

TEST_EACH_DTYPE(refusals) {
    enum { C = 16 };
    if (on_cpu) device_open((DeviceOptions){ .threads = 1 });       /* fork keeps one thread */
    small.dtype = small.out_dtype = arena_dtype;
    arena_begin("refusals", "Tq=5 Tk=7");
    Tensor q = input(1, 2, 5, C), k = input(1, 2, 7, C), v = input(1, 2, 7, C), out = output(2, 5, C);
    Tensor dq = output(2, 5, C), dk = output(2, 7, C), dv = output(2, 7, C), dout = input(1, 2, 5, C);
    Tensor lse = f32_output(2, 2, 5), part = f32_input(1, 2, 5, C), part_lse = f32_input(1, 2, 2, 5);
    arena_upload();
    for (int n = 0; (chosen = attention_list[n]); n++) {
        chosen_spec = small;
        if (chosen->refuse(&small)) continue;
        expect_refusals((Call){ "attention", call_forward, 5, 0, .t = { out, lse, q, k, v } });
        expect_refusals((Call){ "attention", call_backward, 9, 0, .t = { dq, dk, dv, dout, out, lse, q, k, v } });
        static const int bad_sizes[][2] = { {5, 6}, {5, 8}, {4, 7}, {0, 7}, {5, 0} };
        for (int i = 0; i < COUNT(bad_sizes); i++) {
            chosen_spec.Tq = bad_sizes[i][0];
            chosen_spec.Tk = bad_sizes[i][1];
            EXPECT_FAILS("attention", call_forward((Tensor[]){ out, lse, q, k, v }));
        }
    }
    if (arena_dtype == F32)
        expect_refusals((Call){ "attention_merge", call_merge, 5, 0, .t = { out, lse, out, part, part_lse } });
}

TEST(cases_of_each) {
    for (int n = 0; attention_list[n]; n++) {
        printf("  %s %d: %d cases, %d more refused\n", attention_list[n]->name, n + 1, ran[n], refused[n]);
        EXPECT(ran[n] || !on_cpu, "%s refuses all", attention_list[n]->name);
    }
}

int main(void) {
    arena_open();
    on_cpu = strcmp(backend_name, "cpu") == 0;
    return test_all();
}
