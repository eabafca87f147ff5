/* Every op of the linked backend, attention aside, against the oracle on the same f32 inputs widened to double.
   arena.h holds the operands and derives the bounds. */
#include "../kernels/embedding.h"
#include "../kernels/gelu.h"
#include "../kernels/head.h"
#include "../kernels/layernorm.h"
#include "../kernels/matmul.h"
#include "../kernels/update.h"
#include "arena.h"

static const char *const into_name[] = { "=", "+=" };

/* ---- embedding */

static void embedding(void) {
    static const struct { int B, T, C, Vp, positions; } shapes[] = {
        {1, 1, 1, 1, 1}, {3, 7, 5, 9, 8}, {2, 63, 33, 50, 65}, {1, 65, 64, 257, 65}, {5, 64, 96, 7, 70},
    };
    for (int i = 0; i < 2 * COUNT(shapes); i++) {
        int B = shapes[i / 2].B, T = shapes[i / 2].T, C = shapes[i / 2].C, Vp = shapes[i / 2].Vp;
        int positions = shapes[i / 2].positions;
        Into into = i % 2 ? ACCUMULATE : OVERWRITE;
        arena_begin("embedding", "B=%d T=%d C=%d Vp=%d %d positions, dwpe%s", B, T, C, Vp, positions, into_name[into]);
        Tensor tokens = integers(0, Vp - 1, B, T), wte = input(1, Vp, C), wpe = input(1, positions, C);
        Tensor x = output(B, T, C), dx = input(1, B, T, C);
        Tensor dwte = base(1, Vp, C), dwpe = output_into(into, positions, C);
        EACH_RUN {
            embedding_forward(x, tokens, wte, wpe);
            embedding_backward(dwte, dwpe, dx, tokens, into);
        }
        double *want_x = doubles(B * T * C), *want_dwte = doubles(Vp * C), *want_dwpe = doubles(positions * C);
        oracle_embedding_forward(want_x, arena_host(tokens), given(wte), given(wpe), B, T, C);
        oracle_embedding_backward(want_dwte, want_dwpe, given(dx), arena_host(tokens), B, T, C, Vp, positions);
        compare("x", x, want_x, (Bound){ .roundings = 1 });
        compare("dwte", dwte, plus(want_dwte, dwte, ACCUMULATE), (Bound){ .roundings = B * T, .floor = 1 });
        compare("dwpe", dwpe, plus(want_dwpe, dwpe, into), (Bound){ .roundings = B, .floor = 1 });
    }
}

/* ---- layernorm */

