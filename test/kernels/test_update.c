/* The ops of kernels/update.h against the oracle on the same inputs widened to double: the end of a training step,
   conversions, statistics. arena.h holds the operands and derives the bounds. */
#include "arena.h"

/* ---- The end of a step */

enum { ROW_COUNT = 7, GAP = 64 };
static const int row_lengths[ROW_COUNT] = {4, 64, 8, 1000, 68, 12, 70004};

typedef struct { Tensor param, param_bf16, m, v, grad, rows, stats, losses; int64_t size; } Step;

/* Rows aligned to 256 bytes; the gaps of grad are zero, those of the others poison: never read or written. v has the
   rows one after the other. */
static Step step_begin(StepStats stats) {
    Step s = { .rows = integers(0, 0, ROW_COUNT * (int)sizeof(UpdateRow) / 4) };
    s.losses = fill(f32_input(0, 5, 13), 4, 1);
    UpdateRow *row = arena_host(s.rows);
    int64_t v_size = 0;
    for (int i = 0; i < ROW_COUNT; v_size += row_lengths[i++]) {
        row[i] = (UpdateRow){ .first = s.size, .count = row_lengths[i], .decay = i % 2, .v_shift = s.size - v_size };
        s.size += (row_lengths[i] + GAP - 1) / GAP * GAP + (i == 2 ? GAP : 0);
    }
    s.stats = place(I32, WRITTEN, 0, DIMS((int)sizeof stats / 4));
    memcpy(arena_host(s.stats), &stats, sizeof stats);
    mark(tensor_of(s.stats.data, I32, 1, (int)offsetof(StepStats, loss) / 4), KEPT);
    s.grad = f32_input(0, s.size);
    s.param = place(F32, KEPT, 0, DIMS(s.size));
    s.m = place(F32, KEPT, 0, DIMS(s.size));
    s.v = fill(place(F32, KEPT, 0, DIMS(v_size)), 1, 0.5);
    s.param_bf16 = device_refuse_dtype(BF16) ? ABSENT : place(BF16, KEPT, 0, DIMS(s.size));
    for (int i = 0; i < ROW_COUNT; i++)
        for (int64_t k = row[i].first; k < row[i].first + row[i].count; k++) {
            set(s.grad, k, uniform());
            set(s.param, k, uniform());
            set(s.m, k, uniform());
        }
    return s;
}

static void step_run(const Step *s) {
    StepStats *stats = s->stats.data;
    loss_add(stats, s->losses, 0.25f);
    Tensor head = tensor_column_range(s->grad, 0, GAP), rest = tensor_column_range(s->grad, GAP, s->size - GAP);
    gradient_square_sum(stats, head);      /* ranges add up */
    gradient_square_sum(stats, rest);
    update_decide(stats);
    adamw_update(s->param, s->param_bf16, s->m, s->v, s->grad, s->rows.data, ROW_COUNT, stats);
}

static StepStats step_stats(const Step *s) {
    StepStats stats;
    memcpy(&stats, arena_after + ((char *)s->stats.data - arena_device) / 2, sizeof stats);
    return stats;
}

/* Inputs of step 1, without limits on loss and norm. apply is neither 0 nor 1. */
static StepStats first_step(float max_norm) {
    return (StepStats){ .learning_rate = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-3f, .correction1 = 0.1f,
                        .correction2 = 0.05f, .max_norm = max_norm, .loss_limit = INFINITY, .norm_limit = INFINITY,
                        .norm = NAN, .clip = NAN, .apply = -1 };
}

static Tensor row_of(Tensor flat, const UpdateRow *row) {
    return tensor_of((char *)flat.data + (size_t)row->first * dtype_bytes(flat.dtype), flat.dtype, 1, row->count);
}

/* The rows are outputs or are not, the gaps never are. */
static void mark_rows(const Step *s, int kind) {
    UpdateRow *row = arena_host(s->rows);
    Tensor changed[] = { s->param, s->m, s->param_bf16 };
    mark(s->v, kind);
    for (int k = 0; k < (s->param_bf16.data ? 3 : 2) * ROW_COUNT; k++)
        mark(row_of(changed[k / ROW_COUNT], &row[k % ROW_COUNT]), kind);
}

