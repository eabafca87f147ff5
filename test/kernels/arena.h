/* arena.h - All operands of one test case, in one piece of device memory with guard bands between them.

   arena_begin("matmul", "N=%d", N);                forgets the last case
   Tensor x = input(1, B, T, K);                    random, never to be written
   Tensor dw = base(1, N, K), out = output(B, T, N);     random to be added to; NaN to be overwritten
   EACH_RUN matmul_forward(out, ABSENT, x, w, ABSENT);    runs with 1, 2 and 3 threads, and twice: the same bits;
                                                    nothing changes but the outputs: no guard, gap or input
   compare(out, want, .roundings = K);              nothing where out is ABSENT

   Where an op writes or adds: output_into(into, N, K). The oracle only writes: compare() adds to want what was there.

   A test that begins with TEST_EACH_DTYPE runs once for each data type that the device computes in: input(), output()
   and base() are of that type, f32_output(), f32_base(), ... always F32.

   The device's memory is never dereferenced: it is uploaded before every run and downloaded after it. */
#pragma once
#include <stdarg.h>
#include "../oracle.h"
#include "../test.h"

/* The memory is counted in halves, 2 bytes. Two of POISON are a NaN as f32, one is as bf16. */
enum { ARENA_HALVES = 16 << 20, POOL_DOUBLES = 16 << 20, GUARD_HALVES = 128, POISON = 0x7fc1 };
enum { KEPT = 1, WRITTEN = 2, ADDED = 4, SCRATCH = 8 };     /* SCRATCH: may be written, with whatever bits */

static _Alignas(8) uint16_t arena_before[ARENA_HALVES], arena_after[ARENA_HALVES], arena_first[ARENA_HALVES];
static unsigned char arena_mark[ARENA_HALVES];
static DType arena_dtype;       /* data type of the test that runs */
static int64_t arena_used, pool_used;
static char *arena_device, arena_op[32], arena_case[160];
static double *pool;

/* For as long as the program. */
static void arena_open(void) {
    random_open();
    test_device_open((DeviceOptions){0});
    arena_device = device_alloc(sizeof arena_before, "the operands of the tests");
    device_pin(arena_before, sizeof arena_before);
    device_pin(arena_after, sizeof arena_after);
    device_pin(arena_first, sizeof arena_first);
    pool = malloc(sizeof *pool * POOL_DOUBLES);
}

/* Whether this device's ops refuse rows of so many elements, for they are not whole vectors. */
static inline int refuses_rows(int elements) { return device_refuse_channels(8 + elements % 8) != NULL; }

static inline void run_each_dtype(const char *name, void (*test)(void)) {
    static const DType dtypes[] = { F32, BF16 };
    for (int i = 0; i < COUNT(dtypes); i++) {
        if (device_refuse_dtype(dtypes[i])) continue;
        char text[64];
        snprintf(text, sizeof text, "%s in %s", name, dtype_name(dtypes[i]));
        arena_dtype = dtypes[i];
        test_run(text, test);
    }
    arena_dtype = F32;
}
#define TEST_EACH_DTYPE(name) TEST_RUN_BY(run_each_dtype, name)

/* The arena up to end is POISON that nothing may change. */
static void arena_poison(int64_t end) {
    for (int64_t i = arena_used; i < end; i++) arena_before[i] = POISON;
    memset(arena_mark + arena_used, KEPT, (size_t)(end - arena_used));
    arena_used = end;
}

__attribute__((format(printf, 2, 3)))
static void arena_begin(const char *op, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    snprintf(arena_op, sizeof arena_op, "%s %s", op, dtype_name(arena_dtype));
    vsnprintf(arena_case, sizeof arena_case, format, arguments);
    va_end(arguments);
    pool_used = arena_used = 0;
    arena_poison(GUARD_HALVES);
}

/* ---- operands */

static double *doubles(int64_t count) {
    pool_used += count;
    REQUIRE(pool_used <= POOL_DOUBLES, "the test's pool is too small: %lld doubles", (long long)pool_used);
    return pool + pool_used - count;
}

static int64_t halves_from(Tensor t, int64_t row) {
    return ((char *)t.data - arena_device + row * t.pitch * (int64_t)dtype_bytes(t.dtype)) / 2;
}
static size_t row_bytes(Tensor t) { return (size_t)tensor_columns(t) * dtype_bytes(t.dtype); }
static void *arena_host(Tensor t) { return arena_before + halves_from(t, 0); }