/* offset: of all x, many times their spread; a variance computed as mean(x^2) - mean(x)^2 does not survive it. */
static void layernorm(void) {
    static const struct { int B, T, C; double offset; } shapes[] = {
        {1, 1, 1, 0}, {3, 7, 5, 0}, {1, 63, 64, 0}, {2, 65, 129, 0}, {1, 1, 1001, 0}, {3, 7, 40, 100},
        {1, 9, 768, -100},
    };
    enum { BRANCH = 1, IN_PLACE = 2, DX_ADD = 4, DW_ADD = 8 };
    static const int variants[] = { 0, BRANCH | DX_ADD, DW_ADD, BRANCH | IN_PLACE | DX_ADD | DW_ADD };
    for (int i = 0; i < COUNT(variants) * COUNT(shapes); i++) {
        int B = shapes[i / 4].B, T = shapes[i / 4].T, C = shapes[i / 4].C, rows = B * T, variant = variants[i % 4];
        Into dx_into = variant & DX_ADD ? ACCUMULATE : OVERWRITE, dw_into = variant & DW_ADD ? ACCUMULATE : OVERWRITE;
        double offset = shapes[i / 4].offset, n = C + 6;
        arena_begin("layernorm", "B=%d T=%d C=%d offset %g, variant %d", B, T, C, offset, variant);
        Tensor x = fill(place(F32, variant & IN_PLACE ? WRITTEN : KEPT, 0, DIMS(B, T, C)), offset, 1);
        Tensor branch = variant & BRANCH ? input(1, B, T, C) : ABSENT;
        Tensor sum = variant & IN_PLACE ? x : variant & BRANCH ? output(B, T, C) : ABSENT;
        Tensor weight = input(2, C), bias = input(1, C), normed = output(B, T, C);
        Tensor mean = output(B, T), rstd = output(B, T);
        double *want_sum = doubles(rows * C), *want_normed = doubles(rows * C);
        double *want_mean = doubles(rows), *want_rstd = doubles(rows);
        oracle_residual_layernorm_forward(want_sum, want_normed, want_mean, want_rstd, given(x),
                                          branch.data ? given(branch) : NULL, given(weight), given(bias), rows, C);

        /* The backward pass gets the oracle's mean and rstd, rounded: its errors are its own. */
        Tensor s = input(0, B, T, C), mean_in = input(0, B, T), rstd_in = input(0, B, T), dnormed = input(1, B, T, C);
        double greatest_rstd = 0, condition = 0;
        for (int r = 0; r < rows; r++) {
            host_floats(mean_in)[r] = (float)want_mean[r];
            host_floats(rstd_in)[r] = (float)want_rstd[r];
            greatest_rstd = fmax(greatest_rstd, want_rstd[r]);
            condition = fmax(condition, (fabs(offset) + 2) * want_rstd[r]);      /* x - mean, of values near offset */
        }
        for (int k = 0; k < rows * C; k++) host_floats(s)[k] = (float)want_sum[k];
        Tensor dx = output_into(dx_into, B, T, C), dweight = output_into(dw_into, C), dbias = output_into(dw_into, C);
        EACH_RUN {
            residual_layernorm_forward(sum, normed, mean, rstd, x, branch, weight, bias);
            layernorm_backward(dx, dweight, dbias, dnormed, s, mean_in, rstd_in, weight, dx_into, dw_into);
        }
        if (sum.data) compare("sum", sum, want_sum, (Bound){ .roundings = 1 });
        compare("mean", mean, want_mean, (Bound){ .roundings = n, .floor = 1 / sqrt(C) });
        compare("rstd", rstd, want_rstd, (Bound){ .roundings = n, .condition = condition });
        compare("normed", normed, want_normed, (Bound){ .roundings = n, .condition = condition });

        double *want_dx = doubles(rows * C), *want_dweight = doubles(C), *want_dbias = doubles(C);
        oracle_layernorm_backward(want_dx, want_dweight, want_dbias, given(dnormed), given(s), given(mean_in),
                                  given(rstd_in), given(weight), rows, C);
        compare("dx", dx, plus(want_dx, dx, dx_into), (Bound){ .roundings = n, .floor = greatest_rstd });
        compare("dweight", dweight, plus(want_dweight, dweight, dw_into),
                (Bound){ .roundings = rows + 2, .floor = sqrt(rows) });
        compare("dbias", dbias, plus(want_dbias, dbias, dw_into),
                (Bound){ .roundings = rows + 1, .floor = sqrt(rows) / 2 });
    }
}

/* ---- matmul */

