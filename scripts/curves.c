/* curves - The page of llmc/report/report_page.h for several runs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../kernels/check.h"
#include "../llmc/base/files.h"
#include "../llmc/base/os.h"
#include "../llmc/report/report_page.h"

static const char usage[] =
    "usage: ./curves RUN... > curves.html\n"
    "       ./curves RUN... -o curves.html\n\n"
    "Writes a page for a browser: loss, gradient norm, learning rate, speed,\n"
    "temperature and power over steps, tokens or time, samples, warnings, settings.\n"
    "RUN is a run's directory, or another log.csv, with at least the columns step\n"
    "and loss.\n";

#define WANT "want runs: ./curves RUN... > curves.html, or -o curves.html (--help explains)"

int main(int argc, char **argv) {
    char *out = NULL, *page;
    int runs = 0;
    size_t size;
    fail_program = "curves";
    stdio_open();
    for (int i = 1; i < argc; i++) {
        const int is_out = !strcmp(argv[i], "-o") || !strcmp(argv[i], "--out");
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return fputs(usage, stdout), stdio_flush();
        REQUIRE(is_out ? i + 1 < argc : *argv[i] != '-', WANT);
        if (is_out) out = argv[++i];
        else        argv[runs++] = argv[i];
    }
    REQUIRE(runs, WANT);
    FILE *file = string_open(&page, &size, "the page");
    page_write(file, argv, runs);
    fclose(file);
    if (out) {
        file = fopen(out, "w");
        REQUIRE(file, "%s: cannot write: %s", out, strerror(errno));
        file_write(file, page, size);
        file_close_durably(file, out);
    } else {
        fwrite(page, 1, size, stdout);
    }
    free(page);
    return stdio_flush();
}