/* max_norm against a norm of about 60: never, not reached, reached; step 1 and step 1000. */
TEST(update) {
    static const struct { float max_norm, correction1, correction2; } cases[] = {
        {0, 0.1f, 0.05f}, {1000, 0.1f, 0.05f}, {1, 0.1f, 0.05f}, {0.5f, 1, 0.999f},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        arena_begin("update", "max_norm %g, correction %g", cases[i].max_norm, cases[i].correction1);
        StepStats begin = first_step(cases[i].max_norm);
        begin.weight_decay = 0.5f;
        begin.correction1 = cases[i].correction1;
        begin.correction2 = cases[i].correction2;
        begin.loss = 0.5;
        Step s = step_begin(begin);
        UpdateRow *row = arena_host(s.rows);
        mark_rows(&s, WRITTEN);
        EACH_RUN step_run(&s);

        StepStats got = step_stats(&s), want = got;
        double *losses = given(s.losses), loss = 0.5, norm = oracle_norm(given(s.grad), s.size);
        for (int k = 0; k < tensor_count(s.losses); k++) loss += 0.25 * losses[k];
        want.clip = (float)oracle_clip(norm, cases[i].max_norm);
        const double close = 4 * 0x1p-24;      /* loss and norm are double, and so are their sums */
        EXPECT(fabs(got.loss - loss) <= close * loss, "loss %.9g, want %.9g", got.loss, loss);
        EXPECT(fabs(got.norm - norm) <= close * norm, "norm %.9g, want %.9g", got.norm, norm);
        EXPECT(fabs(got.clip - want.clip) <= close * want.clip, "clip %.9g, want %.9g", got.clip, want.clip);
        EXPECT(got.apply == 1, "apply is %d", got.apply);

        want.clip = got.clip;
        double *param = given(s.param), *m = given(s.m), *v = given(s.v), *grad = given(s.grad);
        for (int k = 0; k < ROW_COUNT; k++) {
            int64_t first = row[k].first, n = row[k].count, v_first = first - row[k].v_shift;
            oracle_adamw(param + first, m + first, v + v_first, grad + first, n, row[k].decay, &want);
            compare_within("param", row_of(s.param, &row[k]), param + first, (Bound){ .roundings = 14, .floor = 1 });
            compare_within("m", row_of(s.m, &row[k]), m + first, (Bound){ .roundings = 5, .floor = 1 });
            compare_within("v", tensor_column_range(s.v, v_first, n), v + v_first, (Bound){ .roundings = 6 });
            int64_t wrong = 0;
            for (int64_t at = first; at < first + n && s.param_bf16.data; at++)
                wrong += element(s.param_bf16, arena_after, at) != round_bf16(element(s.param, arena_after, at));
            EXPECT(!wrong, "%lld of %lld elements of the copy are not the rounded parameters", (long long)wrong,
                   (long long)n);
        }
    }
}

/* Up to a limit an update is applied, one bit beyond it nothing is, nor after a loss that is not finite: param, copy, m
   and v keep every bit then. Gradients that are not finite have such a norm: norms. The norm before clipping counts. */
TEST(update_keeps_within_limits) {
    enum { OFF, AT, BELOW, FAR };
    static const struct { int loss, norm; float bad_loss; int apply; } cases[] = {
        {OFF, OFF, 0, 1}, {AT, AT, 0, 1}, {AT, OFF, 0, 1}, {OFF, AT, 0, 1}, {BELOW, OFF, 0, 0}, {OFF, BELOW, 0, 0},
        {BELOW, BELOW, 0, 0}, {FAR, FAR, 0, 0}, {AT, BELOW, 0, 0}, {AT, AT, NAN, 0}, {OFF, OFF, INFINITY, 0},
        {OFF, OFF, -INFINITY, 0},
    };
    arena_begin("update", "limits");
    Step s = step_begin((StepStats){0});
    UpdateRow row = ((UpdateRow *)arena_host(s.rows))[ROW_COUNT - 1];
    double found_loss = 0, found_norm = 0;          /* results of the first case, to the bit */
    for (int i = 0; i < COUNT(cases); i++) {
        double loss_limits[] = { INFINITY, found_loss, nextafter(found_loss, 0), 0.01 };
        double norm_limits[] = { INFINITY, found_norm, nextafter(found_norm, 0), 1.5 };
        StepStats *begin = arena_host(s.stats);
        *begin = first_step(1);
        begin->loss_limit = loss_limits[cases[i].loss];
        begin->norm_limit = norm_limits[cases[i].norm];
        if (cases[i].bad_loss != 0) set(s.losses, 7, cases[i].bad_loss);
        mark_rows(&s, cases[i].apply ? WRITTEN : KEPT);
        EACH_RUN step_run(&s);
        StepStats got = step_stats(&s);
        EXPECT(got.apply == cases[i].apply, "case %d: loss %.17g, limit %.17g, norm %.17g, limit %.17g: apply is %d", i,
               got.loss, got.loss_limit, got.norm, got.norm_limit, got.apply);
        if (i == 0) {
            found_loss = got.loss;
            found_norm = got.norm;
        }
        EXPECT(cases[i].bad_loss != 0 || (got.loss == found_loss && got.norm == found_norm), "case %d: other numbers",
               i);
        int64_t moved = 0;
        for (int64_t k = row.first; k < row.first + row.count; k++)
            moved += element(s.param, arena_after, k) != element(s.param, arena_before, k);
        EXPECT((moved > 0) == cases[i].apply, "case %d: %lld parameters have moved", i, (long long)moved);
    }
}

