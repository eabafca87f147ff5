/* curves - The page of llmc/report/report_page.h for several runs. */
#include <stdio.h>
#include <string.h>
#include "../kernels/check.h"
#include "../llmc/base/os.h"
#include "../llmc/report/report_page.h"

static const char usage[] =
    "usage: ./curves RUN... > curves.html\n\n"
    "Writes a page for a browser: loss, gradient norm, learning rate, speed,\n"
    "temperature and power over steps, tokens or time, samples, warnings, settings.\n"
    "RUN is a run's directory, or another log.csv, with at least the columns step\n"
    "and loss.\n";

int main(int argc, char **argv) {
    fail_program = "curves";
    stdio_open();
    int are_runs = argc > 1;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return fputs(usage, stdout), stdio_flush();
        are_runs &= *argv[i] != '-';
    }
    REQUIRE(are_runs, "want runs: ./curves RUN... > curves.html (--help explains)");
    page_write(stdout, argv + 1, argc - 1);
    return stdio_flush();
}