/* The i-th element of t in a copy of the arena, whatever its shape; what is set is rounded. E4M3: without its scale. */
static double element(Tensor t, const uint16_t *arena, int64_t i) {
    const void *data = arena + halves_from(t, 0);
    if (t.dtype == E4M3) return e4m3_value(((const uint8_t *)data)[i]);
    uint32_t bits = t.dtype == BF16 ? (uint32_t)((const uint16_t *)data)[i] << 16 : ((const uint32_t *)data)[i];
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline double get(Tensor t, int64_t i) { return element(t, arena_before, i); }

static void set(Tensor t, int64_t i, double value) {
    float rounded = (float)(t.dtype == BF16 ? round_bf16(value) : value);
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    if (t.dtype == BF16) ((uint16_t *)arena_host(t))[i] = (uint16_t)(bits >> 16);
    else                 ((uint32_t *)arena_host(t))[i] = bits;
}

static void mark(Tensor t, int how) {
    for (int64_t r = 0; r < tensor_rows(t); r++) memset(arena_mark + halves_from(t, r), how, row_bytes(t) / 2);
}

/* A poisoned tensor whose rows are pitch elements apart (0: packed). */
static Tensor place(DType dtype, int mark_as, int64_t pitch, int ndim, const int64_t dim[4]) {
    Tensor t = tensor_packed(arena_device + 2 * arena_used, dtype, ndim, dim);
    if (pitch) t.pitch = pitch;
    int64_t halves = tensor_rows(t) * t.pitch * (int64_t)dtype_bytes(dtype) / 2;
    int64_t end = (arena_used + halves + 2 * GUARD_HALVES - 1) / GUARD_HALVES * GUARD_HALVES;
    REQUIRE(end <= ARENA_HALVES, "the test's arena is too small: %lld halves", (long long)end);
    arena_poison(end);
    mark(t, mark_as);
    return t;
}
#define DIMS(...) COUNT(((const int64_t[]){__VA_ARGS__})), (const int64_t[4]){__VA_ARGS__}
#define output_as(dtype, ...)           place(dtype, WRITTEN, 0, DIMS(__VA_ARGS__))
#define input_as(dtype, amplitude, ...) fill(place(dtype, KEPT,    0, DIMS(__VA_ARGS__)), 0, amplitude)
#define base_as(dtype, amplitude, ...)  fill(place(dtype, WRITTEN, 0, DIMS(__VA_ARGS__)), 0, amplitude)
#define into_as(dtype, into, ...) \
    ((into) == ACCUMULATE ? fill(place(dtype, ADDED, 0, DIMS(__VA_ARGS__)), 0, 1) : output_as(dtype, __VA_ARGS__))
#define output(...)               output_as(arena_dtype, __VA_ARGS__)
#define input(amplitude, ...)     input_as(arena_dtype, amplitude, __VA_ARGS__)
#define base(amplitude, ...)      base_as(arena_dtype, amplitude, __VA_ARGS__)
#define output_into(into, ...)    into_as(arena_dtype, into, __VA_ARGS__)
#define f32_output(...)           output_as(F32, __VA_ARGS__)
#define f32_input(amplitude, ...) input_as(F32, amplitude, __VA_ARGS__)
#define f32_base(amplitude, ...)  base_as(F32, amplitude, __VA_ARGS__)
#define f32_output_into(into, ...) into_as(F32, into, __VA_ARGS__)
#define scratch_as(dtype, ...)    place(dtype, SCRATCH, 0, DIMS(__VA_ARGS__))
#define scratch(...)              scratch_as(F32, __VA_ARGS__)
#define integers(min, max, ...)   fill_integers(place(I32, KEPT, 0, DIMS(__VA_ARGS__)), min, max)

static Tensor fill(Tensor t, double centre, double amplitude) {
    int64_t rows = tensor_rows(t), columns = tensor_columns(t);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) set(t, r * t.pitch + c, centre + amplitude * uniform());
    return t;
}

/* An output that holds what t does, for a call in place. */
static inline Tensor copy_of(Tensor t) {
    if (!t.data) return t;
    Tensor copy = place(t.dtype, WRITTEN, 0, t.ndim, t.dim);
    memcpy(arena_host(copy), arena_host(t), tensor_bytes(t));
    return copy;
}

static inline Tensor fill_integers(Tensor t, int min, int max) {
    int *a = arena_host(t);
    for (int64_t i = 0; i < tensor_count(t); i++) a[i] = uniform_int(min, max);
    return t;
}

static double *widen(Tensor t, const uint16_t *arena) {
    int64_t rows = tensor_rows(t), columns = tensor_columns(t);
    double *wide = doubles(rows * columns), *next = wide;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) *next++ = element(t, arena, r * t.pitch + c);
    return wide;
}
static double *given(Tensor t)  { return widen(t, arena_before); }      /* what was uploaded, packed */
static double *result(Tensor t) { return widen(t, arena_after); }       /* what the last run left */

/* Whether the last run left the same in two tensors of one shape. */
static inline int same_bits(Tensor a, Tensor b) {
    int same = 1;
    for (int64_t r = 0; r < tensor_rows(a) && same; r++)
        same = !memcmp(arena_after + halves_from(a, r), arena_after + halves_from(b, r), row_bytes(a));
    return same;
}

/* ---- runs */

#define EACH_RUN for (int run_ = 0; arena_run(run_); run_++)

