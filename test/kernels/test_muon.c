/* The ops of kernels/muon.h against the oracle on the same inputs widened to double. arena.h derives the bounds; in
   bf16 the oracle rounds where the op does. */
#include "../../kernels/muon.h"
#include "arena.h"

/* A singular value s becomes 3.4445^5 s at most: so far is an error of x amplified, and of x x^T. */
#define AMPLIFICATION 485.0

/* ---- Newton-Schulz */

enum { RANDOM, RANK_2, ZERO, TINY, LARGE, KINDS };
static const char *const kind_names[KINDS] = { "random", "of rank 2", "zero", "of 1e-9", "of 1e15" };

/* Of rank 2: sums of products of small integers, which bf16 has exactly. */
static void fill_matrix(Tensor x, int kind) {
    int u[2][1024], v[2][1024];
    for (int i = 0; i < 1024; i++)
        for (int k = 0; k < 2; k++) {
            u[k][i] = uniform_int(-8, 8);
            v[k][i] = uniform_int(-8, 8);
        }
    for (int64_t i = 0; i < tensor_count(x); i++) {
        const int64_t r = i / x.dim[1], c = i % x.dim[1];
        const double size[] = { [RANDOM] = 1, [ZERO] = 0, [TINY] = 1e-9, [LARGE] = 1e15 };
        set(x, i, kind == RANK_2 ? u[0][r] * v[0][c] + u[1][r] * v[1][c] : size[kind] * uniform());
    }
}

/* Gaps between the matrices of a batch are never written. */
static void orthogonalize(void) {
    static const struct { int rows, columns, count, gap; } shapes[] = {
        {64, 64, 1, 0}, {192, 64, 3, 0}, {64, 192, 2, 64}, {8, 8, 5, 72}, {8, 1024, 1, 0}, {1024, 8, 2, 8},
        {128, 512, 2, 512}, {256, 56, 3, 1000}, {1, 1, 3, 2}, {1, 7, 1, 0},
        {7, 1, 1, 0}, {33, 65, 2, 3}, {65, 33, 2, 0},
    };
    for (int i = 0; i < COUNT(shapes) * KINDS; i++) {
        const int kind = i % KINDS, rows = shapes[i / KINDS].rows, columns = shapes[i / KINDS].columns;
        const int count = shapes[i / KINDS].count, stride = rows * columns + shapes[i / KINDS].gap;
        if (refuses_rows(rows) || refuses_rows(columns)) continue;
        arena_begin("muon", "%d of (%d,%d), %s", count, rows, columns, kind_names[kind]);
        const Tensor all = place(arena_dtype, KEPT, 0, DIMS(count * stride));
        Tensor x[5];
        for (int m = 0; m < count; m++) {
            x[m] = tensor_of(tensor_column_range(all, m * stride, rows * columns).data, arena_dtype, 2, (int64_t)rows,
                             (int64_t)columns);
            mark(x[m], WRITTEN);
            fill_matrix(x[m], (kind + (m == 3)) % KINDS);
        }
        const Tensor work = scratch((int64_t)muon_scratch_bytes(rows, columns, count) / 4);
        EACH_RUN muon_orthogonalize(x[0], count, stride, work.data);
        for (int m = 0; m < count; m++) {
            double *want = given(x[m]), *kept = given(x[m]);
            oracle_newton_schulz(want, rows, columns);
            oracle_stores = 1;
            oracle_newton_schulz(kept, rows, columns);
            oracle_stores = 0;
            compare_within("newton-schulz", x[m], want, (Bound){ .roundings = 5 * (rows + columns + 2),
                           .condition = 2 * AMPLIFICATION, .kept = kept });
        }
    }
}

/* The closed form: of singular values s, U p(p(p(p(p(s/|s|))))) V^T with p(s) = 3.4445 s - 4.7750 s^3 + 2.0315 s^5. An
   element of x is off by half a step, of bf16 2^-9 of it; so is what is off the diagonal, once it is amplified. */
