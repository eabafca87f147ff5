/* muon_update against the oracle on the same inputs widened to double. arena.h derives the bounds; on a GPU, which
   computes Newton-Schulz in bf16, the oracle rounds where the op does. */
#include "../../kernels/muon.h"
#include "arena.h"

/* A singular value s becomes 3.4445^5 s at most: so far is an error of x amplified, and of x x^T. */
#define AMPLIFICATION 485.0

enum { RANDOM, RANK_2, ZERO, TINY, LARGE, KINDS };
static const struct { const char *name; double size; } kinds[KINDS] = {
    { "random", 1 }, { "of rank 2", 0 }, { "zero", 0 }, { "of 1e-9", 1e-9 }, { "of 1e15", 1e15 },
};

typedef struct { Tensor param, param_bf16, m, grad, work, stats; int rows, columns, count; double m_size; } Step;

static double value_of(int kind, int64_t r, int64_t c) {
    const double sum = (double)((r % 17 - 8) * (c % 13 - 6) + (r % 5 - 2) * (c % 7 - 3));
    return kind == RANK_2 ? sum : kinds[kind].size * uniform();
}

/* Gaps between the matrices are poison: never read or written. Decay, clip and rates: muon_is_the_formula
   (test_train_step); without apply nothing changes: test_optimizers.sh. */
static Step step_begin(int rows, int columns, int count, int gap, StepStats stats, int kind) {
    const int size = rows * columns, pitch = size + gap;
    Step s = { .rows = rows, .columns = columns, .count = count, .m_size = kind == RANDOM };
    s.param = fill(place(F32, WRITTEN, pitch, DIMS(count, size)), 0, 0);
    s.param_bf16 = device_refuse_dtype(BF16) ? ABSENT : place(BF16, WRITTEN, size + 2 * gap, DIMS(count, size));
    s.m = place(F32, WRITTEN, size + 8, DIMS(count, size));
    s.grad = place(F32, KEPT, pitch, DIMS(count, size));
    s.work = scratch((int64_t)muon_scratch_bytes(rows, columns, count) / 4);
    s.stats = place(I32, KEPT, 0, DIMS((int)sizeof stats / 4));
    memcpy(arena_host(s.stats), &stats, sizeof stats);
    fill(s.m, 0, s.m_size);
    for (int64_t k = 0; k < count; k++)
        for (int64_t i = 0; i < size; i++)
            set(s.grad, k * pitch + i, value_of((kind + (k == 3)) % KINDS, i / columns, i % columns));
    return s;
}

static void step_run(const Step *s) {
    muon_update(s->param, s->param_bf16, s->m, s->grad, s->rows, s->work.data, s->stats.data);
}

static void step_compare(const Step *s) {
    const StepStats *stats = arena_host(s->stats);
    for (int k = 0; k < s->count; k++) {
        const Tensor param = tensor_row_range(s->param, k, 1), m = tensor_row_range(s->m, k, 1);
        double *want = given(param), *kept = given(param), *want_m = given(m), *kept_m = given(m);
        double *grad = given(tensor_row_range(s->grad, k, 1));
        oracle_muon(want, want_m, grad, s->rows, s->columns, stats);
        oracle_stores = 1;
        oracle_muon(kept, kept_m, grad, s->rows, s->columns, stats);
        oracle_stores = 0;
        compare_within("m", m, want_m, (Bound){ .roundings = 5, .floor = s->m_size });      /* its terms can cancel */
        compare_within("param", param, want, (Bound){ .roundings = 5 * (s->rows + s->columns + 2),
                       .condition = 2 * AMPLIFICATION, .kept = kept });
        for (int64_t i = 0; i < tensor_count(param) && s->param_bf16.data; i++)
            EXPECT(element(tensor_row_range(s->param_bf16, k, 1), arena_after, i) ==
                   round_bf16(element(param, arena_after, i)), "%s: element %lld of the copy is not the rounded "
                   "parameter", arena_case, (long long)i);
    }
}

/* With which param = 0 becomes x, the orthogonalised matrix. */
static StepStats stats_of_x(int rows, int columns) {
    return (StepStats){ .learning_rate = -1 / (0.2f * sqrtf((float)fmax(rows, columns))), .weight_decay = 0.5f,
                        .clip = 1, .apply = 1 };
}