static void matmul(void) {
    static const struct { int B, T, N, K; } shapes[] = {
        {1, 1, 1, 1}, {1, 7, 3, 5}, {3, 7, 13, 31}, {1, 63, 65, 129}, {2, 65, 33, 7}, {1, 1, 257, 63},
        {5, 129, 101, 77}, {1, 3, 5, 1001}, {1, 1000, 3, 9}, {1, 5, 1000, 3}, {2, 64, 192, 64},
        {1, 27, 601, 301},
    };
    for (int i = 0; i < 2 * COUNT(shapes); i++) {
        int B = shapes[i / 2].B, T = shapes[i / 2].T, N = shapes[i / 2].N, K = shapes[i / 2].K, rows = B * T;
        int whole = i % 2 == 0;      /* else bias, dx and dbias are absent */
        Into into = i % 4 < 2 ? OVERWRITE : ACCUMULATE;
        arena_begin("matmul", "B=%d T=%d N=%d K=%d dweight%s%s", B, T, N, K, into_name[into], whole ? "" : " alone");
        Tensor x = input(1, B, T, K), weight = input(1, N, K), bias = whole ? input(1, N) : ABSENT;
        Tensor out = output(B, T, N), dout = input(1, B, T, N), dweight = output_into(into, N, K);
        Tensor dx = whole ? output(B, T, K) : ABSENT, dbias = whole ? output_into(into, N) : ABSENT;
        EACH_RUN {
            matmul_forward(out, x, weight, bias);
            matmul_backward(dx, dweight, dbias, dout, x, weight, into);
        }
        double *want_out = doubles(rows * N), *want_dx = doubles(rows * K), *want_dweight = doubles(N * K);
        double *want_dbias = doubles(N);
        oracle_matmul_forward(want_out, given(x), given(weight), whole ? given(bias) : NULL, rows, N, K);
        oracle_matmul_backward(want_dx, want_dweight, want_dbias, given(dout), given(x), given(weight), rows, N, K);
        /* A product of two numbers uniform in [-1, 1) has size 1/3, n of them with random signs sqrt(n)/3. */
        compare("out", out, want_out, (Bound){ .roundings = K + whole, .floor = sqrt(K) / 3 });
        compare("dweight", dweight, plus(want_dweight, dweight, into),
                (Bound){ .roundings = rows + 1, .floor = sqrt(rows) / 3 });
        if (!whole) continue;
        compare("dx", dx, want_dx, (Bound){ .roundings = N, .floor = sqrt(N) / 3 });
        compare("dbias", dbias, plus(want_dbias, dbias, into),
                (Bound){ .roundings = rows + 1, .floor = sqrt(rows) / 2 });
    }
}

/* ---- gelu */

static void gelu(void) {
    static const int counts[] = {1, 7, 63, 65, 1000, 100003, 1001};
    for (int i = 0; i < COUNT(counts); i++) {
        int n = counts[i];
        int range = i % 2 ? 5 : 1;
        arena_begin("gelu", "%d elements, |x| < %d", n, range);
        Tensor x = input(range, n), y = output(n), dy = input(1, n), dx = output(n), in_place = output(n);
        memcpy(arena_host(in_place), arena_host(dy), sizeof(float) * (size_t)n);
        EACH_RUN {
            gelu_forward(y, x);
            gelu_backward(dx, dy, x);
            gelu_backward(in_place, in_place, x);
        }
        double *want_y = doubles(n), *want_dx = doubles(n);
        oracle_gelu_forward(want_y, given(x), n);
        oracle_gelu_backward(want_dx, given(dy), given(x), n);
        compare("y", y, want_y, (Bound){ .roundings = 5, .floor = 1 });
        compare("dx", dx, want_dx, (Bound){ .roundings = 18, .floor = 1 });
        EXPECT(!memcmp(result(dx), result(in_place), sizeof(double) * (size_t)n), "dx over dy differs");
    }
}

/* One at a time, so that no large one hides a small one; relative to x, since 1 + tanh cancels far to the left. */
static void gelu_extremes(void) {
    static const float values[] = {
        0, 1e-30f, -1e-30f, 1e-6f, 0.5f, 3, -3, -5, 6, -8, 9.5f, -10, 11, -14, 40, 100, -100, 1e4f, -1e4f,
    };
    for (int i = 0; i < COUNT(values); i++) {
        arena_begin("gelu", "x = %g", values[i]);
        Tensor x = input(0, 1), y = output(1), dy = input(0, 1), dx = output(1);
        *host_floats(x) = values[i];
        *host_floats(dy) = 1;
        EACH_RUN {
            gelu_forward(y, x);
            gelu_backward(dx, dy, x);
        }
        double want_y, want_dx;
        oracle_gelu_forward(&want_y, given(x), 1);
        oracle_gelu_backward(&want_dx, given(dy), given(x), 1);
        compare("y", y, &want_y, (Bound){ .roundings = 5, .floor = fabs(values[i]) });
        /* x/2 (1 - tanh^2) (...): what cancels is multiplied by about x^2, as long as it is not yet zero */
        compare("dx", dx, &want_dx, (Bound){ .roundings = 18, .floor = fmin(1 + values[i] * values[i], 10) });
    }
}

