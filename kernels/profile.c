#include "profile.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "check.h"
#include "device.h"
#include "fill.h"
#include "gemm.h"
#include "update.h"

/* A step of 48 blocks has 1300 ops; GPT-2 has 40 different ones. */
enum { ROWS = 128, SPANS = 4096, DEPTH = 4 };

typedef struct {
    char        name[48];       /* after that of the row that contains it */
    int         parent;         /* that row; -1 = none */
    double      bytes, flop;    /* of a call */
    int64_t     calls;
    double      ms;             /* without the ops that it contains */
} Row;

typedef struct { int row; DeviceMark begin, end; } Span;

int profile_is_on;
static Row row[ROWS];
static Span span[SPANS];
static int rows, spans, open_span[DEPTH], depth;
static double bytes_per_ms, flop_per_ms;

double op_bytes(int count, ...) {
    va_list operands;
    double bytes = 0;
    va_start(operands, count);
    while (profile_is_on && count-- > 0) {
        const Tensor t = va_arg(operands, Tensor);
        if (t.data) bytes += (double)tensor_count(t) * (double)dtype_bytes(t.dtype);
    }
    va_end(operands);
    return bytes;
}

/* ---- Rates */

/* Milliseconds of a call. */
static double call_ms(void (*call)(Tensor to, Tensor from), Tensor to, Tensor from) {
    enum { WARM_UP = 2, CALLS = 10 };
    for (int i = 0; i < WARM_UP + CALLS; i++) {
        if (i == WARM_UP) device_mark(&span->begin);
        call(to, from);
    }
    device_mark(&span->end);
    return device_mark_ms(&span->begin, &span->end) / CALLS;
}

static Tensor matrix(int64_t rows, int64_t columns, DType dtype) {
    const size_t bytes = (size_t)(rows * columns) * dtype_bytes(dtype);
    return tensor_of(device_alloc(bytes, "a matrix of a profile"), dtype, 2, rows, columns);
}

/* Of 128 MiB, more than any cache holds. */
static double copy_rate(void) {
    const Tensor from = matrix(4096, 8192, F32), to = matrix(4096, 8192, F32);
    const double ms = call_ms(tensor_convert, to, from);
    device_free(from.data);
    device_free(to.data);
    return 2 * (double)tensor_bytes(from) / ms;
}

static void square(Tensor c, Tensor a) {
    const int64_t n = tensor_rows(a);
    gemm((Gemm){ .M = n, .N = n, .K = n, .dtype = a.dtype, .a = { a.data, n, ROW_MAJOR },
                 .b = { a.data, n, COLUMN_MAJOR }, .c = c.data, .c_dtype = c.dtype, .c_pitch = n });
}

/* The largest rate of square GEMMs from 512 to 8192, up to one that takes 2 ms. Of random numbers: a GPU multiplies
   zeros faster, with less power. */
static double gemm_rate(DType dtype) {
    double rate = 0, ms = 0;
    for (int64_t n = 512; n <= 8192 && ms < 2; n *= 2) {
        const Tensor a = matrix(n, n, dtype), c = matrix(n, n, dtype), normal = matrix(n, n, F32);
        fill_normal(normal, 0, 1, 1, 0, 0);
        tensor_convert(a, normal);
        ms = call_ms(square, c, a);
        rate = fmax(rate, 2.0 * (double)(n * n * n) / ms);
        device_free(a.data);
        device_free(c.data);
        device_free(normal.data);
    }
    return rate;
}

/* ---- Ops */

static int find_row(const char *name, int parent, double bytes, double flop) {
    Row r = { .parent = parent, .bytes = bytes, .flop = flop };
    int i = 0;
    snprintf(r.name, sizeof r.name, "%s%s%s", parent < 0 ? "" : row[parent].name, parent < 0 ? "" : ": ", name);
    while (i < rows && !(row[i].parent == parent && row[i].bytes == bytes && row[i].flop == flop &&
                         !strcmp(row[i].name, r.name))) i++;
    REQUIRE(i < ROWS, "profile: %s: more than %d different ops", name, ROWS);
    if (i == rows) row[rows++] = r;
    return i;
}

/* Adds the times of the spans to their rows. */
static void collect(void) {
    for (int i = 0; i < spans; i++) {
        Row *r = &row[span[i].row];
        const double ms = device_mark_ms(&span[i].begin, &span[i].end);
        r->calls++;
        r->ms += ms;
        if (r->parent >= 0) row[r->parent].ms -= ms;
    }
    spans = 0;
}

void op_begin(const char *name, double bytes, double flop) {
    if (!profile_is_on) return;
    if (depth == 0 && spans > SPANS / 2) collect();
    REQUIRE(spans < SPANS && depth < DEPTH, "profile: %s: %d ops inside of each other, %d in all", name, depth, spans);
    Span *s = &span[spans];
    s->row = find_row(name, depth ? span[open_span[depth - 1]].row : -1, bytes, flop);
    open_span[depth++] = spans++;
    device_range_begin(name);
    device_mark(&s->begin);
}

void op_end(void) {
    if (!profile_is_on) return;
    REQUIRE(depth, "profile: op_end without op_begin");
    device_mark(&span[open_span[--depth]].end);
    device_range_end();
}

/* ---- The table */

static int by_time(const void *a, const void *b) {
    const double x = ((const Row *)a)->ms, y = ((const Row *)b)->ms;
    return (x < y) - (x > y);
}

static double floor_ms(const Row *r) { return fmax(r->bytes / bytes_per_ms, r->flop / flop_per_ms); }

void profile_begin(DType dtype) {
    bytes_per_ms = copy_rate();
    flop_per_ms = gemm_rate(dtype);
    printf("floors: copy %.3g GB/s (read and written), %s GEMM %.3g TFLOP/s\n", bytes_per_ms * 1e-6, dtype_name(dtype),
           flop_per_ms * 1e-9);
    rows = spans = depth = 0;
    profile_is_on = 1;
}

void profile_end(int steps, double step_ms) {
    double sum = 0, floors = 0;
    REQUIRE(!depth, "profile: %s: op_begin without op_end", row[span[open_span[depth - 1]].row].name);
    collect();
    profile_is_on = 0;
    qsort(row, (size_t)rows, sizeof *row, by_time);
    printf("%-36s %6s %9s %9s %9s %9s %7s %6s\n", "op", "calls", "MB", "GFLOP", "ms", "floor ms", "ratio", "share");
    for (const Row *r = row; r < row + rows; r++) {
        const double calls = (double)r->calls / steps, ms = r->ms / steps, floor = calls * floor_ms(r);
        if (floor == 0) continue;           /* only contains others */
        printf("%-36s %6g %9.4g %9.4g %9.3f %9.3f %7.2f %5.1f%%\n", r->name, calls, r->bytes * calls * 1e-6,
               r->flop * calls * 1e-9, ms, floor, ms / floor, 100 * ms / step_ms);
        sum += ms;
        floors += floor;
    }
    printf("%-36s %36.3f %9.3f %7.2f %5.1f%%\n", "sum of the ops", sum, floors, sum / floors, 100 * sum / step_ms);
    printf("%-36s %36.3f %9.3f %7.2f\n", "step, not profiled", step_ms, floors, step_ms / floors);
    printf("%-36s %36.3f %25.1f%%\n", "gap", step_ms - sum, 100 * (step_ms - sum) / step_ms);
    for (int i = 0; i < SPANS; i++) {
        device_mark_free(&span[i].begin);
        device_mark_free(&span[i].end);
    }
}