static void singular_values(void) {
    static const int shapes[][2] = { {64, 64}, {256, 64}, {64, 256}, {8, 8}, {40, 24}, {24, 200}, {1, 1}, {5, 3} };
    for (int i = 0; i < COUNT(shapes); i++) {
        const int rows = shapes[i][0], columns = shapes[i][1], S = rows < columns ? rows : columns;
        if (refuses_rows(rows) || refuses_rows(columns)) continue;
        arena_begin("muon", "singular values of (%d,%d)", rows, columns);
        const Tensor x = base(1, rows, columns);
        const Tensor work = scratch((int64_t)muon_scratch_bytes(rows, columns, 1) / 4);
        double *want = doubles(rows * columns), *u = doubles(rows), *v = doubles(columns), norm = 0;
        for (int k = 0; k < rows; k++) u[k] = uniform();
        for (int k = 0; k < columns; k++) v[k] = uniform();
        for (int k = 0; k < rows * columns; k++) want[k] = 0;
        for (int k = 0; k < S; k++) norm = hypot(norm, want[k * columns + k] = pow(8, -(double)k / S));
        oracle_reflect(want, u, v, rows, columns);
        for (int k = 0; k < rows * columns; k++) set(x, k, want[k]);
        oracle_reflect(want, u, v, rows, columns);
        EACH_RUN muon_orthogonalize(x, 1, rows * columns, work.data);
        double *got = result(x), error = 0;
        oracle_reflect(got, u, v, rows, columns);
        for (int k = 0; k < rows * columns; k++) {
            double s = want[k] / norm;
            for (int iteration = 0; iteration < 5; iteration++) s *= 3.4445 - 4.7750 * s * s + 2.0315 * s * s * s * s;
            if (!(fabs(got[k] - s) <= error)) error = fabs(got[k] - s);
            if (k / columns == k % columns) EXPECT(got[k] > 0.6 && got[k] < 1.25, "%s: %g", arena_case, got[k]);
        }
        const double step = arena_dtype == BF16 ? 0x1p-9 : 0x1p-24;
        const double bound = 4 * AMPLIFICATION * step / sqrt(S) + 4 * step;
        EXPECT(error <= bound, "%s: off by %g, bound %g", arena_case, error, bound);
    }
}

/* ---- Momentum and update */

enum { ROW_COUNT = 8, GAP = 64 };
static const int row_lengths[ROW_COUNT] = {4, 64, 8, 1000, 68, 12, 70004, 9000};

typedef struct { Tensor param, param_bf16, update, m, v, grad, rows, stats; } Step;

/* Odd rows are Muon's, in which v has no elements. Rows are aligned to 256 bytes, gaps are poison. */
static Step step_begin(float clip, int apply) {
    Step s = { .rows = integers(0, 0, ROW_COUNT * (int)sizeof(UpdateRow) / 4) };
    const StepStats stats = { .learning_rate = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-3f, .weight_decay = 0.5f,
                              .correction1 = 0.1f, .correction2 = 0.05f, .clip = clip, .apply = apply };
    int64_t size = 0, v_size = 0;
    UpdateRow *row = arena_host(s.rows);
    for (int i = 0; i < ROW_COUNT; i++) {
        row[i] = (UpdateRow){ .first = size, .count = row_lengths[i], .v_shift = size - v_size, .decay = i % 4 < 2,
                              .scale = i % 2 ? 0.25f * (float)i : 0 };
        size += (row_lengths[i] + GAP - 1) / GAP * GAP;
        if (i % 2 == 0) v_size += row_lengths[i];
    }
    s.stats = place(I32, KEPT, 0, DIMS((int)sizeof stats / 4));
    memcpy(arena_host(s.stats), &stats, sizeof stats);
    s.param = f32_input(1, size);
    s.m = f32_input(1, size);
    s.grad = f32_input(1, size);
    s.v = fill(place(F32, KEPT, 0, DIMS(v_size)), 1, 0.5);
    s.update = input(1, size);
    s.param_bf16 = device_refuse_dtype(BF16) ? ABSENT : place(BF16, KEPT, 0, DIMS(size));
    return s;
}

static Tensor row_of(Tensor flat, const UpdateRow *row) { return tensor_column_range(flat, row->first, row->count); }