/* ---- head */

/* dloss 0: evaluation only. One target in ignore is -1; 0: none. amplitude is that of x: 300 makes logits of many
   hundreds, whose exp is infinite unless the greatest is subtracted. */
static void head_case(int B, int T, int C, int V, int Vp, int R, double amplitude, double dloss, Into into,
                      int ignore) {
    int rows = B * T, evaluate = dloss == 0;
    arena_begin("head", "B=%d T=%d C=%d V=%d Vp=%d R=%d x %g dwte%s ignore %d%s", B, T, C, V, Vp, R, amplitude,
                into_name[into], ignore, evaluate ? " evaluation" : "");
    Tensor x = input(amplitude, B, T, C), wte = input(1, Vp, C), targets = integers(0, V - 1, B, T);
    Tensor losses = output(B, T), work = scratch(R, Vp);
    Tensor dx = evaluate ? ABSENT : output(B, T, C), dwte = evaluate ? ABSENT : output_into(into, Vp, C);
    int *target = arena_host(targets), kept = 0;
    for (int r = 0; r < rows; r++) {
        if (ignore && uniform_int(1, ignore) == 1) target[r] = -1;
        kept += target[r] != -1;
    }
    EACH_RUN head_loss(losses, dx, dwte, x, wte, targets, V, (float)dloss, into, work);

    double *want_losses = doubles(rows), *want_dx = doubles(rows * C), *want_dwte = doubles(Vp * C);
    oracle_head_loss(want_losses, want_dx, want_dwte, given(x), given(wte), target, rows, C, V, Vp, (float)dloss);
    double logit = amplitude * sqrt(C) / 3;      /* the size of one */
    compare("losses", losses, want_losses, (Bound){ .roundings = C + V + 6, .floor = 3 * logit + 1 });
    for (int r = 0; r < rows; r++)
        EXPECT(target[r] != -1 || result(losses)[r] == 0, "an ignored loss is %g", result(losses)[r]);
    if (evaluate) return;
    double size = kept ? dloss / 2 : 0;
    compare("dx", dx, want_dx, (Bound){ .roundings = C + V + 6, .condition = 3 * logit, .floor = size });
    compare("dwte", dwte, plus(want_dwte, dwte, into),
            (Bound){ .roundings = C + V + rows + 6, .condition = 3 * logit, .floor = size * amplitude });
    double *got_dx = result(dx), *got_dwte = result(dwte), *old = given(dwte);
    for (int k = 0; k < rows * C; k++)
        EXPECT(target[k / C] != -1 || got_dx[k] == 0, "dx of an ignored row is %g", got_dx[k]);
    for (int k = V * C; k < Vp * C; k++)
        EXPECT(got_dwte[k] == (into == ACCUMULATE ? old[k] : 0), "dwte of a padded row is %g", got_dwte[k]);
}

static void head(void) {
    static const struct { int B, T, C, V, Vp; } shapes[] = {
        {1, 1, 1, 1, 1}, {3, 7, 5, 9, 16}, {3, 9, 48, 65, 128}, {2, 63, 33, 257, 320}, {1, 65, 40, 100, 100},
    };
    for (int i = 0; i < COUNT(shapes); i++) {
        int B = shapes[i].B, T = shapes[i].T, C = shapes[i].C, V = shapes[i].V, Vp = shapes[i].Vp;
        for (int k = 0; k < 3; k++) {
            int R = (const int[]){1, 7, B * T}[k];
            head_case(B, T, C, V, Vp, R, 1, 1.0 / (B * T), OVERWRITE, 0);
            head_case(B, T, C, V, Vp, R, 1, 0.7, ACCUMULATE, 3);
            head_case(B, T, C, V, Vp, R, 1, 0, OVERWRITE, 3);
        }
        head_case(B, T, C, V, Vp, 5, 300, 1, OVERWRITE, 4);
        head_case(B, T, C, V, Vp, 5, 1, 1, OVERWRITE, 1);      /* all are ignored */
        head_case(B, T, C, V, Vp, 5, 1, 1, ACCUMULATE, 1);
    }
}

