/* report_page.h - A page for a browser: curves, samples, warnings, settings, temperature and power of runs, read from
   the files of llmc/report/log.h. One HTML file that carries its data, as JSON, and loads nothing else. */
#ifndef LLMC_REPORT_PAGE_H
#define LLMC_REPORT_PAGE_H
#include <stdio.h>

/* Limits of a run: points of a curve, and bytes at the end of log.jsonl, whose samples and warnings it shows. */
enum { PAGE_POINTS = 1000, PAGE_EVENT_BYTES = 1 << 16 };

/* path: a run's directory, or a CSV file with the columns step and loss, beside which log.jsonl and settings.txt may
   be. Fails on a file that is no such log, before anything is written. */
void page_write(FILE *file, char *const *paths, int count);

/* OUT/report.html during a run, replaced atomically. An error of writing it is ignored, as it holds nothing that the
   logs do not. Returns 0 when these could not be read. */
int report_page_write(const char *out);

#endif
