/* test/arena.h - All operands of one test case, in one piece of device memory with guard bands between them.

   arena_begin("matmul", "N=%d", N);                forgets the last case
   Tensor x = input(1, B, T, K);                    random, never to be written
   Tensor dw = base(1, N, K), out = output(B, T, N);     random to be added to; NaN to be overwritten
   EACH_RUN matmul_forward(out, x, w, ABSENT);      runs with 1, 2 and 3 threads, and twice: the same bits every time;
                                                    no word changes that is not an output's: guards, gaps, inputs
   compare("out", out, want, (Bound){ .roundings = K });

   The device's memory is never dereferenced: it is uploaded before every run and downloaded after it. */
#ifndef TEST_ARENA_H
#define TEST_ARENA_H
#include <stdarg.h>
#include "../kernels/device.h"
#include "oracle.h"
#include "test.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

enum { ARENA_WORDS = 8 << 20, POOL_DOUBLES = 16 << 20, GUARD_WORDS = 64, POISON = 0x7fc0dead /* a NaN, as f32 */ };
enum { KEPT, WRITTEN, SCRATCH };       /* SCRATCH: may be written, with whatever bits */

static uint32_t arena_before[ARENA_WORDS], arena_after[ARENA_WORDS], arena_first[ARENA_WORDS];
static unsigned char arena_mark[ARENA_WORDS];
static int64_t arena_used, pool_used;
static char *arena_device, arena_op[32], arena_case[160];
static double *pool;
static struct { char what[64]; double ratio; } worst[64];

static void arena_open(void) {
    random_open();
    device_open((DeviceOptions){0});
    arena_device = device_alloc(sizeof arena_before, "the operands of the tests");
    pool = malloc(sizeof *pool * POOL_DOUBLES);
}

static void arena_close(void) {
    for (int i = 0; i < COUNT(worst) && *worst[i].what; i++)
        printf("  error/bound of %-32s at most %.3f\n", worst[i].what, worst[i].ratio);
    device_free(arena_device);
    free(pool);
}

__attribute__((format(printf, 2, 3)))
static void arena_begin(const char *op, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    snprintf(arena_op, sizeof arena_op, "%s", op);
    vsnprintf(arena_case, sizeof arena_case, format, arguments);
    va_end(arguments);
    pool_used = 0;
    arena_used = GUARD_WORDS;
    for (int i = 0; i < GUARD_WORDS; i++) { arena_before[i] = POISON; arena_mark[i] = KEPT; }
}

/* ---- operands */

static double *doubles(int64_t count) {
    pool_used += count;
    REQUIRE(pool_used <= POOL_DOUBLES, "the test's pool is too small: %lld doubles", (long long)pool_used);
    return pool + pool_used - count;
}

static void *arena_host(Tensor t)  { return arena_before + ((char *)t.data - arena_device) / 4; }
static float *host_floats(Tensor t) { return arena_host(t); }

static void mark(Tensor t, int how) {
    int64_t first = ((char *)t.data - arena_device) / 4;
    for (int64_t r = 0; r < tensor_rows(t); r++)
        memset(arena_mark + first + r * t.pitch, how, (size_t)tensor_columns(t));
}

/* A poisoned tensor of 4-byte elements whose rows are pitch apart (0: packed). */
static Tensor place(DType dtype, int mark_as, int64_t pitch, int ndim, const int64_t dim[4]) {
    Tensor t = tensor_packed(arena_device + 4 * arena_used, dtype, ndim, dim);
    if (pitch) t.pitch = pitch;
    int64_t end = (arena_used + tensor_rows(t) * t.pitch + 2 * GUARD_WORDS - 1) / GUARD_WORDS * GUARD_WORDS;
    REQUIRE(end <= ARENA_WORDS, "the test's arena is too small: %lld words", (long long)end);
    for (; arena_used < end; arena_used++) { arena_before[arena_used] = POISON; arena_mark[arena_used] = KEPT; }
    mark(t, mark_as);
    return t;
}
#define DIMS(...) COUNT(((const int64_t[]){__VA_ARGS__})), (const int64_t[4]){__VA_ARGS__}
#define output(...)           place(F32, WRITTEN, 0, DIMS(__VA_ARGS__))
#define scratch(...)          place(F32, SCRATCH, 0, DIMS(__VA_ARGS__))
#define input(amplitude, ...) fill(place(F32, KEPT,    0, DIMS(__VA_ARGS__)), 0, amplitude)
#define base(amplitude, ...)  fill(place(F32, WRITTEN, 0, DIMS(__VA_ARGS__)), 0, amplitude)
#define output_into(into, ...) ((into) == ACCUMULATE ? base(1, __VA_ARGS__) : output(__VA_ARGS__))
#define integers(least, most, ...) fill_integers(place(I32, KEPT, 0, DIMS(__VA_ARGS__)), least, most)

static Tensor fill(Tensor t, double centre, double amplitude) {
    float *a = arena_host(t);
    for (int64_t r = 0; r < tensor_rows(t); r++)
        for (int64_t c = 0; c < tensor_columns(t); c++) a[r * t.pitch + c] = (float)(centre + amplitude * uniform());
    return t;
}

static inline Tensor fill_integers(Tensor t, int least, int most) {
    int *a = arena_host(t);
    for (int64_t i = 0; i < tensor_count(t); i++) a[i] = uniform_int(least, most);
    return t;
}

