#include "profile.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "check.h"
#include "device.h"

enum { ROWS = 128, SPANS = 4096 };      /* GPT-2 has 40 different ops; a step of 48 blocks has 1300 of them */

typedef struct { char name[64]; double calls, bytes, flop, ms; } Row;
typedef struct { int row; DeviceMark begin, end; } Span;

int profile_is_on;
static Row row[ROWS];
static Span span[SPANS];
static int rows, spans, depth;          /* depth: ops that have begun and not ended */

double op_bytes(int count, ...) {
    va_list operands;
    double bytes = 0;
    va_start(operands, count);
    while (profile_is_on && count-- > 0) {
        const Tensor t = va_arg(operands, Tensor);
        if (t.data) bytes += (double)tensor_bytes(t);
    }
    va_end(operands);
    return bytes;
}

static int find_row(const char *name) {
    int i = 0;
    while (i < rows && strcmp(row[i].name, name)) i++;
    REQUIRE(i < ROWS, "profile: %s: more than %d different ops", name, ROWS);
    if (i == rows) snprintf(row[rows++].name, sizeof row->name, "%s", name);
    return i;
}

/* Adds the times of the spans to their rows. */
static void collect(void) {
    for (const Span *s = span; s < span + spans; s++) row[s->row].ms += device_mark_ms(&s->begin, &s->end);
    spans = 0;
}

void op_begin(const char *name, double bytes, double flop) {
    if (!profile_is_on || depth++) return;
    if (spans == SPANS) collect();
    Span *s = &span[spans];
    Row *r = &row[s->row = find_row(name)];
    r->calls++;
    r->bytes += bytes;
    r->flop += flop;
    device_mark(&s->begin);
}

void op_end(void) {
    if (!profile_is_on || --depth) return;
    device_mark(&span[spans++].end);
}

static int by_time(const void *a, const void *b) {
    const double x = ((const Row *)a)->ms, y = ((const Row *)b)->ms;
    return (x < y) - (x > y);
}

void profile_begin(void) {
    memset(row, 0, sizeof row);
    rows = spans = depth = 0;
    profile_is_on = 1;
}

void profile_end(Rates rates, int steps, double step_ms) {
    double sum = 0, floors = 0;
    REQUIRE(!depth, "profile: %s: op_begin without op_end", row[span[spans].row].name);
    collect();
    profile_is_on = 0;
    qsort(row, (size_t)rows, sizeof *row, by_time);
    printf("floors: copy %.3g GB/s (read and written), GEMM %.3g TFLOP/s\n", rates.bytes_per_ms * 1e-6,
           rates.flop_per_ms * 1e-9);
    printf("%-36s %6s %9s %9s %9s %9s %7s %6s\n", "op", "calls", "MB", "GFLOP", "ms", "floor ms", "ratio", "share");
    for (const Row *r = row; r < row + rows; r++) {
        const double ms = r->ms / steps;
        const double floor = fmax(r->bytes / rates.bytes_per_ms, r->flop / rates.flop_per_ms) / steps;
        printf("%-36s %6g %9.4g %9.4g %9.3f %9.3f %7.2f %5.1f%%\n", r->name, r->calls / steps, r->bytes / steps * 1e-6,
               r->flop / steps * 1e-9, ms, floor, ms / floor, 100 * ms / step_ms);
        sum += ms;
        floors += floor;
    }
    printf("%-36s %36.3f %9.3f %7.2f %5.1f%%\n", "sum of the ops", sum, floors, sum / floors, 100 * sum / step_ms);
    printf("%-36s %36.3f %9.3f %7.2f\n", "step, not profiled", step_ms, floors, step_ms / floors);
    printf("%-36s %36.3f %25.1f%%\n", "gap", step_ms - sum, 100 * (step_ms - sum) / step_ms);
}