/* The gradients are those of dloss * sum(losses), and the padding of wte may hold anything that is finite. */
static void head_padding(void) {
    arena_begin("head", "padded rows of 1e30");
    Tensor x = input(1, 2, 9, 8), wte = input(1, 64, 8), targets = integers(0, 10, 2, 9);
    Tensor losses = output(2, 9), dx = output(2, 9, 8), dwte = output(64, 8), work = scratch(4, 64);
    for (int k = 11 * 8; k < 64 * 8; k++) host_floats(wte)[k] = 1e30f;
    EACH_RUN head_loss(losses, dx, dwte, x, wte, targets, 11, 1, OVERWRITE, work);
    double *want_losses = doubles(18), *want_dx = doubles(18 * 8), *want_dwte = doubles(64 * 8);
    oracle_head_loss(want_losses, want_dx, want_dwte, given(x), given(wte), arena_host(targets), 18, 8, 11, 64, 1);
    compare("losses", losses, want_losses, (Bound){ .roundings = 8 + 11 + 6, .floor = 1 });
    compare("dx", dx, want_dx, (Bound){ .roundings = 8 + 11 + 6 });
    compare("dwte", dwte, want_dwte, (Bound){ .roundings = 8 + 11 + 18 + 6 });
}

static void head_logits_op(void) {
    static const struct { int R, C, V, Vp; } shapes[] = { {1, 1, 1, 1}, {1, 65, 257, 320}, {7, 33, 65, 128} };
    for (int i = 0; i < COUNT(shapes); i++) {
        int R = shapes[i].R, C = shapes[i].C, Vp = shapes[i].Vp;
        arena_begin("head_logits", "R=%d C=%d Vp=%d", R, C, Vp);
        Tensor x = input(1, R, C), wte = input(1, Vp, C), logits = output(R, Vp);
        EACH_RUN head_logits(logits, x, wte);
        double *want = doubles(R * Vp);
        oracle_matmul_forward(want, given(x), given(wte), NULL, R, Vp, C);
        compare("logits", logits, want, (Bound){ .roundings = C, .floor = sqrt(C) / 3 });
    }
}

static void call_target(void *target) {
    alarm(10);
    arena_begin("head", "a target outside the vocabulary");
    Tensor x = input(1, 1, 3, 8), wte = input(1, 16, 8), losses = output(1, 3), work = scratch(3, 16);
    Tensor targets = integers(0, 0, 1, 3);
    ((int *)arena_host(targets))[1] = *(int *)target;
    device_upload(arena_device, arena_before, 4 * (size_t)arena_used);
    head_loss(losses, ABSENT, ABSENT, x, wte, targets, 11, 1, OVERWRITE, work);
}

static void head_bad_target(void) {
    if (strcmp(backend_name, "cpu")) { test_skip_reason = "only the CPU looks at targets"; return; }
    device_open((DeviceOptions){ .threads = 1 });      /* no threads are left behind by fork */
    expect_fails("11", call_target, &(int){11});
    expect_fails("-2", call_target, &(int){-2});
}

/* ---- update */

enum { ROW_COUNT = 7, GAP = 64 };
static const int row_lengths[ROW_COUNT] = {1, 64, 7, 1000, 65, 3, 70001};

typedef struct { Tensor param, m, v, grad, rows, numbers, losses; int64_t size; } Step;