/* Every op changes its own rows and nothing else; none changes anything without apply. */
static void update(void) {
    for (int i = 0; i < 9; i++) {
        const int op = i % 3, apply = i / 3 < 2;
        arena_begin("muon", "%s, clip %g, apply %d", (const char *[]){"momentum", "apply", "adamw"}[op],
                    i / 3 ? 0.25 : 1, apply);
        Step s = step_begin(i / 3 ? 0.25f : 1, apply);
        const UpdateRow *rows = arena_host(s.rows);
        const StepStats *stats = arena_host(s.stats);
        for (int k = op < 2; k < ROW_COUNT && apply; k += 2) {
            if (op != 1) mark(row_of(s.m, &rows[k]), WRITTEN);
            if (op == 0) mark(row_of(s.update, &rows[k]), WRITTEN);
            if (op > 0)  mark(row_of(s.param, &rows[k]), WRITTEN);
            if (op > 0 && s.param_bf16.data) mark(row_of(s.param_bf16, &rows[k]), WRITTEN);
            if (op == 2) mark(tensor_column_range(s.v, rows[k].first - rows[k].v_shift, rows[k].count), WRITTEN);
        }
        EACH_RUN {
            if (op == 0) muon_momentum(s.update, s.m, s.grad, s.rows.data, ROW_COUNT, s.stats.data);
            if (op == 1) muon_apply(s.param, s.param_bf16, s.update, s.rows.data, ROW_COUNT, s.stats.data);
            if (op == 2) adamw_update(s.param, s.param_bf16, s.m, s.v, s.grad, s.rows.data, ROW_COUNT, s.stats.data);
        }
        for (int k = op < 2; k < ROW_COUNT && apply; k += 2) {
            const Tensor v = tensor_column_range(s.v, rows[k].first - rows[k].v_shift, op == 2 ? rows[k].count : 0);
            double *param = given(row_of(s.param, &rows[k])), *m = given(row_of(s.m, &rows[k])), *v_want = given(v);
            double *grad = given(row_of(s.grad, &rows[k])), *direction = given(row_of(s.update, &rows[k]));
            if (op == 0) oracle_muon_momentum(direction, m, grad, rows[k].count, stats);
            if (op == 1) oracle_muon_apply(param, direction, rows[k].count, rows[k].scale, rows[k].decay, stats);
            if (op == 2) oracle_adamw(param, m, v_want, grad, rows[k].count, rows[k].decay, stats);
            compare_within("update", row_of(s.update, &rows[k]), direction, (Bound){ .roundings = 5, .floor = 1 });
            compare_within("m", row_of(s.m, &rows[k]), m, (Bound){ .roundings = 5, .floor = 1 });
            if (op == 2) compare_within("v", v, v_want, (Bound){ .roundings = 6 });
            compare_within("param", row_of(s.param, &rows[k]), param, (Bound){ .roundings = 14, .floor = 1 });
            for (int64_t at = rows[k].first; at < rows[k].first + rows[k].count && op && s.param_bf16.data; at++)
                EXPECT(element(s.param_bf16, arena_after, at) == round_bf16(element(s.param, arena_after, at)),
                       "%s: element %lld of the copy is not the rounded parameter", arena_case, (long long)at);
        }
    }
}

/* ---- Refusals */

static Step step;
static void call_momentum(Tensor *t) { muon_momentum(t[0], t[1], t[2], step.rows.data, ROW_COUNT, step.stats.data); }
static void call_apply(Tensor *t) { muon_apply(t[0], ABSENT, t[1], step.rows.data, ROW_COUNT, step.stats.data); }
static void call_orthogonalize(void *argument) {
    const int *wrong = argument;
    Tensor x = tensor_of(step.update.data, arena_dtype, 2, INT64_C(16), INT64_C(8));
    if (*wrong == 2) x.pitch = 16;
    muon_orthogonalize(x, *wrong == 0 ? 0 : 2, *wrong == 1 ? 127 : 128, NULL);
}

static void refusals(void) {
    arena_begin("muon", "refusals");
    step = step_begin(1, 1);
    expect_refusals((Call){ "muon", call_momentum, 3, 0, { step.update, step.m, step.grad }, 0 });
    expect_refusals((Call){ "muon", call_apply, 2, 0, { step.param, step.update }, 0 });
    for (int wrong = 0; wrong < 3; wrong++) expect_fails("muon", call_orthogonalize, &wrong);
}

int main(void) {
    arena_open();
    arena_dtype = muon_dtype;
    RUN(orthogonalize);
    RUN(singular_values);
    RUN(update);
    RUN(refusals);
    arena_close();
    return test_close();
}
