/* bench.h - What the benchmarks share: their options and the median. */
#pragma once
#include "../../llmc/options/options.h"

/* The end of a table of options. */
static int bench_help;
#define BENCH_HELP { .name = "help", .type = OPTION_FLAG, .value = &bench_help, .help = "print this and end" }, { 0 }

/* about: the first line of --help. */
static void bench_parse(const char *about, Option *options, int argc, char **argv) {
    options_parse(options, NULL, NULL, argc, argv);
    if (!bench_help) return;
    puts(about);
    options_help(stdout, options);
    exit(0);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Leaves the values in order; NaN of none. */
static double median(double *values, int64_t count) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    return count ? (values[(count - 1) / 2] + values[count / 2]) / 2 : NAN;
}