/* Rows on 256 bytes; the gaps of grad are zero, those of the others poison: nobody may touch or use them. */
static Step step_begin(StepNumbers numbers) {
    Step s = { .rows = integers(0, 0, ROW_COUNT * (int)sizeof(UpdateRow) / 4), .losses = fill(input(0, 5, 13), 4, 1) };
    UpdateRow *row = arena_host(s.rows);
    for (int i = 0; i < ROW_COUNT; i++) {
        row[i] = (UpdateRow){ .first = s.size, .count = row_lengths[i], .decay = i % 2 };
        s.size += (row_lengths[i] + GAP - 1) / GAP * GAP + (i == 2 ? GAP : 0);
    }
    s.numbers = place(I32, WRITTEN, 0, DIMS((int)sizeof numbers / 4));
    memcpy(arena_host(s.numbers), &numbers, sizeof numbers);
    memset(arena_mark + ((char *)s.numbers.data - arena_device) / 4, KEPT, offsetof(StepNumbers, loss) / 4);
    s.grad = input(0, s.size);
    s.param = place(F32, KEPT, 0, DIMS(s.size));
    s.m = place(F32, KEPT, 0, DIMS(s.size));
    s.v = place(F32, KEPT, 0, DIMS(s.size));
    for (int i = 0; i < ROW_COUNT; i++)
        for (int64_t k = row[i].first; k < row[i].first + row[i].count; k++) {
            host_floats(s.grad)[k] = (float)uniform();
            host_floats(s.param)[k] = (float)uniform();
            host_floats(s.m)[k] = (float)uniform();
            host_floats(s.v)[k] = (float)(1 + uniform() / 2);
        }
    return s;
}

static void step_run(const Step *s) {
    StepNumbers *numbers = s->numbers.data;
    loss_add(numbers, s->losses, 0.25f);
    gradient_norm(numbers, s->grad);
    adamw_update(s->param, ABSENT, s->m, s->v, s->grad, s->rows.data, ROW_COUNT, numbers);
}

static StepNumbers step_numbers(const Step *s) {
    StepNumbers numbers;
    memcpy(&numbers, arena_after + ((char *)s->numbers.data - arena_device) / 4, sizeof numbers);
    return numbers;
}

/* max_norm against a norm of about 60: never, not reached, reached; step 1 and step 1000. */
static void update(void) {
    static const struct { float max_norm, correction1, correction2; } cases[] = {
        {0, 0.1f, 0.05f}, {1000, 0.1f, 0.05f}, {1, 0.1f, 0.05f}, {0.5f, 1, 0.999f},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        arena_begin("update", "max_norm %g, correction %g", cases[i].max_norm, cases[i].correction1);
        Step s = step_begin((StepNumbers){ .learning_rate = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-3f,
            .weight_decay = 0.5f, .correction1 = cases[i].correction1, .correction2 = cases[i].correction2,
            .max_norm = cases[i].max_norm, .loss = 0.5, .norm = NAN, .clip = NAN, .apply = -1 });
        UpdateRow *row = arena_host(s.rows);
        Tensor *changed[] = { &s.param, &s.m, &s.v };
        for (int k = 0; k < 3 * ROW_COUNT; k++) {      /* the rows are outputs, the gaps are not */
            Tensor t = tensor_of((float *)changed[k / ROW_COUNT]->data + row[k % ROW_COUNT].first, F32, 1,
                                 row[k % ROW_COUNT].count);
            mark(t, WRITTEN);
        }
        EACH_RUN step_run(&s);

        StepNumbers got = step_numbers(&s), want = got;
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
            int64_t first = row[k].first, n = row[k].count;
            oracle_adamw(param + first, m + first, v + first, grad + first, n, row[k].decay, &want);
            Tensor part[3];
            for (int p = 0; p < 3; p++) part[p] = tensor_of((float *)changed[p]->data + first, F32, 1, n);
            compare("param", part[0], param + first, (Bound){ .roundings = 14, .floor = 1 });
            compare("m", part[1], m + first, (Bound){ .roundings = 5, .floor = 1 });
            compare("v", part[2], v + first, (Bound){ .roundings = 6 });
        }
    }
}

