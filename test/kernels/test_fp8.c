/* test_fp8.c - Quantization to E4M3, bit for bit; the products, against the oracle on what the quantized operands stand
   for; and the maxima of the ops before. A device without FP8 refuses. */
#include "../../kernels/fp8.h"
#include "../../kernels/gelu.h"
#include "../../kernels/gemm.h"
#include "../../kernels/layernorm.h"
#include "../../kernels/matmul.h"
#include "arena.h"

static int lacks_fp8(void) {
    test_skip_reason = device_refuse_dtype(E4M3);
    return test_skip_reason != NULL;
}

enum { NORMAL, ZEROS, HUGE_ONE, SUBNORMAL, WIDE, ALL_KINDS };

static Tensor data_of(int kind, int64_t rows, int64_t columns) {
    Tensor t = place(BF16, KEPT, 0, DIMS(rows, columns));
    for (int64_t i = 0; i < rows * columns; i++) {
        const double u = uniform() + uniform() + uniform();
        set(t, i, kind == ZEROS ? 0 : kind == SUBNORMAL ? ldexp(u, -128)
                : kind == WIDE ? ldexp(u, uniform_int(-30, 0)) : u);
    }
    if (kind == HUGE_ONE) set(t, uniform_int(0, (int)(rows * columns) - 1), -1e15);
    return t;
}

/* Two outputs, q (rows,columns) and qt, with one max. */
typedef struct { Tensor q, qt, max; } Pair;

static Pair pair(int64_t rows, int64_t columns) {
    Pair p = { output_as(E4M3, rows, columns), output_as(E4M3, columns, rows), f32_output(1) };
    p.q.max = p.qt.max = p.max.data;
    return p;
}

static double largest_of(const double *x, int64_t count) {
    const uint32_t least = 0x0d0d0d0d;      /* 4.3e-31 */
    float max;
    memcpy(&max, &least, sizeof max);
    for (int64_t i = 0; i < count; i++) max = fmaxf(max, (float)fabs(x[i]));
    return (double)max;
}

/* ---- Quantization */

static const int sizes[][2] = { {16, 16}, {48, 80}, {128, 128}, {144, 272}, {1008, 112}, {32, 1600} };

TEST(quantization_is_rounding) {
    if (lacks_fp8()) return;
    for (int i = 0; i < 4 * ALL_KINDS * COUNT(sizes); i++) {
        const int rows = sizes[i / 4 / ALL_KINDS][0], columns = sizes[i / 4 / ALL_KINDS][1], count = rows * columns;
        const int kind = i / 4 % ALL_KINDS, which = i % 4;      /* both, q, qt; both with a known maximum */
        arena_begin("quantize", "%d x %d, kind %d, %d", rows, columns, kind, which);
        Tensor t = data_of(kind, rows, columns);
        const Pair p = pair(rows, columns);
        const double *x = given(t), max = largest_of(x, count) * (which == 3 ? 2 : 1);
        if (which == 3) {
            t.max = p.max.data;
            set(p.max, 0, max);
        }
        EACH_RUN quantize(which == 2 ? ABSENT : p.q, which == 1 ? ABSENT : p.qt, t);
        const double *q = result(p.q), *qt = result(p.qt), got = *result(p.max);
        int wrong = 0;
        for (int k = 0; k < count; k++) {
            const double want = round_e4m3((double)((float)x[k] * (E4M3_MAX / (float)max)));
            wrong += (which != 2 && q[k] != want) || (which != 1 && qt[k % columns * rows + k / columns] != want);
        }
        EXPECT(got == max && !wrong, "%s: maximum %g, want %g; %d elements differ", arena_case, got, max, wrong);
    }
}