static void arena_upload(void) {
    device_upload(arena_device, arena_before, sizeof *arena_before * (size_t)arena_used);
}

/* How many halves with one of these marks differ. Counts only where there are any: the search runs at the speed of
   memory. */
static int64_t arena_differences(int marks, const uint16_t *a, const uint16_t *b) {
    int64_t count = 0;
    int any = 0;
    #pragma omp parallel for reduction(|:any) schedule(static)
    for (int64_t i = 0; i < arena_used; i++) any |= (a[i] ^ b[i]) & -((arena_mark[i] & marks) != 0);
    for (int64_t i = 0; any && i < arena_used; i++) count += (arena_mark[i] & marks) != 0 && a[i] != b[i];
    return count;
}

static int arena_run(int run) {
#ifdef _OPENMP
    static const int cpu_threads[] = {1, 2, 3, 3};
#else
    static const int cpu_threads[] = {1, 1};
#endif
    int on_cpu = strcmp(backend_name, "cpu") == 0, run_count = on_cpu ? COUNT(cpu_threads) : 2;
    if (run > 0) {
        uint16_t *got = run == 1 ? arena_first : arena_after;
        device_download(got, arena_device, sizeof *got * (size_t)arena_used);
        int64_t touched = arena_differences(KEPT, got, arena_before);
        int64_t different = run == 1 ? 0 : arena_differences(WRITTEN | ADDED, got, arena_first);
        EXPECT(!touched, "%s %s: %lld halves changed outside the outputs", arena_op, arena_case, (long long)touched);
        EXPECT(!different, "%s %s: %lld halves differ from the first run's (run %d)", arena_op, arena_case,
               (long long)different, run);
    }
    if (run == run_count) return 0;
    if (on_cpu) device_open((DeviceOptions){ .threads = cpu_threads[run] });
    arena_upload();
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
               rounding is relative to the terms

   In bf16 twice the error is added that cannot be avoided: that of want itself, rounded to the output's type, or,
   where it is greater,

   emulated    that of the oracle which keeps in bf16 what an op has to keep (oracle_stores), see off();
   kept        or what that oracle makes */
typedef struct { double roundings, condition, floor, emulated; const double *kept; } Bound;

/* The error of what an emulation made, once it is written in the type of the output. */
static double off(Tensor output, const double *want, const double *emulated) {
    int64_t count = tensor_count(output);
    double error = 0, max = 1e-30;
    for (int64_t i = 0; i < count; i++) {
        double size = fabs(want[i]);
        double distance = fabs((output.dtype == BF16 ? round_bf16(emulated[i]) : emulated[i]) - want[i]);
        max = size > max ? size : max;                  /* fmax is a call */
        error = distance > error ? distance : error;
    }
    /* at least half a step of bf16: a few elements may all round well */
    return output.dtype == BF16 ? fmax(error, ldexp(1, ilogb(max) - 8)) : error;
}

static void compare_within(const char *name, Tensor got, const double *want, Bound bound) {
    if (!got.data) return;
    int64_t at = 0, count = tensor_count(got);
    const double *values = result(got), *old = arena_mark[halves_from(got, 0)] == ADDED ? given(got) : NULL;
    double error = 0, max = bound.floor, *sum = old ? doubles(count) : NULL;
    if (bound.kept && arena_dtype == BF16) bound.emulated = off(got, want, bound.kept);
    for (int64_t i = 0; old && i < count; i++) sum[i] = want[i] + old[i];
    if (old) want = sum;
    for (int64_t i = 0; i < count; i++) {
        double distance = fabs(values[i] - want[i]), size = fabs(want[i]);
        if (!(distance <= error)) { error = distance; at = i; }
        if (error != error) break;
        max = size > max ? size : max;
    }
    double allowed = 4 * 0x1p-24 * (sqrt(bound.roundings) + bound.condition) * max
                     + 2 * fmax(bound.emulated, off(got, want, want));
    EXPECT(error <= allowed, "%s %s: %s[%lld] is %.9g, want %.9g: off by %.2e, bound %.2e", arena_op, arena_case, name,
           (long long)at, values[at], want[at], error, allowed);
}

#define compare(got, want, ...) compare_within(#got, got, want, (Bound){ __VA_ARGS__ })

/* ---- refusals */

typedef struct {
    const char *op;
    void (*call)(Tensor *t);
    int count, optional;        /* how many operands; bits: which may be left out */
    Tensor t[12];
    int either;                 /* bits: which may be f32 as well as bf16 */
} Call;

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
            if (kind == 1) t->dtype = t->dtype == F32 || right.either >> i & 1 ? I32 : F32;
            if (kind == 2 && right.optional >> i & 1) continue;
            if (kind == 2) *t = ABSENT;
            int errors = test_errors;
            EXPECT_FAILS(prefix, wrong.call(wrong.t));
            if (test_errors > errors) printf("    %s: operand %d, %s\n", right.op, i,
                                             (const char *[]){"one column more", "another data type", "absent"}[kind]);
        }
}