TEST(orthogonalize) {
    static const struct { int rows, columns, count, gap; } shapes[] = {
        {64, 64, 1, 0}, {192, 64, 3, 0}, {64, 192, 2, 64}, {8, 8, 5, 72}, {8, 1024, 1, 0}, {1024, 8, 2, 8},
        {128, 512, 2, 512}, {256, 56, 3, 1000}, {1, 1, 3, 2}, {1, 7, 1, 0},
        {7, 1, 1, 0}, {33, 65, 2, 3}, {65, 33, 2, 0},
    };
    for (int i = 0; i < COUNT(shapes) * KINDS; i++) {
        const int kind = i % KINDS, rows = shapes[i / KINDS].rows, columns = shapes[i / KINDS].columns;
        if (refuses_rows(rows) || refuses_rows(columns)) continue;
        arena_begin("muon", "%d of (%d,%d), %s", shapes[i / KINDS].count, rows, columns, kinds[kind].name);
        const Step s = step_begin(rows, columns, shapes[i / KINDS].count, shapes[i / KINDS].gap,
                                  stats_of_x(rows, columns), kind);
        EACH_RUN step_run(&s);
        step_compare(&s);
    }
}

/* The closed form: of singular values s, U p(p(p(p(p(s/|s|))))) V^T with p(s) = 3.4445 s - 4.7750 s^3 + 2.0315 s^5. An
   element of x is off by half a step, of bf16 2^-9 of it; so is what is off the diagonal, once it is amplified. */
TEST(singular_values) {
    static const int shapes[][2] = { {64, 64}, {256, 64}, {64, 256}, {8, 8}, {40, 24}, {24, 200}, {1, 1}, {5, 3} };
    for (int i = 0; i < COUNT(shapes); i++) {
        const int rows = shapes[i][0], columns = shapes[i][1], S = rows < columns ? rows : columns;
        if (refuses_rows(rows) || refuses_rows(columns)) continue;
        arena_begin("muon", "singular values of (%d,%d)", rows, columns);
        const Step s = step_begin(rows, columns, 1, 0, stats_of_x(rows, columns), ZERO);
        const double *u = given(f32_input(1, rows)), *v = given(f32_input(1, columns));
        double *want = given(s.grad), norm = 0;
        for (int k = 0; k < S; k++) norm = hypot(norm, want[k * columns + k] = pow(8, -(double)k / S));
        oracle_reflect(want, u, v, rows, columns);
        for (int k = 0; k < rows * columns; k++) set(s.grad, k, want[k]);
        oracle_reflect(want, u, v, rows, columns);
        EACH_RUN step_run(&s);
        double *got = result(s.param), error = 0;
        oracle_reflect(got, u, v, rows, columns);
        for (int k = 0; k < rows * columns; k++) {
            double value = want[k] / norm;
            for (int n = 0; n < 5; n++) value *= 3.4445 - 4.7750 * value * value + 2.0315 * pow(value, 4);
            if (!(fabs(got[k] - value) <= error) && !isnan(error)) error = fabs(got[k] - value);
            if (k / columns == k % columns) EXPECT(got[k] > 0.6 && got[k] < 1.25, "%s: %g", arena_case, got[k]);
        }
        const double step = arena_dtype == BF16 ? 0x1p-9 : 0x1p-24;
        const double bound = 4 * AMPLIFICATION * step / sqrt(S) + 4 * step;
        EXPECT(error <= bound, "%s: off by %g, bound %g", arena_case, error, bound);
    }
}

static Step step;
static void call_update(Tensor *t) {
    muon_update(t[0], ABSENT, t[1], t[2], step.rows, step.work.data, step.stats.data);
}

TEST(refusals) {
    arena_begin("muon", "refusals");
    step = step_begin(16, 8, 2, 0, (StepStats){0}, RANDOM);
    expect_refusals((Call){ "muon", call_update, 3, 0, { step.param, step.m, step.grad }, 0 });
    step.rows = 0;
    EXPECT_FAILS("muon", step_run(&step));
    step.rows = 3;
    EXPECT_FAILS("muon", step_run(&step));
}

int main(void) {
    arena_open();
    arena_dtype = device_refuse_dtype(BF16) ? F32 : BF16;
    return test_all();
}
