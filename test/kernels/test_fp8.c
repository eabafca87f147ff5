/* test_fp8.c - Quantization to E4M3, bit for bit; the products, against the oracle on what the quantized operands stand
   for; and the maxima of the ops before. A device without FP8 refuses. */
#include "../../kernels/fp8.h"
#include "../../kernels/gelu.h"
#include "../../kernels/gemm.h"
#include "../../kernels/layernorm.h"
#include "../../kernels/matmul.h"
#include "../oracle.h"
#include "../test.h"

/* ---- E4M3 on the host */

static float from_e4m3(uint8_t bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    const float size = (bits & 127) == 127 ? NAN : exponent ? ldexpf((float)(8 + mantissa), exponent - 10)
                                                            : ldexpf((float)mantissa, -9);
    return bits & 128 ? -size : size;
}

/* The nearest, ties to the even one; above the largest, the largest. */
static uint8_t to_e4m3(float x) {
    const uint8_t sign = signbit(x) ? 128 : 0;
    uint8_t near = 0;
    if (isnan(x)) return 127;
    for (uint8_t i = 1; i < 127; i++) {
        const float before = fabsf(fabsf(x) - from_e4m3(near)), distance = fabsf(fabsf(x) - from_e4m3(i));
        if (distance < before || (distance == before && i % 2 == 0)) near = i;
    }
    return sign | near;
}

/* ---- Operands: device memory with 256 bytes of guard behind it */

enum { GUARD = 256, POISON = 0x7b };

static Tensor poisoned(DType dtype, int64_t rows, int64_t columns) {
    Tensor t = tensor_of(NULL, dtype, 2, rows, columns);
    const size_t bytes = tensor_bytes(t) + GUARD;
    void *host = malloc(bytes);
    memset(host, POISON, bytes);
    t.data = device_alloc(bytes, "an operand of a test");
    device_upload(t.data, host, bytes);
    free(host);
    return t;
}

static Tensor tensor_from(const double *x, DType dtype, int64_t rows, int64_t columns) {
    Tensor t = poisoned(dtype, rows, columns);
    float *host = malloc((size_t)(rows * columns) * sizeof *host);
    for (int64_t i = 0; i < rows * columns; i++) {
        host[i] = (float)x[i];
        uint32_t bits;
        memcpy(&bits, &host[i], sizeof bits);
        if (dtype == BF16) ((uint16_t *)host)[i] = (uint16_t)(bits >> 16);      /* never behind what is read */
    }
    device_upload(t.data, host, tensor_bytes(t));
    free(host);
    return t;
}

/* All elements; E4M3 stays in units of max / 448. Counts changes of the guard as errors. */
static double *values_of(Tensor t) {
    const size_t bytes = tensor_bytes(t);
    uint8_t *host = malloc(bytes + GUARD);
    double *x = malloc((size_t)tensor_count(t) * sizeof *x);
    device_download(host, t.data, bytes + GUARD);
    for (int i = 0; i < GUARD; i++) EXPECT(host[bytes + (size_t)i] == POISON, "byte %d behind a tensor is written", i);
    for (int64_t i = 0; i < tensor_count(t); i++) {
        const uint32_t bits = t.dtype == BF16 ? (uint32_t)((uint16_t *)host)[i] << 16
                            : t.dtype == F32  ? ((uint32_t *)host)[i] : 0;
        float value;
        memcpy(&value, &bits, sizeof value);
        x[i] = t.dtype == E4M3 ? (double)from_e4m3(host[i]) : (double)value;
    }
    free(host);
    return x;
}

static float max_of(Tensor t) {
    float max;
    device_download(&max, t.max, sizeof max);
    return max;
}

/* Two tensors, q (rows,columns) and qt, with one max. */
typedef struct { Tensor q, qt; } Pair;