/* Half a step of E4M3, 2^-4 of a number or 2^-10, and the GELU's own 2^-14. */
TEST(quantization_of_a_gelu) {
    if (lacks_fp8()) return;
    for (int i = 0; i < COUNT(sizes); i++) {
        const int rows = sizes[i][0], columns = sizes[i][1], count = rows * columns;
        arena_begin("quantize gelu", "%d x %d", rows, columns);
        const Tensor t = data_of(NORMAL, rows, columns);
        const Pair p = pair(rows, columns);
        double *y = doubles(count), worst = 0;
        oracle_gelu_forward(y, given(t), count);
        EACH_RUN quantize_gelu(p.q, p.qt, t);
        const double *q = result(p.q), *qt = result(p.qt), max = *result(p.max), want = largest_of(y, count);
        for (int k = 0; k < count; k++) {
            const double exact = y[k] * 448 / want;
            worst = fmax(worst, fabs(q[k] - exact) / fmax(0x1p-10, 0x1.01p-4 * fabs(exact)));
            if (qt[k % columns * rows + k / columns] != q[k]) worst = INFINITY;
        }
        EXPECT(fabs(max / want - 1) < 0x1p-13 && worst <= 1.01, "%s: maximum %g, want %g; %g half steps", arena_case,
               max, want, worst);
    }
}

/* ---- Products */

/* What q stands for. */
static double *meaning_of(Pair p) {
    double *x = result(p.q), factor = *result(p.max) / 448;
    for (int64_t i = 0; i < tensor_count(p.q); i++) x[i] *= factor;
    return x;
}

/* The tensor cores of Hopper add up products of FP8 with 13 bits behind the largest of them (DeepSeek-V3, arXiv
   2412.19437, 3.5.2): off by 2^-11 of the largest result. */
TEST(products) {
    static const int shapes[][3] = { {16, 16, 16}, {48, 80, 144}, {272, 128, 1600}, {1008, 112, 304}, {64, 400, 48} };
    const double condition = 0x1p-11 / (4 * 0x1p-24);
    if (lacks_fp8()) return;
    for (int i = 0; i < 4 * COUNT(shapes); i++) {
        const int rows = shapes[i / 4][0], N = shapes[i / 4][1], K = shapes[i / 4][2];
        const int kind = (int[]){ NORMAL, ZEROS, HUGE_ONE, WIDE }[i % 4];
        const Into into = i % 2 ? ACCUMULATE : OVERWRITE;
        arena_begin("matmul fp8", "%d x %d x %d, kind %d", rows, N, K, kind);
        const Tensor x = data_of(kind, rows, K), weight = data_of(NORMAL, N, K), dout = data_of(kind, rows, N);
        const Tensor bias = i % 3 ? input_as(BF16, 1, N) : ABSENT, dweight = f32_output_into(into, N, K);
        const Tensor out = output_as(BF16, rows, N), dx = output_as(BF16, rows, K);
        const Pair px = pair(rows, K), pw = pair(N, K), pd = pair(rows, N);
        EACH_RUN {
            quantize(px.q, px.qt, x);
            quantize(pw.q, pw.qt, weight);
            quantize(pd.q, pd.qt, dout);
            matmul_fp8_forward(out, px.q, pw.q, bias);
            matmul_fp8_backward(dx, dweight, pd.q, pd.qt, px.qt, pw.qt, into);
        }
        const double *x8 = meaning_of(px), *w8 = meaning_of(pw), *d8 = meaning_of(pd);
        double *want = doubles(rows * N), *want_dx = doubles(rows * K), *want_dweight = doubles(N * K);
        oracle_matmul_forward(want, x8, w8, bias.data ? given(bias) : NULL, rows, N, K);
        oracle_matmul_backward(want_dx, want_dweight, doubles(N), d8, x8, w8, rows, N, K);
        compare(out, want, .condition = condition);
        compare(dx, want_dx, .condition = condition);
        compare(dweight, want_dweight, .condition = condition);
    }
}

/* One of them in x, and every result is NaN or infinite: the guard of a step sees it. */
TEST(not_finite) {
    enum { ROWS = 32, N = 48, K = 64 };
    if (lacks_fp8()) return;
    for (int i = 0; i < 3; i++) {
        arena_begin("matmul fp8", "not finite: %d", i);
        const Tensor x = data_of(NORMAL, ROWS, K), weight = data_of(NORMAL, N, K), out = output_as(BF16, ROWS, N);
        const Pair px = pair(ROWS, K), pw = pair(N, K);
        set(x, uniform_int(0, ROWS * K - 1), (double[]){ (double)NAN, (double)INFINITY, -(double)INFINITY }[i]);
        EACH_RUN {
            quantize(px.q, px.qt, x);
            quantize(pw.q, pw.qt, weight);
            matmul_fp8_forward(out, px.q, pw.q, ABSENT);
        }
        const double *got = result(out);
        int finite = 0;
        for (int k = 0; k < ROWS * N; k++) finite += isfinite(got[k]) != 0;
        EXPECT(!finite, "%s: %d results are finite", arena_case, finite);
    }
}