static double *widen(Tensor t, const uint32_t *words) {
    const float *a = (const float *)words + ((char *)t.data - arena_device) / 4;
    double *wide = doubles(tensor_count(t)), *next = wide;
    for (int64_t r = 0; r < tensor_rows(t); r++)
        for (int64_t c = 0; c < tensor_columns(t); c++) *next++ = a[r * t.pitch + c];
    return wide;
}
static double *given(Tensor t)  { return widen(t, arena_before); }      /* what was uploaded, packed */
static double *result(Tensor t) { return widen(t, arena_after); }       /* what the last run left */

/* ---- runs */

#define EACH_RUN for (int run_ = 0; arena_run(run_); run_++)

static int arena_run(int run) {
#ifdef _OPENMP
    static const int cpu_threads[] = {1, 2, 3, 3};
#else
    static const int cpu_threads[] = {1, 1};
#endif
    int on_cpu = strcmp(backend_name, "cpu") == 0, run_count = on_cpu ? COUNT(cpu_threads) : 2;
    size_t bytes = sizeof *arena_before * (size_t)arena_used;
    if (run > 0) {
        uint32_t *got = run == 1 ? arena_first : arena_after;
        int64_t touched = 0, different = 0;
        device_download(got, arena_device, bytes);
        for (int64_t i = 0; i < arena_used; i++) {
            touched += arena_mark[i] == KEPT && got[i] != arena_before[i];
            different += arena_mark[i] == WRITTEN && got[i] != arena_first[i];
        }
        EXPECT(!touched, "%s %s: %lld words changed outside the outputs", arena_op, arena_case, (long long)touched);
        EXPECT(!different, "%s %s: %lld words differ from the first run's (run %d)", arena_op, arena_case,
               (long long)different, run);
    }
    if (run == run_count) return 0;
    if (on_cpu) device_open((DeviceOptions){ .threads = cpu_threads[run] });
    device_upload(arena_device, arena_before, bytes);
    return 1;
}

/* ---- comparison

   An f32 operation is wrong by at most u = 2^-24 of its result. A sum of n terms makes n roundings, each of a partial
   sum that is hardly greater than the result; they are as good as independent, so that they add up to about sqrt(n) u,
   whatever the order of the sum (sequential is the worst: sqrt(n/2)/sqrt(3) u for terms of one sign; pairwise far
   less). 4 covers the largest of a whole tensor of such errors, which are nearly normal, with margin:

       max|got - want|  <=  4 u (sqrt(roundings) + condition) max(max|want|, floor)

   roundings   the lengths of all the sums that one element goes through, plus the steps between them
   condition   by how much the result moves, relative to its size, when an intermediate value moves by its own size:
               that of x in exp(x) is |x|. 0 where all steps are sums and products
   floor       the size that the sum would have if its terms had random signs, for the case that they cancel: a
               rounding is relative to the terms */
typedef struct { double roundings, condition, floor; } Bound;

static void compare(const char *name, Tensor got, const double *want, Bound bound) {
    const double *values = result(got);
    double error = 0, greatest = bound.floor;
    int64_t at = 0;
    for (int64_t i = 0; i < tensor_count(got); i++) {
        if (!(fabs(values[i] - want[i]) <= error)) { error = fabs(values[i] - want[i]); at = i; }
        if (error != error) break;
        greatest = fmax(greatest, fabs(want[i]));
    }
    double allowed = 4 * 0x1p-24 * (sqrt(bound.roundings) + bound.condition) * greatest;
    EXPECT(error <= allowed, "%s %s: %s[%lld] is %.9g, want %.9g: off by %.2e, bound %.2e", arena_op, arena_case, name,
           (long long)at, values[at], want[at], error, allowed);

    char what[64];
    int i = 0;
    snprintf(what, sizeof what, "%s %s", arena_op, name);
    while (i < COUNT(worst) - 1 && *worst[i].what && strcmp(worst[i].what, what)) i++;
    memcpy(worst[i].what, what, sizeof what);
    if (allowed > 0 && error / allowed > worst[i].ratio) worst[i].ratio = error / allowed;
}

/* want += what was there before, for outputs that are added to. */
static inline double *plus(double *want, Tensor before, Into into) {
    const double *old = into == ACCUMULATE ? given(before) : NULL;
    for (int64_t i = 0; old && i < tensor_count(before); i++) want[i] += old[i];
    return want;
}

/* ---- refusals */

typedef struct { const char *op; void (*call)(Tensor *t); int count, optional /* bits */; Tensor t[12]; } Call;

static inline void call_in_child(void *argument) {
    alarm(10);
    ((Call *)argument)->call(((Call *)argument)->t);
}

/* Each operand in turn is given a last dimension that is too long, another data type, and is left out: the op must say
   so in one line that begins with its name. */
static inline void expect_refusals(Call right) {
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s", right.op);
    for (int i = 0; i < right.count; i++)
        for (int kind = 0; kind < 3; kind++) {
            Call wrong = right;
            Tensor *t = &wrong.t[i];
            if (kind == 0) { t->dim[t->ndim - 1]++; t->pitch++; }
            if (kind == 1) t->dtype = t->dtype == F32 ? I32 : F32;
            if (kind == 2 && right.optional >> i & 1) continue;
            if (kind == 2) *t = ABSENT;
            int errors = test_errors;
            expect_fails(prefix, call_in_child, &wrong);
            if (test_errors > errors) printf("    %s: operand %d, %s\n", right.op, i,
                                             (const char *[]){"one column more", "another data type", "absent"}[kind]);
        }
}

#endif