static Pair pair(int64_t rows, int64_t columns) {
    Pair p = { poisoned(E4M3, rows, columns), poisoned(E4M3, columns, rows) };
    p.q.max = p.qt.max = device_alloc(sizeof(float), "a maximum");
    return p;
}

static void pair_free(Pair p) {
    device_free(p.q.data);
    device_free(p.qt.data);
    device_free(p.q.max);
}

/* ---- Quantization */

enum { NORMAL, ZEROS, HUGE_ONE, SUBNORMAL, WIDE, ALL_KINDS };

/* Numbers of bf16. */
static double *data_of(int kind, int64_t count) {
    double *x = malloc((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++) {
        const double u = uniform() + uniform() + uniform();
        x[i] = round_bf16(kind == ZEROS ? 0 : kind == SUBNORMAL ? ldexp(u, -128)
                        : kind == WIDE ? ldexp(u, uniform_int(-30, 0)) : u);
    }
    if (kind == HUGE_ONE) x[uniform_int(0, (int)count - 1)] = round_bf16(-1e15);
    return x;
}

static float largest_of(const double *x, int64_t count) {
    const uint32_t least = 0x0d0d0d0d;      /* 4.3e-31 */
    float max;
    memcpy(&max, &least, sizeof max);
    for (int64_t i = 0; i < count; i++) max = fmaxf(max, (float)fabs(x[i]));
    return max;
}

static int lacks_fp8(void) {
    if (device_refuse_dtype(E4M3)) test_skip_reason = device_refuse_dtype(E4M3);
    return test_skip_reason != NULL;
}

static const int sizes[][2] = { {16, 16}, {48, 80}, {128, 128}, {144, 272}, {1008, 112}, {32, 1600} };

static void quantization_is_rounding(void) {
    if (lacks_fp8()) return;
    for (int i = 0; i < ALL_KINDS * COUNT(sizes); i++) {
        const int64_t rows = sizes[i / ALL_KINDS][0], columns = sizes[i / ALL_KINDS][1], count = rows * columns;
        double *x = data_of(i % ALL_KINDS, count);
        Tensor t = tensor_from(x, BF16, rows, columns);
        const float max = largest_of(x, count), known = 2 * max, scale = E4M3_MAX / max, half = E4M3_MAX / known;
        for (int which = 0; which < 4; which++) {       /* both, q, qt; both with a known maximum */
            Pair p = pair(rows, columns);
            int64_t wrong = 0;
            if (which == 3) {
                t.max = p.q.max;
                device_upload(t.max, &known, sizeof known);
            }
            quantize(which == 2 ? ABSENT : p.q, which == 1 ? ABSENT : p.qt, t);
            t.max = NULL;
            const float got = max_of(p.q), want = which == 3 ? known : max;
            EXPECT(got == want, "%lld x %lld, kind %d: maximum %g, want %g", (long long)rows,
                   (long long)columns, i % ALL_KINDS, (double)got, (double)want);
            double *q = values_of(p.q), *qt = values_of(p.qt);
            for (int64_t k = 0; k < count; k++) {
                const double element = (double)from_e4m3(to_e4m3((float)x[k] * (which == 3 ? half : scale)));
                wrong += which != 2 && q[k] != element;
                wrong += which != 1 && qt[k % columns * rows + k / columns] != element;
            }
            EXPECT(!wrong, "%lld x %lld, kind %d, %d: %lld elements differ", (long long)rows, (long long)columns,
                   i % ALL_KINDS, which, (long long)wrong);
            free(q);
            free(qt);
            pair_free(p);
        }
        device_free(t.data);
        free(x);
    }
}

/* Half a step of E4M3, 2^-4 of a number or 2^-10, and the GELU's own 2^-14. */
static void quantization_of_a_gelu(void) {
    if (lacks_fp8()) return;
    for (int i = 0; i < COUNT(sizes); i++) {
        const int64_t rows = sizes[i][0], columns = sizes[i][1], count = rows * columns;
        double *x = data_of(NORMAL, count), *y = malloc((size_t)count * sizeof *y), worst = 0;
        oracle_gelu_forward(y, x, (int)count);
        Tensor t = tensor_from(x, BF16, rows, columns);
        Pair p = pair(rows, columns);
        quantize_gelu(p.q, p.qt, t);
        const double max = max_of(p.q), want = largest_of(y, count);
        double *q = values_of(p.q), *qt = values_of(p.qt);
        for (int64_t k = 0; k < count; k++) {
            const double exact = y[k] * 448 / want;
            worst = fmax(worst, fabs(q[k] - exact) / fmax(0x1p-10, 0x1.01p-4 * fabs(exact)));
            if (qt[k % columns * rows + k / columns] != q[k]) worst = INFINITY;
        }
        EXPECT(fabs(max / want - 1) < 0x1p-13 && worst <= 1.01, "%lld x %lld: maximum %g, want %g; %g half steps",
               (long long)rows, (long long)columns, max, want, worst);
        free(x);
        free(y);
        free(q);
        free(qt);
        device_free(t.data);
        pair_free(p);
    }
}

/* ---- Products */

/* max|got - want| / max|want|. The tensor cores of Hopper add up products of FP8 with 13 bits behind the largest of
   them (DeepSeek-V3, arXiv 2412.19437, 3.5.2); results in bf16 are off by up to 2^-8 of themselves. */
static void expect_near(const char *what, Tensor t, const double *want, const int *shape) {
    double *got = values_of(t), error = 0, max = 1e-30;
    const double limit = (t.dtype == BF16 ? 0x1p-8 : 0) + 0x1p-11;
    for (int64_t i = 0; i < tensor_count(t); i++) {
        max = fmax(max, fabs(want[i]));
        if (!(fabs(got[i] - want[i]) <= error)) error = fabs(got[i] - want[i]);
    }
    EXPECT(error <= limit * max, "%d x %d x %d: %s: off by %.3g of the largest, want at most %.3g", shape[0], shape[1],
           shape[2], what, error / max, limit);
    free(got);
}

/* What q stands for. */
static double *meaning_of(Tensor q) {
    double *x = values_of(q), factor = (double)max_of(q) / 448;
    for (int64_t i = 0; i < tensor_count(q); i++) x[i] *= factor;
    return x;
}

static void products(void) {
    static const int shapes[][3] = { {16, 16, 16}, {48, 80, 144}, {272, 128, 1600}, {1008, 112, 304}, {64, 400, 48} };
    if (lacks_fp8()) return;
    for (int i = 0; i < 4 * COUNT(shapes); i++) {
        const int *shape = shapes[i / 4], rows = shape[0], N = shape[1], K = shape[2];
        const int kind = (int[]){ NORMAL, ZEROS, HUGE_ONE, WIDE }[i % 4];
        const Into into = i % 2 ? ACCUMULATE : OVERWRITE;
        double *x = data_of(kind, rows * K), *w = data_of(NORMAL, N * K), *d = data_of(kind, rows * N);
        double *b = data_of(NORMAL, N);
        double *start = data_of(NORMAL, N * K), *want = calloc((size_t)(rows * (N + K) + N * K), sizeof *want);
        double *want_dx = want + rows * N, *want_dw = want_dx + rows * K, unused[400];
        Tensor tx = tensor_from(x, BF16, rows, K), tw = tensor_from(w, BF16, N, K), td = tensor_from(d, BF16, rows, N);
        Tensor bias = i % 3 ? tensor_from(b, BF16, 1, N) : ABSENT, dweight = tensor_from(start, F32, N, K);
        Tensor out = poisoned(BF16, rows, N), dx = poisoned(BF16, rows, K);
        Pair px = pair(rows, K), pw = pair(N, K), pd = pair(rows, N);
        quantize(px.q, px.qt, tx);
        quantize(pw.q, pw.qt, tw);
        quantize(pd.q, pd.qt, td);
        matmul_fp8_forward(out, px.q, pw.q, bias.data ? tensor_of(bias.data, BF16, 1, N) : ABSENT);
        matmul_fp8_backward(dx, dweight, pd.q, pd.qt, px.qt, pw.qt, into);
        double *x8 = meaning_of(px.q), *w8 = meaning_of(pw.q), *d8 = meaning_of(pd.q);
        oracle_matmul_forward(want, x8, w8, bias.data ? b : NULL, rows, N, K);
        oracle_matmul_backward(want_dx, want_dw, unused, d8, x8, w8, rows, N, K);
        for (int k = 0; k < N * K && into == ACCUMULATE; k++) want_dw[k] += start[k];
        expect_near("out", out, want, shape);
        expect_near("dx", dx, want_dx, shape);
        expect_near("dweight", dweight, want_dw, shape);
        void *const host[] = { x, w, d, b, start, want, x8, w8, d8 };
        void *const device[] = { tx.data, tw.data, td.data, bias.data, dweight.data, out.data, dx.data };
        for (int k = 0; k < COUNT(host); k++) free(host[k]);
        for (int k = 0; k < COUNT(device); k++) device_free(device[k]);
        pair_free(px);
        pair_free(pw);
        pair_free(pd);
    }
}

/* One of them in x, and every result is NaN or infinite: the guard of a step sees it. */
static void not_finite(void) {
    enum { ROWS = 32, N = 48, K = 64 };
    if (lacks_fp8()) return;
    for (int i = 0; i < 3; i++) {
        double *x = data_of(NORMAL, ROWS * K), *w = data_of(NORMAL, N * K);
        x[uniform_int(0, ROWS * K - 1)] = (double[]){ NAN, INFINITY, -INFINITY }[i];
        Tensor tx = tensor_from(x, BF16, ROWS, K), tw = tensor_from(w, BF16, N, K), out = poisoned(BF16, ROWS, N);
        Pair px = pair(ROWS, K), pw = pair(N, K);
        quantize(px.q, px.qt, tx);
        quantize(pw.q, pw.qt, tw);
        matmul_fp8_forward(out, px.q, pw.q, ABSENT);
        double *got = values_of(out);
        int finite = 0;
        for (int k = 0; k < ROWS * N; k++) finite += isfinite(got[k]) != 0;
        EXPECT(!finite, "number %d: %d results are finite", i, finite);
        free(x);
        free(w);
        free(got);
        device_free(tx.data);
        device_free(tw.data);
        device_free(out.data);
        pair_free(px);
        pair_free(pw);
    }
}

/* ---- The maxima of other ops: those of what they have written or read */

static void expect_max(const char *what, Tensor t, int columns) {
    double *x = values_of(t);
    const float want = largest_of(x, tensor_count(t)), got = max_of(t);
    EXPECT(got == want, "%s, %d columns: maximum %.9g, want %.9g", what, columns, (double)got, (double)want);
    const float stale = 1e9f;                               /* the next op does not add to it */
    device_upload(t.max, &stale, sizeof stale);
    free(x);
}

static void maxima(void) {
    static const int columns[] = { 16, 256, 768, 1280, 1600, 2064, 4096 };
    if (lacks_fp8()) return;
    float *max = device_alloc(sizeof *max, "a maximum");
    for (int i = 0; i < 2 * COUNT(columns); i++) {
        const int C = columns[i / 2], rows = i % 2 ? 67 : 1030;
        double *a = data_of(NORMAL, rows * C), *b = data_of(NORMAL, rows * C), *c = data_of(NORMAL, C);
        Tensor x = tensor_from(a, BF16, rows, C), y = tensor_from(b, BF16, rows, C), out = poisoned(BF16, rows, C);
        Tensor sums = tensor_from(c, F32, 4, C), stats = poisoned(F32, 2, rows), w = tensor_from(c, BF16, 1, C);
        const Tensor weight = tensor_of(w.data, BF16, 1, C);
        Tensor sum[4], stat[2];
        for (int k = 0; k < 4; k++) sum[k] = tensor_of((float *)sums.data + k * C, F32, 1, C);
        for (int k = 0; k < 2; k++) stat[k] = tensor_of((float *)stats.data + k * rows, F32, 1, rows);
        out.max = max;
        residual_layernorm_forward(ABSENT, out, stat[0], stat[1], x, ABSENT, weight, weight);
        expect_max("layernorm", out, C);
        layernorm_backward(out, sum[0], sum[1], sum[2], y, x, stat[0], stat[1], weight, ACCUMULATE, OVERWRITE);
        expect_max("layernorm backward", out, C);
        gelu_backward(out, y, x, sum[3], OVERWRITE);
        expect_max("gelu backward", out, C);
        column_sums(sum[0], out, OVERWRITE);
        expect_max("column sums", out, C);
        void *const device[] = { x.data, y.data, out.data, sums.data, stats.data, w.data };
        for (int k = 0; k < COUNT(device); k++) device_free(device[k]);
        free(a);
        free(b);
        free(c);
    }
    device_free(max);
}

/* ---- Refusals */

static void call_quantize(void *t) { quantize(((Tensor *)t)[0], ((Tensor *)t)[1], ((Tensor *)t)[2]); }
static void call_product(void *t)  { matmul_fp8_forward(((Tensor *)t)[0], ((Tensor *)t)[1], ((Tensor *)t)[2], ABSENT); }

static void refusals(void) {
    _Alignas(16) float memory[64] = {0};
    if (!strcmp(backend_name, "cpu")) device_open((DeviceOptions){ .threads = 1 });     /* fork keeps one thread */
    Tensor q = tensor_of(memory, E4M3, 2, 16, 32), qt = tensor_of(memory, E4M3, 2, 32, 16);
    const Tensor x = tensor_of(memory, BF16, 2, 16, 32);
    const Tensor odd_q = tensor_of(memory, E4M3, 2, 20, 32), odd_x = tensor_of(memory, BF16, 2, 20, 32);
    const Tensor out = tensor_of(memory, BF16, 2, 16, 32);
    q.max = qt.max = memory;
    const char *refusal = device_refuse_dtype(E4M3);
    const struct { const char *message; void (*call)(void *); Tensor t[3]; } wrong[] = {
        { "quantize: q and qt are absent, want at least one", call_quantize, { ABSENT, ABSENT, x } },
        { "quantize: q is e4m3 (20,32), want multiples of 16", call_quantize, { odd_q, ABSENT, odd_x } },
        { "quantize: q is e4m3 (16,32), want e4m3 (20,32)", call_quantize, { q, ABSENT, odd_x } },
        { "quantize: qt is e4m3 (16,32), want e4m3 (32,16)", call_quantize, { q, q, x } },
        { "quantize: x is e4m3 (16,32), want bf16 (16,32)", call_quantize, { q, qt, q } },
        { "matmul fp8: x is bf16 (16,32), want e4m3 (16,32)", call_product, { out, x, qt } },
        { "matmul fp8: weight is e4m3 (16,32), want e4m3 (32,32)", call_product, { out, q, q } },
    };
    for (int i = 0; i < COUNT(wrong); i++) {
        char message[256];
        snprintf(message, sizeof message, "%s", wrong[i].message);
        if (refusal && i) snprintf(message, sizeof message, "%s", refusal);
        expect_fails(message, wrong[i].call, (void *)wrong[i].t);
    }
}

int main(void) {
    random_open();
    test_device_open((DeviceOptions){0});
    RUN(quantization_is_rounding);
    RUN(quantization_of_a_gelu);
    RUN(products);
    RUN(not_finite);
    RUN(maxima);
    RUN(refusals);
    return test_close();
}
