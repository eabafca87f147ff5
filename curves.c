/* curves - The page of llmc/report/report_page.h for several runs. */
#include <stdio.h>
#include <string.h>
#include "kernels/check.h"
#include "llmc/base/os.h"
#include "llmc/report/report_page.h"

static const char usage[] =
    "usage: ./curves RUN... > curves.html\n\n"
    "Writes a page for a browser: loss, its difference from the first RUN, gradient\n"
    "norm, learning rate, speed, temperature and power over steps, tokens or time,\n"
    "samples, warnings, settings. Each chart can be saved as SVG. RUN is a run's\n"
    "directory, or another log.csv, with at least the columns step and loss.\n";

int main(int argc, char **argv) {
    fail_program = "curves";
    stdio_open();
    const int is_help = argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"));
    REQUIRE(is_help || (argc > 1 && *argv[1] != '-'), "want runs: ./curves RUN... > curves.html (--help explains)");
    if (is_help) {
        fputs(usage, stdout);
    } else {
        PageRun *runs = host_alloc((size_t)argc * sizeof *runs, "the runs");
        for (int i = 1; i < argc; i++) page_run_open(&runs[i - 1], argv[i]);
        page_write(stdout, runs, argc - 1, 0);
    }
    return stdio_flush();
}