/* Nothing of param, m and v is marked as written: they keep every bit. */
static void update_refuses_sick_numbers(void) {
    static const float sick[] = { INFINITY, -INFINITY, NAN };
    for (int i = 0; i < 12; i++) {
        arena_begin("update", "%g in %s %d", sick[i % 3], i < 9 ? "the gradient of row" : "the losses,", i);
        Step s = step_begin((StepNumbers){ .learning_rate = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
            .correction1 = 0.1f, .correction2 = 0.05f, .max_norm = i % 2, .apply = 1 });
        UpdateRow row = ((UpdateRow *)arena_host(s.rows))[i % ROW_COUNT];
        float *at = i < 9 ? host_floats(s.grad) + row.first + uniform_int(0, (int)row.count - 1)
                          : host_floats(s.losses) + uniform_int(0, (int)tensor_count(s.losses) - 1);
        *at = sick[i % 3];
        EACH_RUN step_run(&s);
        EXPECT(step_numbers(&s).apply == 0, "%s: apply is %d", arena_case, step_numbers(&s).apply);
    }
}

/* What may be applied also has a square that f32 holds: that of the clipped norm is below 3.4e38. */
static void norm_extremes(void) {
    static const struct { float value, max_norm; int apply; } cases[] = {       /* 32^2 of them */
        {0, 1, 1}, {1e-25f, 1, 1}, {1e25f, 1, 1}, {1e17f, 0, 1}, {1e18f, 0, 0}, {1e25f, 0, 0}, {1e25f, 1e20f, 0}
    };
    for (int i = 0; i < COUNT(cases); i++) {
        arena_begin("norm", "1024 gradients of %g, max_norm %g", cases[i].value, cases[i].max_norm);
        Tensor grad = fill(input(0, 1024), cases[i].value, 0);
        Tensor numbers = place(I32, WRITTEN, 0, DIMS((int)sizeof(StepNumbers) / 4));
        Step s = { .numbers = numbers };
        *(StepNumbers *)arena_host(numbers) = (StepNumbers){ .max_norm = cases[i].max_norm };
        EACH_RUN gradient_norm(numbers.data, grad);
        StepNumbers got = step_numbers(&s);
        double norm = 32 * (double)cases[i].value, clip = oracle_clip(norm, cases[i].max_norm);
        EXPECT(fabs(got.norm - norm) <= 1e-5 * norm, "%s: norm is %g, want %g", arena_case, got.norm, norm);
        EXPECT(got.apply == cases[i].apply, "%s: apply is %d", arena_case, got.apply);
        EXPECT(fabs(got.clip - clip) <= 1e-5 * clip, "%s: clip is %g, want %g", arena_case, got.clip, clip);
    }
}

static void health(void) {
    arena_begin("health", "1003 numbers");
    Tensor t = input(1, 17, 59);
    float *a = host_floats(t);
    for (int sick = 0; sick < 2; sick++) {
        TensorHealth got = {0}, want = { .least = INFINITY, .greatest = -INFINITY };
        if (sick) { a[3] = a[1002] = NAN; a[0] = INFINITY; a[500] = a[501] = a[502] = -INFINITY; a[77] = -1e30f; }
        for (int i = 0; i < 1003; i++) {
            want.nan_count += isnan(a[i]) != 0;
            want.infinite_count += isinf(a[i]) != 0;
            if (isfinite(a[i])) { want.least = fmin(want.least, a[i]); want.greatest = fmax(want.greatest, a[i]); }
        }
        EACH_RUN got = tensor_health(t);
        EXPECT(got.nan_count == want.nan_count && got.infinite_count == want.infinite_count && got.least == want.least
               && got.greatest == want.greatest, "%lld NaN, %lld infinite, %g .. %g; want %lld, %lld, %g .. %g",
               (long long)got.nan_count, (long long)got.infinite_count, got.least, got.greatest,
               (long long)want.nan_count, (long long)want.infinite_count, want.least, want.greatest);
    }
}

/* ---- refusals */