/* ---- The maxima of other ops: those of what they have written or read */

static void expect_max(const char *what, Tensor t, Tensor max) {
    const double want = largest_of(result(t), tensor_count(t)), got = *result(max);
    EXPECT(got == want, "%s, %s: maximum %.9g, want %.9g", what, arena_case, got, want);
}

TEST(maxima) {
    static const int columns[] = { 16, 256, 768, 1280, 1600, 2064, 4096 };
    if (lacks_fp8()) return;
    for (int i = 0; i < 2 * COUNT(columns); i++) {
        const int C = columns[i / 2], rows = i % 2 ? 67 : 1000;
        arena_begin("maxima", "%d columns, %d rows", C, rows);
        const Tensor x = data_of(NORMAL, rows, C), dy = data_of(NORMAL, rows, C), weight = data_of(NORMAL, 1, C);
        const Tensor mean = f32_output(rows), rstd = f32_output(rows), max = f32_output(1);
        const Tensor w = tensor_of(weight.data, BF16, 1, C);
        const Tensor dw = f32_output(C), db = f32_output(C), sum = f32_output(C);
        Tensor out = output_as(BF16, rows, C);
        out.max = max.data;
        EACH_RUN residual_layernorm_forward(ABSENT, out, mean, rstd, x, ABSENT, w, w);
        expect_max("layernorm", out, max);
        EACH_RUN {
            residual_layernorm_forward(ABSENT, out, mean, rstd, x, ABSENT, w, w);
            layernorm_backward(out, dw, db, sum, dy, x, mean, rstd, w, ACCUMULATE, OVERWRITE);
        }
        expect_max("layernorm backward", out, max);
        EACH_RUN gelu_backward(out, dy, x, sum, OVERWRITE);
        expect_max("gelu backward", out, max);
        Tensor read = x;
        read.max = max.data;
        EACH_RUN column_sums(sum, read, OVERWRITE);
        expect_max("column sums", x, max);
    }
}

/* ---- Refusals */

static void call_quantize(Tensor *t) { quantize(t[0], t[1], t[2]); }
static void call_forward(Tensor *t)  { matmul_fp8_forward(t[0], t[1], t[2], t[3]); }
static void call_backward(Tensor *t) { matmul_fp8_backward(t[0], t[1], t[2], t[3], t[4], t[5], OVERWRITE); }

TEST(refusals) {
    enum { ROWS = 16, N = 48, K = 32 };
    if (!strcmp(backend_name, "cpu")) device_open((DeviceOptions){ .threads = 1 });      /* fork keeps one thread */
    arena_begin("refusals", "16 x 48 x 32");
    const Tensor t = output_as(BF16, ROWS, K), out = output_as(BF16, ROWS, N), dweight = f32_output(N, K);
    const Pair x = pair(ROWS, K), weight = pair(N, K), dout = pair(ROWS, N);
    const Call calls[] = {
        { "quantize", call_quantize, 3, 1 << 0 | 1 << 1, .t = { x.q, x.qt, t } },
        { "matmul fp8", call_forward, 4, 1 << 3, .t = { out, x.q, weight.q, input_as(BF16, 1, N) } },
        { "matmul fp8 backward", call_backward, 6, 1 << 0, .t = { t, dweight, dout.q, dout.qt, x.qt, weight.qt } },
    };
    for (int i = 0; i < COUNT(calls); i++) expect_refusals(calls[i]);
    EXPECT_FAILS("quantize: q and qt are absent, want at least one", quantize(ABSENT, ABSENT, ABSENT));
    Tensor odd = tensor_of(x.q.data, E4M3, 2, 20, K);
    odd.max = x.q.max;
    const char *refusal = device_refuse_dtype(E4M3);
    EXPECT_FAILS(refusal ? refusal : "quantize: q is e4m3 (20,32), want multiples of 16",
                 quantize(odd, ABSENT, tensor_of(t.data, BF16, 2, 20, K)));
    odd = x.q;
    odd.max = NULL;
    EXPECT_FAILS(refusal ? refusal : "want both, on 16 bytes", quantize(odd, ABSENT, t));
}

int main(void) {
    arena_open();
    return test_all();
}