/* What may be applied also has a square that f32 holds: that of the clipped norm is below 3.4e38. The last case has
   more gradients than are added in one go, some of them 2, and a sum of squares that is exact. */
TEST(norms) {
    static const struct { float value, max_norm; int apply, count, twos; } cases[] = {
        {0, 1, 1, 1024, 0}, {1e-25f, 1, 1, 1024, 0}, {1e25f, 1, 1, 1024, 0}, {1e17f, 0, 1, 1024, 0},
        {1e18f, 0, 0, 1024, 0}, {1e25f, 0, 0, 1024, 0}, {1e25f, 1e20f, 0, 1024, 0},
        {NAN, 1, 0, 1024, 0}, {INFINITY, 0, 0, 1024, 0}, {-INFINITY, 1, 0, 1024, 0},
        {1, 0, 1, 65 * 65536 + 8, 65536 + 8},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        const int ones = cases[i].count - cases[i].twos;
        arena_begin("norm", "%d gradients of %g, max_norm %g", cases[i].count, cases[i].value, cases[i].max_norm);
        Tensor grad = fill(f32_input(0, cases[i].count), cases[i].value, 0);
        for (int k = ones; k < cases[i].count; k++) set(grad, k, 2);
        Step s = { .stats = place(I32, WRITTEN, 0, DIMS((int)sizeof(StepStats) / 4)) };
        *(StepStats *)arena_host(s.stats) = first_step(cases[i].max_norm);
        EACH_RUN {
            gradient_square_sum(s.stats.data, grad);
            update_decide(s.stats.data);
        }
        StepStats got = step_stats(&s);
        double norm = sqrt(ones * pow(cases[i].value, 2) + 4.0 * cases[i].twos);
        double clip = oracle_clip(norm, cases[i].max_norm);
        const double close = cases[i].twos ? 0 : 1e-5 * norm;
        EXPECT(isnan(norm) ? isnan(got.norm) : got.norm == norm || fabs(got.norm - norm) <= close,
               "%s: norm is %.17g, want %.17g", arena_case, got.norm, norm);
        EXPECT(got.apply == cases[i].apply, "%s: apply is %d", arena_case, got.apply);
        EXPECT(fabs(got.clip - clip) <= 1e-5 * clip, "%s: clip is %g, want %g", arena_case, got.clip, clip);
    }
}

/* Rows with a pitch, of any of the types: written, added in place to f32 or bf16, or a sum; what lies between the rows
   stays. Counts around and far above a pack of 16 bytes. In the first row ties to even, both sides of a tie, denormals,
   overflow. */