static void call_embedding(Tensor *t)          { embedding_forward(t[0], t[1], t[2], t[3]); }
static void call_embedding_backward(Tensor *t) { embedding_backward(t[0], t[1], t[2], t[3], OVERWRITE); }
static void call_layernorm(Tensor *t) { residual_layernorm_forward(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]); }
static void call_layernorm_backward(Tensor *t) {
    layernorm_backward(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], OVERWRITE, OVERWRITE);
}
static void call_matmul(Tensor *t)          { matmul_forward(t[0], t[1], t[2], t[3]); }
static void call_matmul_backward(Tensor *t) { matmul_backward(t[0], t[1], t[2], t[3], t[4], t[5], OVERWRITE); }
static void call_gelu(Tensor *t)            { gelu_forward(t[0], t[1]); }
static void call_gelu_backward(Tensor *t)   { gelu_backward(t[0], t[1], t[2]); }
static void call_head(Tensor *t)   { head_loss(t[0], t[1], t[2], t[3], t[4], t[5], 7, 1, OVERWRITE, t[6]); }
static void call_head_logits(Tensor *t)     { head_logits(t[0], t[1], t[2]); }
static void call_adamw(Tensor *t)           { adamw_update(t[0], ABSENT, t[1], t[2], t[3], t[4].data, 0, t[4].data); }

static void refusals(void) {
    enum { B = 2, T = 3, C = 4, N = 5, Vp = 8 };
    if (!strcmp(backend_name, "cpu")) device_open((DeviceOptions){ .threads = 1 });      /* fork keeps one thread */
    arena_begin("refusals", "B=2 T=3 C=4 N=5 Vp=8");
    Tensor x = input(1, B, T, C), y = output(B, T, C), z = output(B, T, C), u = input(1, B, T, C);
    Tensor row = output(B, T), row2 = output(B, T), ids = integers(0, 6, B, T), out = output(B, T, N);
    Tensor wte = input(1, Vp, C), dwte = output(Vp, C), wpe = input(1, T, C), dwpe = output(T, C);
    Tensor w = input(1, C), dw = output(C), db = output(C), weight = input(1, N, C), dweight = output(N, C);
    Tensor work = scratch(2, Vp), bias = input(1, N), dbias = output(N);
    Tensor flat[4] = { base(1, 9), base(1, 9), base(1, 9), input(1, 9) };
    device_upload(arena_device, arena_before, 4 * (size_t)arena_used);
    Call calls[] = {
        { "embedding",          call_embedding,          4, 0,          { y, ids, wte, wpe } },
        { "embedding backward", call_embedding_backward, 4, 0,          { dwte, dwpe, x, ids } },
        { "layernorm",          call_layernorm,          8, 1 << 5,     { y, z, row, row2, x, u, w, w } },
        { "layernorm backward", call_layernorm_backward, 8, 0,          { y, dw, db, x, u, row, row2, w } },
        { "matmul",             call_matmul,             4, 1 << 3,     { out, x, weight, bias } },
        { "matmul backward",    call_matmul_backward,    6, 1 | 1 << 2, { y, dweight, dbias, out, x, weight } },
        { "gelu",               call_gelu,               2, 0,          { y, x } },
        { "gelu backward",      call_gelu_backward,      3, 0,          { y, x, u } },
        { "head",               call_head,               7, 0,          { row, y, dwte, x, wte, ids, work } },
        { "head",               call_head_logits,        3, 0,          { work, tensor_row_range(x, 0, 2), wte } },
        { "adamw",              call_adamw,              4, 0,          { flat[0], flat[1], flat[2], flat[3], ids } },
    };
    for (int i = 0; i < COUNT(calls); i++) expect_refusals(calls[i]);

    weight.dim[1] = weight.pitch = 3;
    expect_fails("matmul: weight is f32 (5,3), want f32 (5,4)", call_in_child,
                 &(Call){ .call = call_matmul, .t = { out, x, weight, bias } });
}

int main(void) {
    arena_open();
    RUN(embedding);
    RUN(layernorm);
    RUN(matmul);
    RUN(gelu);
    RUN(gelu_extremes);
    RUN(head);
    RUN(head_padding);
    RUN(head_logits_op);
    RUN(head_bad_target);
    RUN(update);
    RUN(update_refuses_sick_numbers);
    RUN(norm_extremes);
    RUN(health);
    RUN(refusals);
    arena_close();
    return test_close();
}