TEST(rows_are_converted_and_added) {
    static const uint32_t bits[] = {
        0, 0x80000000, 0x3f800000, 0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff, 0xbf818000, 0x7f7f7fff, 0x7f7f8000,
        0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff, 0x7fff8000, 1, 0x8000, 0x8001, 0x18000,
        0x007fffff, 0x807f8000, 0x00800000, 0x00408000,
    };
    static const struct { int rows, columns, to_pitch, from_pitch; } shapes[] = {
        {1, 1, 1, 1}, {3, 8, 8, 24}, {5, 16, 48, 16}, {7, 13, 13, 13}, {129, 40, 120, 80}, {33, 1000, 1000, 1008},
        {2, 9, 16, 32}, {300, 64, 192, 128}, {17, 59, 61, 60}, {1, 7, 7, 7}, {1, 8, 8, 8}, {1, 1003, 1003, 1003},
        {1, 4096, 4096, 4096}, {1, 100003, 100003, 100003},
    };
    static const DType types[][2] = { {F32, F32}, {F32, BF16}, {BF16, F32}, {BF16, BF16} };
    for (int i = 0; i < COUNT(shapes) * COUNT(types) * 3; i++) {
        const DType *type = types[i / 3 % 4];
        const int adds = i % 3, shape = i / 12, rows = shapes[shape].rows, columns = shapes[shape].columns;
        const DType sums = type[0] == BF16 && type[1] == BF16 && shape % 2 ? BF16 : F32;
        if (device_refuse_dtype(type[0]) || device_refuse_dtype(type[1]) || (adds == 2 && type[1] != sums)) continue;
        arena_begin("rows", "(%d,%d) %s %s %s", rows, columns, dtype_name(type[0]),
                    adds == 2 ? "added in place to" : adds ? "and a sum to" : "to", dtype_name(type[1]));
        Tensor from = fill(place(type[0], KEPT, shapes[shape].from_pitch, DIMS(rows, columns)), 0, 1);
        Tensor to = place(type[1], WRITTEN, shapes[shape].to_pitch, DIMS(rows, columns));
        Tensor sum = adds < 2 ? place(sums, KEPT, shapes[shape].from_pitch, DIMS(rows, columns)) : to;
        for (int k = 0; k < columns && k < COUNT(bits); k++) {
            if (type[0] == F32) ((uint32_t *)arena_host(from))[columns - 1 - k] = bits[k];
            else                ((uint16_t *)arena_host(from))[columns - 1 - k] = (uint16_t)(bits[k] >> 16 | bits[k]);
        }
        fill(sum, 0, 1);
        EACH_RUN { if (adds) tensor_add(to, sum, from); else tensor_convert(to, from); }
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++) {
                double x = get(from, r * from.pitch + c);
                if (adds) x += get(sum, r * sum.pitch + c);
                const double want = type[1] == BF16 ? round_bf16((double)(float)x) : (double)(float)x;
                const double got = element(to, arena_after, r * to.pitch + c);
                EXPECT(isnan(want) ? isnan(got) : got == want && signbit(got) == signbit(want),
                       "%s: (%d,%d) is %a, want %a", arena_case, r, c, got, want);
            }
    }
}

/* The step of bf16 is 2^-7 from 1 to 2. */
TEST(roundings_of_the_oracle) {
    static const struct { double x, shift, want; } cases[] = {
        { 1 + 0x1.1p-8, 0, 1 + 0x1p-7 }, { 1 + 0x1p-8, 0, 1 }, { 1 + 0x1p-8, 0.25, 1 + 0x1.8p-8 }, { 0, 0.25, 0 },
    };
    for (int i = 0; i < COUNT(cases); i++)
        EXPECT(round_bf16_shifted(cases[i].x, cases[i].shift) == cases[i].want &&
               (cases[i].shift != 0 || round_bf16(cases[i].x) == cases[i].want), "case %d", i);
    for (int i = 0; i < 10000; i++) {
        const double x = ldexp(2 + uniform(), uniform_int(-20, 20)), shift = uniform() / 2;
        const double half = ldexp(1, ilogb(x) - 8), error = fabs(round_bf16_shifted(-x, shift) + x);
        EXPECT(round_bf16_shifted(x, 0) == round_bf16(x) && error <= (1 + 1e-9) * half, "%g, shift %g", x, shift);
    }
}

TEST_EACH_DTYPE(statistics) {
    for (int variant = 0; variant < 4; variant++) {
        const int nonfinite = variant % 2, pitch = variant / 2 ? 64 : 59;
        arena_begin("statistics", "1003 numbers, a row every %d", pitch);
        Tensor t = fill(place(arena_dtype, KEPT, pitch, DIMS(17, 59)), 0, 1);
        TensorStats got = {0}, want = { .min = INFINITY, .max = -INFINITY };
        static const struct { int index; double value; } bad[] = {
            {3, NAN}, {1002, NAN}, {0, INFINITY}, {500, -INFINITY}, {501, -INFINITY}, {502, -INFINITY}, {77, -1e30}
        };
        for (int i = 0; i < COUNT(bad) && nonfinite; i++)
            set(t, bad[i].index / 59 * pitch + bad[i].index % 59, bad[i].value);
        for (int i = 0; i < 1003; i++) {
            double a = get(t, i / 59 * pitch + i % 59);
            want.nan_count += isnan(a) != 0;
            want.inf_count += isinf(a) != 0;
            if (isfinite(a)) { want.min = fmin(want.min, a); want.max = fmax(want.max, a); }
        }
        EACH_RUN got = tensor_stats(t);
        EXPECT(got.nan_count == want.nan_count && got.inf_count == want.inf_count && got.min == want.min
               && got.max == want.max, "%lld NaN, %lld infinite, %g .. %g; want %lld, %lld, %g .. %g",
               (long long)got.nan_count, (long long)got.inf_count, got.min, got.max,
               (long long)want.nan_count, (long long)want.inf_count, want.min, want.max);
    }
}

int main(void) {
    arena_open();
    return test_all();
}
